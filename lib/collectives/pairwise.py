"""All-to-all, pairwise: in round s rank r sends to rank r+s and receives from rank r-s (mod N).

    N = 4            to 0  to 1  to 2  to 3
    from rank 0       .     1     2     3        the round in which each block is sent;
    from rank 1       3     .     1     2        in every round each rank sends one block
    from rank 2       2     3     .     1        and receives one, so no link carries two
    from rank 3       1     2     3     .

All-to-all transposes a matrix of blocks: block j of rank i becomes block i of rank j. Nothing is
reduced and no block is forwarded, so no element is sent twice. In N-1 rounds a rank sends all of
its tensor but the block that it keeps.

Rounds put one message at a time on each link, but make every rank wait for its slowest partner in
each round. `all_to_all_at_once` posts all blocks together and waits once, which is better for
uneven blocks, and for ranks that do not call it at the same time.

Source: Thakur, Rabenseifner, Gropp 2005, section 4.3 (pairwise for long messages, all at once for
shorter ones).
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from lib.backend import Group
from lib.collectives import p2p


# exercise: lab0.all_to_all
def all_to_all(
    tensor: Tensor,
    group: Group = None,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
) -> Tensor:
    """Send rank j the j-th block of rows of `tensor`; returns the blocks received, in rank order,
    as one new tensor.

    tensor: (sum(send_counts), ...). Returned: (sum(recv_counts), ...).
    send_counts, recv_counts: rows to and from each of the N ranks; rank i's send_counts[j] is rank
    j's recv_counts[i]. Without them all blocks are equal and N must divide the rows.
    Sends: N-1 rounds. Raises ValueError if only one of the two is given, if one is not N numbers of
    0 or more, if send_counts do not sum to the rows of `tensor`, if the two differ in what this
    rank sends itself, or if there are no counts and N does not divide the rows.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    out, blocks, arrivals = _blocks(tensor, rank, world_size, send_counts, recv_counts)
    arrivals[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        p2p.send_recv(blocks[to], to, frm, group, out=arrivals[frm])
    return out


def all_to_all_at_once(
    tensor: Tensor,
    group: Group = None,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
) -> Tensor:
    """`all_to_all` in one round: the same blocks, all in flight together. Arguments, result and
    errors are the same."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    out, blocks, arrivals = _blocks(tensor, rank, world_size, send_counts, recv_counts)
    # not all to rank 0 first
    others = [(rank + step) % world_size for step in range(1, world_size)]
    pending = p2p.post([(blocks[r], r) for r in others], [(arrivals[r], r) for r in others], group)
    arrivals[rank].copy_(blocks[rank])
    pending.wait()
    return out


def _blocks(tensor, rank, world_size, send_counts, recv_counts):
    """(output tensor, block to send to each rank, view of the output that receives each rank's
    block)"""
    send_counts, recv_counts = _check_counts(
        len(tensor), send_counts, recv_counts, rank, world_size
    )
    out = tensor.new_empty(sum(recv_counts), *tensor.shape[1:])
    return out, tensor.detach().split(send_counts), out.split(recv_counts)


def _check_counts(rows, send_counts, recv_counts, rank, world_size):
    """(send_counts, recv_counts) as lists; raises ValueError for counts that do not fit."""
    if send_counts is None and recv_counts is None:
        if rows % world_size:
            raise ValueError(
                f"{rows} rows do not divide over {world_size} ranks: "
                f"pass send_counts and recv_counts"
            )
        return [rows // world_size] * world_size, [rows // world_size] * world_size
    if send_counts is None or recv_counts is None:
        raise ValueError(
            "pass both send_counts and recv_counts: a rank cannot guess what the others send it"
        )
    for name, counts in (("send_counts", send_counts), ("recv_counts", recv_counts)):
        if len(counts) != world_size or min(counts) < 0:
            raise ValueError(
                f"{name}={list(counts)}: one count, 0 or more, for each of {world_size} ranks"
            )
    if sum(send_counts) != rows:
        raise ValueError(
            f"send_counts={list(send_counts)} sum to {sum(send_counts)}, but tensor has {rows} rows"
        )
    if send_counts[rank] != recv_counts[rank]:
        raise ValueError(
            f"rank {rank} sends itself send_counts[{rank}]={send_counts[rank]} rows "
            f"but expects recv_counts[{rank}]={recv_counts[rank]} from itself"
        )
    return list(send_counts), list(recv_counts)
