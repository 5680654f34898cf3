"""Ring all-reduce for long tensors: in place, in segments, with every receive posted before its data is sent.

    plain       [ wire ][ add ][ wire ][ add ][ wire ][ add ]
    pipelined   [ wire 0 ][ wire 1 ][ wire 2 ][ wire 3 ]           segment 1 travels while segment 0 is added
                          [ add 0  ][ add 1  ][ add 2  ][ add 3 ]

Three things make the same bytes faster than in `ring.py`. A chunk is cut into segments of cost.SEGMENT bytes, small
enough to be still in the cache when they are added. The sums are made in the tensor itself: there is no second long
buffer, whose fresh pages would cost as much as the wire. And a send that finds its receive posted leaves at once.

Source: gloo's ring, which cuts chunks into segments of at most 1 MB for the first reason.
"""

from collections import deque

import torch
import torch.distributed as dist

from lib import backend
from lib.collectives import p2p
from lib.collectives.cost import segments
from lib.collectives.local import combiner, finish, line
from lib.collectives.ring import ring_all_reduce

AHEAD = 2  # messages under way in each direction


def pipelined_ring_all_reduce(tensor, group=None, op=dist.ReduceOp.SUM):
    """Reduce `tensor` over the ranks of `group`, in place; returns it.

    tensor: any shape, n elements, the same on every rank.
    Sends: (N-1) k messages while reducing, k segments a chunk, and N-1 while gathering, all to the right neighbour;
    2(N-1)n elements over all ranks.
    Bit-identical on all ranks: each chunk is finished on one rank and copied.
    """
    if tensor.is_cuda or backend.stream_ordered(group or dist.group.WORLD, tensor.device):
        return ring_all_reduce(tensor, group, op)  # NCCL's queue: a receive posted ahead would block the sends
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    combine = combiner(op, tensor)
    with line(tensor) as x:
        chunks = x.tensor_split(world_size)
        _reduce_scatter(chunks, rank, world_size, group, combine)
        finish(chunks[rank], op, world_size)
        _all_gather(chunks, rank, world_size, group)
    return tensor


def _reduce_scatter(chunks, rank, world_size, group, combine):
    """chunks[rank] becomes the total; the other chunks are left with partial sums."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    k = segments(chunks[0].numel() * chunks[0].element_size())
    parts = [chunk.tensor_split(k) for chunk in chunks]
    buffers = [torch.empty_like(parts[0][0]) for _ in range(AHEAD + 1)]  # two arrive while one is added
    jobs = [(step, part) for step in range(world_size - 1) for part in range(k)]  # in the order of the wire

    def receive(job):
        step, part = jobs[job]
        mine = parts[(rank - 2 - step) % world_size][part]
        buffer = buffers[job % len(buffers)][: len(mine)]
        return mine, buffer, p2p.post([], [(buffer, left)], group)

    def send(job):
        step, part = jobs[job]
        return p2p.post([(parts[(rank - 1 - step) % world_size][part], right)], [], group)

    inbound, outbound = deque(map(receive, range(min(AHEAD, len(jobs))))), []
    for job in range(len(jobs)):
        # What job s sends is what job s-k has added; no more than AHEAD under way.
        while len(outbound) < min(job + k, job + AHEAD, len(jobs)):
            outbound.append(send(len(outbound)))
        mine, buffer, pending = inbound.popleft()
        pending.wait()
        if job + AHEAD < len(jobs):
            inbound.append(receive(job + AHEAD))
        combine(mine, buffer, out=mine)
    for pending in outbound:
        pending.wait()


def _all_gather(chunks, rank, world_size, group):
    """Every rank's chunks[rank], finished, to its place on every rank."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    steps = range(world_size - 1)
    inbound = [p2p.post([], [(chunks[(rank - step - 1) % world_size], left)], group) for step in steps]
    outbound = []
    for step in steps:
        outbound.append(p2p.post([(chunks[(rank - step) % world_size], right)], [], group))
        inbound[step].wait()  # what comes in this step is what goes in the next
    for pending in outbound:
        pending.wait()
