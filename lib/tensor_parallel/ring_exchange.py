"""Blocks that are sent around a ring while the ranks compute: the pattern that ring attention and
asynchronous TP share.

    ring_shift  step 0: compute on my block      step 1: on my left neighbour's    ...  step N-1
                while it is sent to the right    while that is sent to the right        no message

    ring_accumulate  a partial sum is sent around instead, while this rank computes its addend

The group has N ranks, and block r belongs to rank r. With a collective, a rank first communicates
and computes afterwards. Here N-1 of the N compute steps each overlap with a message, which is
hidden if the step takes longer than the message.

Source: Wang et al. 2023, "Overlap communication with dependent computation via decomposition in
large deep learning models": they decompose an all-gather or a reduce-scatter, and the matmul that
depends on it, into such steps ("collective matmul"). It is Megatron's `tp_comm_overlap`
(Transformer Engine's user buffers) and torch's async TP.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group
from lib.collectives import p2p, start


class RingTransfer:
    """A transfer in flight: it sends `block` to the right neighbour, and receives the left
    neighbour's block into `out`.

    The communication thread posts it, because over `slow_link` posting takes as long as the link
    does. Until `arrived()` has returned, do not change `block`, do not read `out`, and use the
    group only for another RingTransfer.
    """

    def __init__(self, block, out, group=None):
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        group = dist.group.WORLD if group is None else group
        self.block, self.out = block, out  # kept alive
        self.work = start(
            _post, block, (rank + 1) % world_size, out, (rank - 1) % world_size, group
        )

    def arrived(self):
        """Wait until the left neighbour's block has arrived, and return it."""
        self.work.wait().wait()
        return self.out


def _post(block, right, out, left, group):
    return p2p.post([(block, right)], [(out, left)], group)


def ring_shift(block: Tensor, shapes: Any, group: Group = None) -> Iterator:
    """Iterate over (r, block of rank r) for all N ranks, this rank's own first; while the caller
    computes, the next block is received.

    block: this rank's, contiguous. shapes[r]: the shape of rank r's; they may differ. Ask for the
    next block only when the work on this one is done, because asking waits for its arrival. Do not
    change a block. Sends: N-1 messages to the right neighbour, the blocks of all ranks but the
    right neighbour's own.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    for step in range(world_size):
        owner = (rank - step) % world_size
        if step == world_size - 1:  # every rank has received every block
            yield owner, block
            return
        passing = RingTransfer(block, block.new_empty(shapes[owner - 1]), group)
        yield owner, block
        block = passing.arrived()


def ring_accumulate(part: Callable[[int], Tensor], group: Group = None) -> Tensor:
    """Reduce-scatter of addends that are computed while partial sums are in flight; returns the sum
    of block r on rank r.

    part(c): this rank's addend of block c, contiguous and of the same shape on every rank; called
    once for each c. The sum of block c starts on rank c+1 and reaches rank c last. While it is sent
    to rank r, that rank computes its addend. Sends: N-1 messages to the right neighbour, the
    partial sums of all blocks but this rank's own.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    total = part((rank - 1) % world_size)  # partial: my addend alone
    for step in range(world_size - 1):
        c = (rank - 2 - step) % world_size  # the block whose sum comes next
        passing = RingTransfer(total, torch.empty_like(total), group)
        mine = part(c)
        total = passing.arrived() + mine  # partial: with this rank's addend
    return total
