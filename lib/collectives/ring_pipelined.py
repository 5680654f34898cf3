"""Ring all-reduce in two halves that take turns: one half is on the wire while the other is being added.

    plain       [ wire ][ add ][ wire ][ add ][ wire ][ add ]
    pipelined   [ wire a ][ wire b ][ wire a ][ wire b ]          the network is never idle
                          [ add a  ][ add b  ][ add a  ][ add b ]

The same bytes as `ring_all_reduce` in twice as many messages. It pays where the addition takes a notable part of the
time and a core is free to do it while the network works.

Source: gloo's ring, which cuts each rank's chunk into two segments for this reason.
"""

import torch
import torch.distributed as dist

from lib.collectives import p2p
from lib.collectives.local import combiner, finish, line
from lib.collectives.ring import ring_all_gather


def pipelined_ring_all_reduce(tensor, group=None, op=dist.ReduceOp.SUM):
    """Reduce `tensor` over the ranks of `group`, in place; returns it.

    tensor: any shape, n elements, the same on every rank.
    Sends: 4(N-1) messages a rank to the right neighbour; 2(N-1)n elements over all ranks.
    Bit-identical on all ranks: each chunk is finished on one rank and copied.
    """
    combine = combiner(op, tensor)
    with line(tensor) as x:
        halves = [_Half(half, group, combine) for half in x.tensor_split(2)]
        for half in halves:
            half.send_on()
        for _ in range(dist.get_world_size(group) - 1):
            for half in halves:  # the other half's messages travel meanwhile
                half.add()
                half.send_on()
        for half in halves:
            ring_all_gather(finish(half.partial, op, dist.get_world_size(group)), group, out=half.x)
    return tensor


class _Half:
    """The reduce-scatter of `ring.py` for one half of the tensor, cut open between its wire and its addition."""

    def __init__(self, x, group, combine):
        rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.right, self.left = (rank + 1) % self.world_size, (rank - 1) % self.world_size
        self.x, self.group, self.combine, self.rank, self.step = x, group, combine, rank, 0
        self.chunks = x.tensor_split(self.world_size)
        self.buffers = [torch.empty_like(self.chunks[0]) for _ in range(2)]
        self.partial = self.chunks[rank - 1]

    def send_on(self):
        """Begin to send what is summed so far and to receive what to add next; nothing after the last addition."""
        if self.step == self.world_size - 1:
            return
        self.mine = self.chunks[(self.rank - 2 - self.step) % self.world_size]
        self.received = self.buffers[self.step % 2][: len(self.mine)]
        self.pending = p2p.post([(self.partial, self.right)], [(self.received, self.left)], self.group)

    def add(self):
        self.pending.wait()
        self.partial = self.combine(self.received, self.mine, out=self.received)
        self.step += 1
