"""A training run with FSDP on a group of ranks, in which the units are watched.

    events  gather 0 | forward 0 | free 0 | gather 1 | forward 1 | free 1 | ...
    rules   for example, a unit is unsharded while it computes, its weights are as new as its
            shards, and in the end all units are sharded

If a unit computes while it is sharded, the training stops there, because its parameters have no
memory. In the first case of fsdp.py, the live bytes are counted in every layer.
"""

from contextlib import suppress
from functools import lru_cache, partial

import torch

from lib import zero
from lib.backend.torch_private import without_dispatch_modes as unseen
from lib.check.comm import MAY_CALL as WIRE
from lib.check.lab4 import fsdp_models as models
from lib.training.buckets import slots

# What an answer may call, under the ledger's names. A claim checks that it uses the collectives it
# was given.
MAY_CALL = (
    *WIRE, "background.start", "zero1.gather_parameters", "flat.gather", "zero1.reduce_gradients",
    "flat.__init__", "fsdp.make_flats", "fsdp.__init__", "prefetch.__init__",
    "prefetch.start_unshard",
)  # fmt: skip
RULES = (
    "whole in forward", "hooked", "whole in backward", "the root is whole", "weights of this step",
    "weights freed first", "sharded in the end",
)  # fmt: skip
CALLED = ("leave_forward", "enter_backward", "leave_backward")
COMPUTED = (*RULES[:5], "gradients left", "parameters", "output")
MEMORY = (
    *RULES[5:], "units whole at a time", *(f"calls of {name}" for name in CALLED),
    "alive, in bytes, in forward", "alive, in bytes, in backward",
)  # fmt: skip
SENT = ("gathers of", "elements reduced")
EXCUSED = dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model") | {
    "once more": "nothing is returned; two models are trained side by side"
}


class Stop(Exception):
    """The training cannot continue."""


@lru_cache(1)
def with_libs_units(make):
    """The answer's class with lib's Units. It is cached, so all scripts use the same class."""
    return type("FSDP", (make,), {"unit_type": zero.Unit})


def holds(unit):
    """Does the unit have memory for its full parameters?"""
    return any(flat.full.untyped_storage().nbytes() for flat in unit.flats)


