"""One model on every rank: how the copies become equal, and what all wrappers have in common.

    rank 0   w = 0.3  --broadcast-->  0.3
    rank 1   w = 0.9                  0.3        equal once, and with equal gradients equal for ever
    rank 2   w = 0.1                  0.3

Buffers (the running mean of a batch norm) are no parameters: no gradient keeps them equal. Each rank's follow its own
shards, and they differ after one step. `broadcast_buffers` makes them rank 0's; do it before you evaluate or save.
(torch's DistributedDataParallel does it before every forward.) A batch norm is also where "the same as one process on
the whole batch" ends: it normalises by the statistics of the shard. A layer norm does not look at other examples.
"""

import contextlib

import torch
from torch import nn

from lib import collectives


# exercise: lab1.broadcast_parameters
@torch.no_grad()
def broadcast_parameters(module, group=None):
    """Give every rank of `group` rank 0's parameters and buffers, in place, frozen ones too, tied ones once.

    Sends: one tree broadcast per tensor, (N-1) n elements over all ranks.
    """
    for tensor in [*module.parameters(), *module.buffers()]:
        collectives.broadcast(tensor, 0, group)


@torch.no_grad()
def broadcast_buffers(module, group=None):
    """Give every rank of `group` rank 0's buffers, in place. Sends: one tree broadcast per buffer."""
    for tensor in module.buffers():
        collectives.broadcast(tensor, 0, group)


class Replicated(nn.Module):
    """`module` with rank 0's values on every rank of `group`; called, it calls `module`.

    all_reduce: all_reduce(tensor, group) sums in place over the ranks. Subclasses say what they reduce, and when.
    """

    def __init__(self, module, group=None, all_reduce=collectives.all_reduce):
        super().__init__()
        self.module, self.group, self.all_reduce = module, group, all_reduce
        broadcast_parameters(module, group)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def trained(self):
        """The parameters that have gradients, in the order of the forward pass. A tied one comes once."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def no_sync(self):
        """A context in which backward only accumulates gradients: none leaves this rank."""
        return contextlib.nullcontext()  # nothing leaves before `average_gradients` anyway

    def average_gradients(self):
        """Call it after backward, before the optimizer: every `.grad` becomes the mean over the ranks."""
        raise NotImplementedError
