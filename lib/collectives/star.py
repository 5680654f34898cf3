r"""Everything through one rank: scatter, gather, and the all-reduce of a parameter server.

          1   2                      N ranks, the root in the middle.
           \ /                       Scatter: the root sends each rank its own tensor.
        3 - 0 - 4                    Gather: the root receives each rank's tensor.
           / \                       Star all-reduce: n elements of every rank in, the sum out.
          5   6

N-1 messages pass through the root's one link, one after another. A tree sends no fewer bytes
through the root for scatter and gather, though it needs fewer rounds. For an all-reduce the star is
the naive algorithm, with which the others are compared: the root receives N-1 messages of n
elements and sends N-1, while each other rank sends one and receives one.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, Op
from lib.collectives import p2p
from lib.collectives.local import combiner, divide_if_average


def scatter(
    tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0, group: Group = None
) -> Tensor:
    """Fill each rank's `tensor` with its entry of rank `src`'s `scatter_list`; returns it.

    tensor: this rank's part, any shape; parts may differ in size. scatter_list: N tensors on `src`,
    None elsewhere (`full.tensor_split(N)` makes such a list). Sends: N-1 messages from `src`.
    Raises ValueError on `src` if the list does not have N tensors, or if its own entry differs from
    `tensor` in shape.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    p2p.check_rank("the root is", src, world_size)
    if rank != src:
        return p2p.recv(tensor, src, group)
    parts = _checked("scatter_list", scatter_list, tensor, rank, world_size)
    tensor.detach().copy_(parts[rank])
    p2p.exchange([(part, to) for to, part in enumerate(parts) if to != rank], [], group)
    return tensor


def gather(
    tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, group: Group = None
) -> list[Tensor] | None:
    """Fill rank `dst`'s `gather_list` with every rank's `tensor`, in rank order; returns the list
    (None elsewhere).

    tensor: this rank's part; parts may differ in size. gather_list: N tensors to fill on `dst`,
    None elsewhere. Sends: N-1 messages to `dst`. Raises ValueError on `dst` if the list does not
    have N tensors, or if its own entry differs from `tensor` in shape.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    p2p.check_rank("the root is", dst, world_size)
    if rank != dst:
        p2p.send(tensor, dst, group)
        return None
    parts = _checked("gather_list", gather_list, tensor, rank, world_size)
    parts[rank].copy_(tensor.detach())
    p2p.exchange([], [(part, frm) for frm, part in enumerate(parts) if frm != rank], group)
    return gather_list


def star_all_reduce(tensor: Tensor, group: Group = None, op: Op = dist.ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the ranks of `group`, in place, at rank 0; returns it.

    Sends: N-1 messages to rank 0, which receives them one after another, and N-1 from it, which it
    posts at once; n elements each.
    Bit-identical on all ranks: rank 0 adds in rank order and sends copies.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    combine, x = combiner(op, tensor), tensor.detach()
    if rank == 0:
        received = torch.empty_like(x)
        for frm in range(1, world_size):
            p2p.recv(received, frm, group)
            combine(x, received, out=x)
        divide_if_average(x, op, world_size)
        p2p.exchange([(x, to) for to in range(1, world_size)], [], group)
    else:
        p2p.send(x, 0, group)
        p2p.recv(x, 0, group)
    return tensor


def _checked(name, parts, tensor, rank, world_size):
    """`parts`. Raises ValueError unless there is one for each rank and this rank's fits."""
    if parts is None or len(parts) != world_size:
        given = "nothing" if parts is None else f"{len(parts)} tensors"
        raise ValueError(
            f"{name}: the root, rank {rank}, needs one tensor for each of {world_size} ranks, got "
            f"{given}"
        )
    if parts[rank].shape != tensor.shape:
        raise ValueError(
            f"{name}[{rank}] has shape {tuple(parts[rank].shape)}, but rank {rank}'s tensor has "
            f"{tuple(tensor.shape)}"
        )
    return parts
