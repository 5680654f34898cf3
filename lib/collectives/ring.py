"""Ring reduce-scatter, ring all-gather, and ring all-reduce, which is the first followed by the
second (Patarasuk & Yuan 2009).

    rank 0 -> rank 1 -> ... -> rank N-1 -> rank 0  N ranks, n elements, chunk c = tensor_split(N)[c]

What each rank holds, for N = 3. `a1` is rank 1's values of chunk a, (a1+a2) is a partial sum, and
an upper-case letter is a finished sum:

             start          round 1               round 2                  all-gather: 2 more rounds
    rank 0   a0 b0 c0       . (b2+b0) .           A = a1+a2+a0             A B C
    rank 1   a1 b1 c1       . . (c0+c1)           B = b2+b0+b1             A B C
    rank 2   a2 b2 c2       (a1+a2) . .           C = c0+c1+c2             A B C

Each pass has N-1 rounds. In each round every rank sends one chunk right and receives one from the
left, so over all ranks a pass sends exactly (N-1)n elements: about n per rank, however many ranks
there are.

In textbooks rank r begins with chunk r and ends with chunk (r+1) mod N. Here rank r begins one
chunk earlier, with r-1, and ends with chunk r, because that is what torch's reduce_scatter returns
and what all-gather begins with.

Each chunk is summed by one chain of ranks, in one order, and the result is copied, so all ranks end
with the same bits.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, Op
from lib.collectives import p2p
from lib.collectives.local import combiner, divide_if_average, flattened


# exercise: lab0.ring_all_reduce
def ring_all_reduce(tensor: Tensor, group: Group = None, op: Op = dist.ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the ranks of `group`, in place; returns it.

    tensor: any shape, n elements, the same on every rank.
    Sends: 2(N-1) rounds to the right neighbour; 2(N-1)n elements over all ranks.
    """
    with flattened(tensor) as x:
        ring_all_gather(ring_reduce_scatter(x, group, op), group, out=x)
    return tensor


# exercise: lab0.ring_reduce_scatter
def ring_reduce_scatter(tensor: Tensor, group: Group = None, op: Op = dist.ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the ranks of `group`; returns chunk r of the result on rank r. `tensor`
    is not changed.

    tensor: (n, ...), the same shape on every rank. Returned: (n/N, ...), rows tensor_split(N)[r]; N
    need not divide n. Sends: N-1 rounds, one chunk each to the right neighbour.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    combine = combiner(op, tensor)
    chunks = tensor.detach().contiguous().tensor_split(world_size)
    # one is received while the other is sent
    buffers = [torch.empty_like(chunks[0]) for _ in range(min(2, world_size))]

    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        received = p2p.send_recv(partial, right, left, group, out=buffers[step % 2][: len(mine)])
        # received is the sum over the ranks before this one, in ring order
        partial = combine(received, mine, out=received)
    if world_size == 1:
        partial = partial.clone()
    return divide_if_average(partial, op, world_size)  # no longer partial: all N ranks are in it


# exercise: lab0.ring_all_gather
def ring_all_gather(chunk: Tensor, group: Group = None, out: Tensor | None = None) -> Tensor:
    """Gather every rank's chunk, in rank order, on every rank; returns the full tensor.

    chunk: (rows, ...). out: (n, ...), where chunk r belongs at tensor_split(N)[r]. If it is None,
    all chunks must have the same size, and a new tensor (N * rows, ...) is returned. Sends: N-1
    rounds, one chunk each to the right neighbour; (N-1)n elements over all ranks. Raises ValueError
    if the shape of `chunk` is not that of this rank's chunk of `out`.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    if out is None:
        out = chunk.new_empty(world_size * chunk.shape[0], *chunk.shape[1:])
    chunks = out.detach().tensor_split(world_size)
    if chunk.shape != chunks[rank].shape:
        raise ValueError(
            f"rank {rank}'s chunk has shape {tuple(chunk.shape)}, its place in out "
            f"{tuple(chunks[rank].shape)}: out has {len(out)} rows over {world_size} ranks"
        )
    chunks[rank].copy_(chunk.detach())

    for step in range(world_size - 1):
        passed_on, coming = (
            chunks[(rank - step) % world_size],
            chunks[(rank - step - 1) % world_size],
        )
        p2p.send_recv(passed_on, right, left, group, out=coming)
    return out
