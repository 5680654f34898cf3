"""Prefetch: gather the next unit while this one computes.

    FSDP         gather 0 [ compute 0 ] gather 1 [ compute 1 ] gather 2 [ compute 2 ]
    prefetching  gather 0 [ compute 0 ][ compute 1 ][ compute 2 ]
                          [ gather 1 ] [ gather 2 ]

                 in backward: gather 1 during compute 2, gather 0 during compute 1

In backward two messages overlap with the compute of a unit: the all-gather of the next one's
weights, and the reduce-scatter of the previous one's gradients. The next unit's all-gather is
started before this unit's reduce-scatter (torch: BACKWARD_PRE), because the next unit cannot begin
without its weights, whereas the reduced gradients are not used until the step.

The price is memory: two units and the root are unsharded at a time, and the full gradients of two
units exist, because those of one are still being sent.

Sources: ZeRO-Infinity (Rajbhandari et al. 2021, section 6.2); PyTorch FSDP (Zhao et al. 2023,
section 3.3).

HSDP: shards inside a node, replicas across nodes (Zhao et al. 2023, section 3.2.2).

    node 0    shard 0   shard 1   shard 2   shard 3
                 |         |         |         |
    node 1    shard 0   shard 1   shard 2   shard 3

    a row     the S ranks of a node, `group`: gather and reduce-scatter, 3 (S-1)/S psi,
              over the fast links
    a column  R replicas of a shard, `replicas`: all-reduce of its gradient, 2 (R-1)/R psi/S,
              over the slow links

psi: padded parameters. FSDP over all S R ranks would send its 3 psi across nodes too, and wait for
the slow links before every unit. Here the nodes communicate only once per step, and each rank only
the gradient of its shard. The price is memory: a rank keeps 1/S of the model state, not 1/(S R).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lib import collectives
from lib.backend import Collective, Group
from lib.zero.fsdp import FSDP
from lib.zero.unit import Unit


# exercise: lab4.PrefetchingFSDP
class PrefetchingFSDP(FSDP):
    """FSDP with the same interface, whose communication runs on the communication thread and
    overlaps with compute.

    Do not use the group for anything else from forward to the end of `average_gradients`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gathers = {}  # {index of a unit: [work]}: all-gathers in flight
        self.reduce_scatters = []  # [(flat, work)]: reduce-scatters in flight, of one unit

    def prefetch(self, index: int) -> None:
        """Start to gather unit `index`, if there is such a unit, and it is neither unsharded nor
        being gathered."""
        if (
            0 <= index < len(self.units)
            and index not in self.gathers
            and not self.units[index].is_unsharded
        ):
            self.gathers[index] = start_unshard(self.units[index])

    def wait_for_unshard(self, index: int) -> None:
        """Return when unit `index` is unsharded, whether it was prefetched or not."""
        self.prefetch(index)
        for work in self.gathers.pop(index, []):
            work.wait()
        self.units[index].attach()

    def before_model(self) -> None:
        self.finish_communication()
        self.backward_will_come = torch.is_grad_enabled() or self.root.is_unsharded
        works = start_unshard(self.root)
        self.prefetch(0)
        for work in works:
            work.wait()
        self.root.attach()

    def after_model(self) -> None:
        if torch.is_grad_enabled():
            # backward begins where forward ended, so this gather overlaps with the loss
            self.prefetch(len(self.units) - 1)
        super().after_model()

    def before_forward(self, index: int) -> None:
        self.wait_for_unshard(index)
        self.prefetch(index + 1)

    def before_backward(self, index: int) -> None:
        self.wait_for_unshard(index)
        self.prefetch(index - 1)

    def after_backward(self, index: int) -> None:
        self.finish_reduce_scatters()  # of the previous unit: gradients of two units at most
        self.units[index].reshard()
        self.start_reduce_scatters(self.units[index])

    def start_reduce_scatters(self, unit: Unit) -> None:
        self.reduce_scatters += [
            (flat, collectives.start(unit.reduce_scatter, flat.flatten_gradients(), flat.group))
            for flat in unit.trained_flats
        ]

    def finish_reduce_scatters(self) -> None:
        for flat, work in self.reduce_scatters:
            flat.add_gradient(work.wait())
        self.reduce_scatters = []

    def average_gradients(self) -> None:
        """After each backward: finish the units that are left, and the root. Then the mean is in
        every shard's `.grad`."""
        for index in tuple(self.in_backward):
            self.leave_backward(index)
        self.root.reshard()
        self.start_reduce_scatters(self.root)
        self.finish_communication()

    def finish_communication(self) -> None:
        """Wait for all that is in flight, and reshard the units that were prefetched but not
        used."""
        self.finish_reduce_scatters()
        for index in tuple(self.gathers):
            self.wait_for_unshard(index)
            self.units[index].reshard()


def start_unshard(unit: Unit) -> list[Any]:
    """Start to gather a unit's parameters; returns the works. Call `unit.attach()` when all have
    ended."""
    unit.allocate()
    return [
        collectives.start(unit.all_gather, flat.to_gather(), flat.group, out=flat.full)
        for flat in unit.flats
    ]


class HSDP(PrefetchingFSDP):
    """PrefetchingFSDP over `group`, a node. It is used in the same way, with one more call per
    step, before clipping and the optimizer:

        hsdp.average_over_replicas()

    replicas: the group of the ranks that have this shard, one of each node. The values of its rank
    0 are broadcast. To clip, call clip_gradients(hsdp.shards, 1.0, [group]). Do not add the group
    of replicas, because replicas are equal, and each shard would be counted R times.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[nn.Module],
        group: Group,
        replicas: Group,
        all_reduce: Collective = collectives.all_reduce,
        **kwargs: Any,
    ) -> None:
        for tensor in [*module.parameters(), *module.buffers()]:
            collectives.broadcast(tensor.detach(), 0, replicas)
        super().__init__(module, units, group, **kwargs)
        self.replicas, self.all_reduce = replicas, all_reduce

    def average_over_replicas(self) -> None:
        """Average every shard's gradient over its replicas. Sends: an all-reduce of (padded/S,) per
        trained flat. Raises RuntimeError, before any message, for a shard without a gradient."""
        flats = [flat for flat in self.flats if flat.requires_grad]
        without = [flat for flat in flats if flat.shard.grad is None]
        if without:
            n_parameters, shape = len(without[0].slots), tuple(without[0].slots[0].shape)
            raise RuntimeError(
                f"{len(without)} of {len(flats)} trained shards have no gradient, the first of "
                f"them that of {n_parameters} parameters beginning with one of {shape}: call "
                "average_gradients() after each backward, and average_over_replicas() after the "
                "last one. For a unit that no rank has used, first set shard.grad to zeros"
            )
        for flat in flats:
            flat.shard.grad /= dist.get_world_size(self.replicas)  # type: ignore
            self.all_reduce(flat.shard.grad, self.replicas)
