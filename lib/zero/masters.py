"""Mixed precision over shards: each rank keeps fp32 master weights of its own shard only (Megatron:
main parameters).

    16 bits  shard of w --backward, reduce-scatter--> shard of g    shard of w --all-gather--> w
                                                         | copy             ^ cast
                                                         v                  |
    fp32                                              gradient --update--> master of the shard

A parameter takes 2 + 2 + 12 bytes: 2 for the 16-bit weight, 2 for its gradient, and 12 in the
optimizer, where master, momentum and variance have 4 each. ZeRO-1 divides the 12 by N, ZeRO-2 the
gradient's 2 as well, and ZeRO-3 all 16.

The optimizer also needs an fp32 gradient of the shard, 4/N bytes per parameter. grads_to_master
allocates it and frees the shard's 16-bit gradient of 2/N bytes, and zero_grad frees the fp32 one.
In between a rank needs 2/N bytes more, but by then backward has freed the activations.

Offload: masters and optimizer state in the CPU's memory, and the step on the CPU (Ren et al. 2021,
"ZeRO-Offload").

    GPU    shard of w, shard of g     2 + 2 bytes, /N where they are sharded
              ^          | gradient in
              | weight   v
    CPU    master, momentum, variance     12 bytes      update here

Every parameter of the shard crosses the bus twice a step: its gradient to the CPU, its weight back.
The GPU keeps 4 of 16 bytes. The update is cheap, a few operations per parameter whatever the batch,
so a slow processor can do it; forward and backward are not cheap and stay on the GPU. ZeRO and
offloading go well together, because each rank's CPU and bus handle only that rank's shard.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from lib.training.precision import MasterWeights
from lib.training.precision.master_weights import make_masters
from lib.zero.flat import params_of, with_params


class MasterShards(MasterWeights):
    """Any torch optimizer, on fp32 masters of 16-bit shards. For Zero1 and Zero2, let
    make_optimizer return one; for FSDP, make it yourself from the groups of shards:

        adamw = lambda masters: torch.optim.AdamW(masters, lr=3e-4)
        zero = Zero2(model.parameters(), lambda groups: MasterShards(groups, adamw))
        optimizer = MasterShards(fsdp.groups, adamw)

    groups: parameter groups of shards. make_optimizer: called with the same groups, with masters in
    place of shards. masters_of: masters_of(shards) -> a master of each, by default in fp32 on the
    shard's device; OffloadedOptimizer passes its own. A shard of 32 or 64 bits is its own master.
    Micro-batches are summed in 16 bits, unless you call grads_to_master() after each
    `average_gradients`; then clip `masters` instead of shards.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        make_optimizer: Callable[..., torch.optim.Optimizer],
        masters_of: Callable = make_masters,
    ) -> None:
        super().__init__(
            params_of(groups),
            lambda masters: make_optimizer(with_params(groups, masters)),
            masters_of,
        )

    def step(self) -> None:
        """Copy gradients that have not been copied yet to the masters, update the masters, and
        round them into the shards. Sends nothing."""
        self.grads_to_master()
        super().step()


class OffloadedOptimizer(MasterShards):
    """MasterShards with masters in the CPU's memory, for shards on any device and of any floating
    dtype. It is used in the same way.

    A master is a copy, in fp32 or wider. If all ranks share one machine, its memory holds the
    masters and optimizer state of all of them: N times 12/N bytes per parameter.
    """

    def __init__(
        self, groups: Iterable[Any], make_optimizer: Callable[..., torch.optim.Optimizer]
    ) -> None:
        super().__init__(groups, make_optimizer, copies_on_cpu)

    def step(self) -> None:
        """Copy the gradients to the CPU, update there, and copy the weights back. Sends nothing to
        other ranks."""
        with torch.device("cpu"):  # so that new optimizer state is allocated there
            super().step()


def copies_on_cpu(shards):
    """A copy of each shard in the CPU's memory, in fp32 or wider, for an optimizer."""
    wide = lambda shard: torch.promote_types(shard.dtype, torch.float32)
    return [shard.detach().to("cpu", wide(shard), copy=True).requires_grad_() for shard in shards]
