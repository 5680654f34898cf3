"""Offload: masters and optimizer state in the CPU's memory, and the step on the CPU (Ren et al. 2021, "ZeRO-Offload").

    GPU    shard of w, shard of g     2 + 2 bytes, /N where they are sharded
              ^          | gradient in
              | weight   v
    CPU    master, momentum, variance     12 bytes      update here

Every parameter of the shard crosses the bus twice a step: its gradient to the CPU, its weight back. The GPU keeps 4 of
16 bytes. The update is cheap, a few operations per parameter whatever the batch, so a slow processor can do it; forward
and backward are not. ZeRO makes the two fit together: N ranks bring N processors and N buses, each for its own shard.
"""

import torch

from lib.zero.groups import params_of, with_params


class OffloadedOptimizer:
    """Any torch optimizer on fp32 masters in the CPU's memory, for shards on any device. Used like MasterShards.

    groups: of shards of any floating dtype. make_optimizer: called with the groups, masters in place of shards; a
    master is a copy, in fp32 or wider.
    Where ranks share one machine, its memory holds all their masters: N shards of 12/N bytes.
    """

    def __init__(self, groups, make_optimizer):
        self.shards = params_of(groups)
        self.masters = [on_cpu(shard) for shard in self.shards]
        self.optimizer = make_optimizer(with_params(groups, self.masters))

    @property
    def param_groups(self):
        """The optimizer's, of masters."""
        return self.optimizer.param_groups

    @torch.no_grad()
    def copy_up(self):
        """Gradients in: move each shard's `.grad` to its master's, in fp32. Adds to what is there, as backward does."""
        for shard, master in zip(self.shards, self.masters, strict=True):
            if shard.grad is not None:
                gradient = shard.grad.to(master)
                # On one device and in one dtype, `to` copies nothing, and the shard forgets it: still one gradient.
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                shard.grad = None

    @torch.no_grad()
    def step(self):
        """Gradients in, the update on the CPU, weights back. Sends nothing to other ranks."""
        self.copy_up()
        with torch.device("cpu"):  # whatever state the optimizer makes now belongs there
            self.optimizer.step()
        for shard, master in zip(self.shards, self.masters, strict=True):
            shard.copy_(master)

    def zero_grad(self):
        """Forget the gradients of shards and masters."""
        for tensor in [*self.shards, *self.masters]:
            tensor.grad = None


def on_cpu(shard):
    """A copy of `shard` in the CPU's memory, in fp32 or wider, for an optimizer."""
    wide = torch.promote_types(shard.dtype, torch.float32)
    return shard.detach().to("cpu", wide, copy=True).requires_grad_()