class Watch:
    """Watches what one rank's FSDP does with its units.

    broken: {rule: how it was broken, in words}.
    counted: whether the live bytes are counted in every layer.
    """

    rules: tuple[str, ...] = RULES

    def __init__(self, show, fsdp, counted=False):
        self.show, self.fsdp, self.counted = show, fsdp, counted
        self.units = {**{f"unit {i}": unit for i, unit in enumerate(fsdp.units)}, "root": fsdp.root}
        self.stale = set()  # units that are unsharded with weights of the step before
        self.late = set()  # units whose gradients were reduced before their weights were freed
        self.broken, self.most = {}, 0
        for index, layer in enumerate(fsdp.module.layers):
            layer.at = partial(self.computes, index)
        for unit in self.units.values():
            unit.allocate = partial(self.then, unit.allocate, self.allocated, unit)
            unit.attach = partial(self.then, unit.attach, self.attached, unit)
            unit.reshard = partial(self.then, unit.reshard, self.freed, unit)
            unit.reduce_gradients = partial(self.reduces, unit, unit.reduce_gradients)
        for name in CALLED:
            setattr(fsdp, name, show.counted(name, getattr(fsdp, name)))

    def then(self, method, told, unit):
        method()
        told(unit)

    def looks(self, f, *args):
        """Call f(*args), which calls the answer. A broken rule can end it early."""
        with suppress(Stop):
            return f(*args)

    def note(self, rule, text):
        self.broken.setdefault(rule, text)

    def name_of(self, unit):
        return next(name for name, one in self.units.items() if one is unit)

    def allocated(self, unit):
        self.most = max(self.most, sum(map(holds, self.fsdp.units)))

    def attached(self, unit):
        self.stale.discard(unit)

    def reduces(self, unit, method):
        gradients = any(p.grad is not None for flat in unit.flats for p in flat.parameters)
        if holds(unit) and gradients:
            self.late.add(unit)
        method()

    def freed(self, unit):
        self.stale.discard(unit)
        if unit in self.late:
            text = (
                f"{self.name_of(unit)} was freed after its gradients had been reduced, so its "
                "full weights, its full gradients and their flat buffer were alive together"
            )
            self.note("weights freed first", text)
        self.late.discard(unit)

    def computes(self, index, way):
        """A layer's forward or backward begins."""
        unit, what = self.fsdp.units[index], f"the {way} of unit {index}"
        if self.counted:
            alive = {f"of unit {index}": self.show.made.alive()}
            self.show(f"alive, in bytes, in {way}", alive, at_most=True)
        if not (unit.is_unsharded and holds(unit)):
            if way == "backward" and not self.show.counts["enter_backward"]:
                self.note("hooked", f"{what} began, and enter_backward had not been called")
            self.note(f"whole in {way}", f"{what} began while it was sharded")
            raise Stop
        if not holds(self.fsdp.root):
            self.note("the root is whole", f"{what} began when the root had been freed")
            raise Stop
        if unit in self.stale:
            text = f"{what} ran with the weights before the last step"
            self.note("weights of this step", text)

    def stepped(self):
        self.stale = {unit for unit in self.fsdp.units if unit.is_unsharded}

    def tell(self):
        """Show what was seen since the previous call of `tell`."""
        left = [name for name, unit in self.units.items() if holds(unit)]
        if left:
            self.note("sharded in the end", f"in the end {left[0]} is still unsharded")
        for rule in self.rules:
            self.show(rule, self.broken.get(rule, ""))
        self.show("units whole at a time", self.most, at_most=True)
        self.broken, self.most = {}, 0

    def sent(self, forwards):
        """Show what a backward pass and the forward passes before it have sent."""
        gathered = [call.elements for call in self.show.calls if call.op == "all_gather"]
        of = lambda unit: [flat.padded // flat.world_size for flat in unit.flats]
        times = {name: sum(map(gathered.count, of(unit))) for name, unit in self.units.items()}
        self.show("gathers of", times)
        reduced = [call.elements for call in self.show.calls if call.op == "reduce_scatter"]
        self.show("elements reduced", sum(reduced))


def trained(kind, case, group, show, watch=None):
    """A script: two steps, then a forward pass without a graph. watch: watch(show, fsdp) returns a
    Watch; None: nothing is watched."""
    # each rank begins with different weights, which wrapping has to replace with rank 0's
    net = models.Net(seed=show.place, by_name=case.what == models.SGD)
    ways = (show.reduce_scatter, show.all_gather)
    with show.during("the model is wrapped", section=True) as run:
        fsdp = run(kind, net, net.layers, group, None, *ways)
    watch = watch and watch(show, fsdp)
    looks = [watch.looks] if watch else []
    optimizer = case.optimizer(fsdp.groups)
    yield
    for step in range(models.STEPS):
        optimizer.zero_grad()
        for together in case.backwards(step):
            show.begin()
            with show.during(f"step {step + 1}, backward") as run:
                run(*looks, _backward, fsdp, case, show.place, together)
            if watch:
                watch.tell()
            left = [name for name, p in net.named_parameters() if p.grad is not None]
            show("gradients left", f".grad is still there of {', '.join(left)}" * bool(left))
            if show.wrong(*COMPUTED):
                return
            if watch:
                watch.sent(len(together))
        optimizer.step()
        if watch:
            watch.stepped()
        show("parameters", whole_parameters(fsdp, show))
        yield
        if show.wrong("parameters"):
            return
    x, _, with_branch = models.batch(0, 0)
    with torch.no_grad(), show.during("a forward without a graph") as run:
        out = run(*looks, net, x, with_branch)
    if watch:
        watch.tell()
    show("output", out)


def _backward(fsdp, case, rank, together):
    losses = [models.loss_of(fsdp.module, rank, number) for number in together]
    (sum(losses) / case.k).backward()
    fsdp.average_gradients()


def whole_parameters(fsdp, show):
    """{name: full parameter}, gathered from all ranks' shards. Their memory does not count as the
    answer's."""
    names, found = {p: name for name, p in fsdp.module.named_parameters()}, {}
    with unseen():
        for flat in fsdp.flats:
            whole = torch.cat(show.gathered(flat.shard))[: flat.n]
            pieces = slots(whole, flat.slots)
            found |= {names[p]: piece for p, piece in zip(flat.parameters, pieces, strict=True)}
    return found
