"""ZeRO-3, fully sharded data parallelism: a unit's parameters are unsharded only while they are
used.

    forward     unit 0: unshard, compute, reshard     unit 1: unshard, compute, reshard     ...
    backward    ...     unit 1: unshard, compute, reshard, reduce-scatter     unit 0: the same

    memory  all shards, the root's full parameters and gradients, and at most twice the parameters
            of one unit: its full weights and gradients, then its gradients and their flat buffer
    sent    gather + gather + reduce-scatter = 3 (N-1)/N psi elements per rank and step; the root: 2

A unit is resharded before its gradients are reduced, as in FSDP2. In the other order its full
weights, its full gradients and their flat buffer would be alive together, three times the unit.

The root has the parameters that belong to no unit or to several: in a GPT the last norm and the
embedding, which is also the head. The embedding is used at both ends of the model, so the root
stays unsharded from the beginning of forward to the end of backward.

psi: padded parameters. k micro-batches send k times as much, because a rank keeps neither full
weights nor full gradients between them.

Sources: ZeRO (Rajbhandari et al. 2020, section 5.3); PyTorch FSDP (Zhao et al. 2023).
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group
from lib.zero.flat import Flat, parameter_groups
from lib.zero.guards import guard_model
from lib.zero.unit import Unit, on_backward


# exercise: lab4.FSDP
class FSDP:
    """`module`, sharded over the ranks of `group`; calling it calls `module`.

        fsdp = FSDP(model, units=model.blocks)
        optimizer = torch.optim.AdamW(fsdp.groups, lr=3e-4)  # or MasterShards, for 16 bits
        model.loss(tokens, targets).backward()               # or fsdp(tokens)
        fsdp.average_gradients()                             # after every backward
        clip_gradients(fsdp.shards, 1.0, [None])             # optional; [None]: see below
        optimizer.step()
        optimizer.zero_grad()

    units: submodules in the order of the forward pass, none inside another. Shards accumulate
    gradients over several calls of average_gradients, one for each backward. parameters: parameter
    groups, as torch's optimizers take them; by default all that `module` trains, in one group. Rank
    0's values are broadcast, including those of buffers. To recompute activations, make
    lib.training.recompute.Recomputed(block) the unit: inside a recomputed module a unit would be
    gathered a third time. Every rank runs the same units in the same order. clip_gradients is
    lib.training.clip's; its last argument lists the groups that the shards are sharded over, and
    None is the group of all ranks.
    """

    unit_type, flat_type = Unit, Flat  # a Unit of your own: class MyFSDP(FSDP): unit_type = MyUnit

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[nn.Module],
        group: Group = None,
        parameters: Any = None,
        reduce_scatter: Collective = collectives.reduce_scatter,
        all_gather: Collective = collectives.all_gather,
    ) -> None:
        self.module, self.group, units = module, group, list(units)
        for buffer in module.buffers():
            collectives.broadcast(buffer, 0, group)
        groups = parameter_groups(module.parameters() if parameters is None else parameters)
        group_of = parameter_group_indices(module, groups)
        unit_parameters, root_parameters = split_units(module, units)
        make = lambda parameters: self.unit_type(
            make_flats(parameters, group_of, group, self.flat_type), all_gather, reduce_scatter
        )
        self.units, self.root = [make(ps) for ps in unit_parameters], make(root_parameters)
        flats = [flat for unit in [*self.units, self.root] for flat in unit.flats]
        # [the flats of parameter group 0, of group 1, ...]
        flats_of = [
            [flat for flat in flats if group_of.get(flat.parameters[0]) == i]
            for i in range(len(groups))
        ]
        self.groups = [
            {**g, "params": [f.shard for f in fs]} for g, fs in zip(groups, flats_of, strict=True)
        ]
        # in the order of the optimizer, then the frozen ones
        self.flats = [
            *(f for fs in flats_of for f in fs),
            *(f for f in flats if not f.requires_grad),
        ]
        self.in_backward = []  # units whose backward has begun and not ended
        guard_model(self, units)
        module.register_forward_pre_hook(lambda *_: self.before_model())
        module.register_forward_hook(lambda *_: self.after_model())
        for index, submodule in enumerate(units):
            submodule.register_forward_pre_hook(
                functools.partial(self.pre_forward, index), with_kwargs=True
            )
            submodule.register_forward_hook(functools.partial(self.post_forward, index))

    @property
    def shards(self) -> list[Tensor]:
        """This rank's trained shards, in the order of `groups`; `.grad` holds the mean after
        `average_gradients`."""
        return [flat.shard for flat in self.flats if flat.requires_grad]

    def __call__(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)

    # --- when each unit is unsharded; a subclass that prefetches overrides these

    def before_model(self) -> None:
        self.backward_will_come = torch.is_grad_enabled() or self.root.is_unsharded
        self.root.unshard()  # every time, because the optimizer may have stepped

    def after_model(self) -> None:
        if not self.backward_will_come:
            self.root.reshard()

    def before_forward(self, index: int) -> None:
        self.units[index].unshard()

    def after_forward(self, index: int) -> None:
        self.units[index].reshard()

    def before_backward(self, index: int) -> None:
        self.units[index].unshard()

    def after_backward(self, index: int) -> None:
        # the weights first, so that they are gone before the gradients' flat buffer is allocated
        self.units[index].reshard()
        self.units[index].reduce_gradients()

    def average_gradients(self) -> None:
        """After each backward: finish the units that are left, and the root. Then the mean is in
        every shard's `.grad`."""
        # The backward of a unit whose input needs no gradient, such as the first one, ends only
        # here.
        for index in tuple(self.in_backward):
            self.leave_backward(index)
        self.root.reshard()
        self.root.reduce_gradients()

    # --- the hooks, registered on the modules

    def pre_forward(self, index: int, submodule: nn.Module, inputs: Any, kwargs: Any) -> Any:
        """Forward pre-hook of unit `index`, which is about to be called with these arguments;
        returns the arguments to use."""
        self.before_forward(index)
        # backward reaches the inputs last, when it leaves the unit
        return on_backward(lambda: self.leave_backward(index), (inputs, kwargs))

    def post_forward(self, index: int, submodule: nn.Module, inputs: Any, output: Any) -> Any:
        """Forward hook of unit `index`, which has computed `output`; returns what its caller
        gets."""
        self.leave_forward(index)
        # backward reaches the output first, when it enters the unit
        return on_backward(lambda: self.enter_backward(index), output)

    def leave_forward(self, index: int) -> None:
        """Unit `index` has run forward. If its backward has begun, this was activation
        checkpointing rerunning it, so it stays unsharded."""
        if index not in self.in_backward:
            self.after_forward(index)

    def enter_backward(self, index: int) -> None:
        """Backward reaches unit `index`."""
        self.before_backward(index)
        self.in_backward.append(index)

    def leave_backward(self, index: int) -> None:
        """Backward has left unit `index`: the gradients of all its parameters are ready."""
        self.in_backward.remove(index)
        self.after_backward(index)

    @contextlib.contextmanager
    def unsharded(self) -> Iterator[nn.Module]:
        """A context in which `module` has full parameters, to save, inspect or change. When it
        ends, each rank keeps its shard of the changed values (FSDP's `summon_full_params`).

        Do not use it between forward and backward. Sends: an all-gather per flat.
        """
        for unit in [*self.units, self.root]:
            unit.unshard()
        try:
            yield self.module
            for flat in self.flats:
                flat.write_back()
        finally:
            for unit in [*self.units, self.root]:
                unit.reshard()


def parameter_group_indices(module, groups):
    """{parameter: index of its parameter group}. Raises ValueError for a trained parameter that is
    in no group."""
    group_of = {parameter: i for i, g in enumerate(groups) for parameter in g["params"]}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter not in group_of:
            raise ValueError(
                f"{name} is trained, but in no parameter group: add it to one, or freeze it"
            )
    return group_of


def split_units(module, units):
    """([[parameter, ...] of each unit], [those of the root]). The root has the parameters of no
    unit, and those of several units, which are tied."""
    n_units = Counter(parameter for unit in units for parameter in unit.parameters())
    of_units = [[p for p in unit.parameters() if n_units[p] == 1] for unit in units]
    return of_units, [p for p in module.parameters() if n_units[p] != 1]


def make_flats(parameters, group_of, group, flat_type=Flat):
    """Flats of these parameters: one for each dtype, device and parameter group. Frozen parameters
    are in flats of their own, because they are in no group."""
    same = {}
    for p in parameters:
        same.setdefault((p.dtype, p.device, group_of.get(p)), []).append(p)
    return [flat_type(ps, group) for ps in same.values()]
