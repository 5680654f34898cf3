"""ZeRO-1: every rank updates its shard of the parameters, and keeps optimizer state for that shard
only.

    rank r  full gradients --reduce-scatter--> mean of shard r --update--> shard r of w
                                                                   ^            |
            Adam's m and v, fp32 masters: of shard r only ---------+            | all-gather
                                                                                v
                                                                             full w

In data parallelism N ranks compute the same update N times, each with the full optimizer state. An
all-reduce is a reduce-scatter followed by an all-gather. ZeRO-1 does the update between the two,
where each rank has its shard of the mean gradient, so it sends no more than an all-reduce does.
With N ranks and psi padded parameters this is 2 (N-1)/N psi elements per rank and step.

Source: ZeRO (Rajbhandari et al. 2020, section 5.1).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives
from lib.backend import Collective, Group
from lib.training.buckets import CAPACITY, plan_tapered_buckets
from lib.zero.flat import Flat, as_groups, parameter_groups, params_of
from lib.zero.guards import check_still_frozen


def reduce_gradients(flat: Flat, reduce_scatter: Collective = collectives.reduce_scatter) -> None:
    """Add the ranks' mean gradient of this rank's shard to `flat.shard.grad`, and free the
    parameters' gradients.

    Sends: one reduce-scatter of (padded,), (N-1)/N of it per rank.
    """
    buffer = flat.flatten_gradients()  # (padded,)    partial: g_r / N
    flat.add_gradient(reduce_scatter(buffer, flat.group))  # (padded/N,)  sum over r, the mean


def gather_parameters(flat: Flat, all_gather: Collective = collectives.all_gather) -> None:
    """All-gather the shards into `flat.full`, and so into the parameters. Sends: one all-gather of
    (padded/N,)."""
    flat.gather(all_gather)


# exercise: lab4.Zero1
class Zero1(torch.optim.Optimizer):
    """Any torch optimizer that works element by element, on shards.

        zero = Zero1(model.parameters(), lambda groups: torch.optim.AdamW(groups, lr=3e-4))
        loss.backward()                                  # k times, to accumulate
        zero.average_gradients()
        clip_gradients(zero.shards, 1.0, [None])         # optional; [None]: see below
        zero.step()
        zero.zero_grad()

    parameters: as torch's optimizers take them, groups too. Create a Zero1 only when the model is
    on its device, because its parameters become views of flats, with rank 0's values. Frozen
    parameters and buffers are left as they are. make_optimizer: called with the groups, with shards
    in place of parameters. Let it return `MasterShards(groups, ...)` for 16-bit parameters, and
    `OffloadedOptimizer(groups, ...)` to keep the state in the CPU's memory. reduce_scatter(buffer,
    group) -> (padded/N,) and all_gather(shard, group, out=full): as in `lib.collectives`. capacity:
    bytes of the parameters in one flat (torch's bucket_cap_mb, in bytes); the last flats to be
    ready are smaller, see `plan_tapered_buckets`.

    clip_gradients is lib.training.clip's; its last argument lists the groups that the shards are
    sharded over, and None is the group of all ranks. torch's learning-rate schedulers accept this
    optimizer like any other. `state_dict` covers only this rank's shards; `save_shards` writes a
    checkpoint that any number of ranks can load.
    """

    flat_type: Any = Flat  # a Zero1 of your own: class MyZero(Zero1): flat_type = flats_of(MyZero1)

    def __init__(
        self,
        parameters: Iterable[Any],
        make_optimizer: Callable[..., torch.optim.Optimizer],
        group: Group = None,
        capacity: int = CAPACITY,
        reduce_scatter: Collective = collectives.reduce_scatter,
        all_gather: Collective = collectives.all_gather,
    ) -> None:
        self.group, self.reduce_scatter, self.all_gather = group, reduce_scatter, all_gather
        parameters = as_groups(parameters)
        self.frozen = [p for p in params_of(parameters) if not p.requires_grad]
        groups = parameter_groups(parameters)
        flats = [
            [
                self.flat_type(bucket, group)
                for bucket in plan_tapered_buckets(g["params"], capacity)
            ]
            for g in groups
        ]
        self.flats = [flat for of_group in flats for flat in of_group]
        self.optimizer = make_optimizer(
            [
                {**g, "params": [flat.shard for flat in fs]}
                for g, fs in zip(groups, flats, strict=True)
            ]
        )
        # all flats in backward order: the order in which their gradients become ready and are sent
        self.in_order = in_order_of_backward(flats)

    @property
    def shards(self) -> list[Tensor]:
        """This rank's shards, one per flat, with the mean gradient in `.grad` after
        `average_gradients`."""
        return [flat.shard for flat in self.flats]

    @property
    def param_groups(self) -> list[dict]:  # type: ignore[override]
        """The parameter groups of the inner optimizer, which contain shards or their masters.
        Learning-rate schedulers set rates here, and lib.training.precision's LossScaler, which
        scales the loss so that small gradients survive in fp16, divides the gradients here."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """{shard or master: its state} of the torch optimizer that updates them."""
        return getattr(self.optimizer, "optimizer", self.optimizer).state

    def state_dict(self) -> dict:
        """The state_dict of the optimizer that `make_optimizer` returned. It covers this rank's
        shards, and includes the masters if there are any."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Load what the same rank saved in a run with the same number of ranks. If there are
        masters, the shards are recomputed from them, so the parameters are gathered again. Sends:
        an all-gather per flat, with or without masters."""
        self.optimizer.load_state_dict(state)
        self.gather_parameters()

    def average_gradients(self) -> None:
        """Average the gradients over the ranks; each rank gets its shard of the mean. Call it after
        backward. Sends: a reduce-scatter per flat."""
        check_still_frozen(self.frozen)
        for flat in self.in_order:
            reduce_gradients(flat, self.reduce_scatter)

    def step(self) -> None:  # type: ignore[override]
        """Update the shards, then gather all parameters on all ranks. Sends: an all-gather per
        flat.

        Raises RuntimeError for a gradient that was not averaged, because the step would ignore it.
        """
        for flat in self.flats:
            for parameter in flat.parameters:
                if parameter.grad is not None:
                    raise RuntimeError(
                        f"a {tuple(parameter.shape)} parameter has a gradient that was not "
                        f"averaged: call average_gradients() between backward and step()"
                    )
        self.optimizer.step()
        self.gather_parameters()

    def gather_parameters(self) -> None:
        """Gather the parameters from all ranks' shards. `step` does this by itself; call it after
        you have loaded a checkpoint with `load_shards`."""
        for flat in self.flats:
            gather_parameters(flat, self.all_gather)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of parameters, shards and masters."""
        self.optimizer.zero_grad()
        for tensor in [
            *params_of([{"params": flat.parameters} for flat in self.flats]),
            *self.shards,
        ]:
            tensor.grad = None


def in_order_of_backward(flats):
    """The flats of all groups, [[flat, ...], ...], in one list, approximately in the order in which
    their gradients become ready.

    Within a group they are in order already. Flats of different groups are merged by the fraction
    of their group that backward has finished.
    """
    due = []
    for of_group in flats:
        done, total = 0, sum(flat.n for flat in of_group)
        for flat in of_group:
            done += flat.n
            due.append((done / total, len(due), flat))
    return [flat for *_, flat in sorted(due)]


class NoUpdate:
    """An optimizer that changes nothing, so that a Zero1's `step` only gathers the parameters."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.parameters = parameters

    def step(self) -> None:
        """Do nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing, because the optimizer of all flats clears the gradients."""


def flats_of(zero1: type) -> type:
    """The `flat_type` whose flats are instances of `zero1`, one for each bucket. They leave the
    update to the optimizer of all flats. For lib's own Zero1 or a subclass of it,
    this is its `flat_type`.

    zero1: a class with zero1(parameters, make_optimizer, group), shard, flatten_gradients(),
        add_gradient(shard) and step(), as in Lab 4.
    """
    if issubclass(zero1, Zero1):
        return zero1.flat_type

    class OneBucket(zero1):
        def __init__(self, parameters, group=None):
            super().__init__(parameters, NoUpdate, group)
            self.parameters, self.group = list(parameters), group
            self.n = sum(p.numel() for p in self.parameters)
            self.world_size = dist.get_world_size(group)
            self.padded = self.shard.numel() * self.world_size

        def gather(self, all_gather):
            self.all_gather = all_gather
            self.step()

    return OneBucket
