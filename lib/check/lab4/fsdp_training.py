"""A training by an FSDP on a group of ranks, watched, against one process.

    events  gather 0 | forward 0 | free 0 | gather 1 | forward 1 | free 1 | ...
    rules   a unit that computes is unsharded, and as new as its shards; besides it there are
            `most` - 1 others at most

Where a unit that computes is sharded the training stops there: its parameters have no memory. In
the first case the bytes that are alive in every layer are counted, and compared with those of lib's
own.
"""

import torch
import torch.distributed as dist

from lib import ledger, zero
from lib.check.claims import compared, each
from lib.check.comm import MAY_CALL as WIRE
from lib.check.comm import Recorder
from lib.check.exercise import Problem
from lib.check.lab4 import fsdp_models as models
from lib.check.overlap import Alive
from lib.training.buckets import slots

WRAPPED, EVALUATION = "the model is wrapped", "evaluation"
PHASES = (*(f"backward {n + 1}" for n in range(2 * models.STEPS)), EVALUATION)
# What the ledger may call what an answer calls. Other collectives too: that they are not the given
# ones is a claim.
MAY_CALL = (
    *WIRE, "background.start", "zero1.gather_parameters", "flat.gather", "zero1.reduce_gradients",
    "flat.__init__", "fsdp.make_flats", "fsdp.__init__", "prefetch.__init__",
    "prefetch.start_unshard",
)  # fmt: skip


class Stop(Exception):
    """The training cannot go on."""


class WatchedUnit(zero.Unit):
    """lib's Unit, which tells `watch`."""

    watch = None

    @property
    def holds(self):
        """Has it memory for the full parameters?"""
        return any(flat.full.untyped_storage().nbytes() for flat in self.flats)

    def allocate(self):
        super().allocate()
        if self.watch:
            self.watch.allocated()

    def attach(self):
        super().attach()
        if self.watch:
            self.watch.stale.discard(self)

    def reshard(self):
        super().reshard()
        if self.watch:
            self.watch.freed(self)

    def reduce_gradients(self):
        if self.watch:
            self.watch.reduces(self)
        super().reduce_gradients()


class Watch:
    """What one rank's FSDP does with its units. broken: {claim: the first rule of it that was not
    kept}.

    most: units that may be unsharded at a time, besides the root; None: the units are the answer's,
    and are not watched. counted: bytes that are alive are counted, those that are made from here
    on.
    """

    def __init__(self, where, most=None, counted=False):
        self.where, self.most, self.alive = where, most, Alive() if counted else None
        if counted:
            self.alive.begin()
        self.step, self.evaluates = 0, False
        self.looks = []  # (index, way, bytes) where a layer began
        self.stale = set()  # units that are unsharded with weights of the step before
        self.late = set()  # units whose gradients were reduced while their weights were there
        self.broken = {}

    def watches(self, fsdp):
        """From now on."""
        self.fsdp, self.units = fsdp, {**dict(enumerate(fsdp.units)), "root": fsdp.root}
        for index, unit in enumerate(fsdp.units):
            fsdp.module.layers[index].at = lambda way, index=index: self.computes(way, index)
            unit.watch = fsdp.root.watch = self

    def note(self, claim, kind, text, **facts):
        when = "in an evaluation" if self.evaluates else f"step {self.step + 1}"
        self.broken.setdefault(claim, Problem(kind, f"{self.where}, {when}: {text}", facts))

    def allocated(self):
        held = [index for index, unit in enumerate(self.fsdp.units) if unit.holds]
        if len(held) > self.most:
            text = (
                f"units {', '.join(map(str, held))} have memory at a time, expected {self.most} at "
                f"most"
            )
            self.note("memory", "memory", f"{text}, and the root")

    def reduces(self, unit):
        """The gradients of a unit are about to be flattened and sent."""
        gradients = any(p.grad is not None for flat in unit.flats for p in flat.parameters)
        if unit.holds and gradients:
            self.late.add(unit)

    def freed(self, unit):
        self.stale.discard(unit)
        if unit in self.late:
            index = next(index for index, of in self.units.items() if of is unit)
            self.note(
                "memory",
                "weights wait",
                f"unit {index} was freed after its gradients had been reduced, so its full "
                "weights, its full gradients and their flat buffer were alive together",
            )
        self.late.discard(unit)

    def computes(self, way, index):
        """A layer's forward or backward begins."""
        if self.alive and not self.evaluates:
            self.looks.append((index, way, self.alive.look()))
        if self.most is None:
            return
        unit, facts = self.fsdp.units[index], {"way": way, "index": index}
        if not (unit.is_unsharded and unit.holds):
            self.note(
                "value",
                "not whole",
                f"the {way} of unit {index} began while it was sharded",
                **facts,
            )
            raise Stop
        if not self.fsdp.root.holds:
            self.note(
                "value", "root", f"the {way} of unit {index} began when the root had been freed"
            )
            raise Stop
        if unit in self.stale:
            self.note(
                "value",
                "stale",
                f"the {way} of unit {index} ran with the weights before the last step",
                **facts,
            )

    def stepped(self):
        self.step += 1
        if self.most:
            self.stale = {unit for unit in self.fsdp.units if unit.is_unsharded}

    def nothing_is_left(self):
        """Is every unit sharded again, and the root?"""
        left = [index for index, unit in self.units.items() if self.most and unit.holds]
        if left:
            self.note("memory", "left", f"in the end unit {left[0]} is still unsharded")

    def sent(self, calls, forwards):
        """A backward is over: was every unit gathered for it and for each forward, and
        everything reduced once?"""
        times = lambda op, elements: sum(
            call.op == op and call.elements == elements for call in calls
        )
        for index, unit in self.units.items():
            name, N = (
                "the root" if index == "root" else f"unit {index}",
                self.fsdp.flats[0].world_size,
            )
            got = sum(times("all_gather", flat.padded // N) for flat in unit.flats)
            want = len(unit.flats) * forwards * (1 if index == "root" else 2)
            if got != want:
                text = f"gathers of {name}'s flats: {got}, expected {want}"
                self.note("sent", "gathers", text, more=got > want)
        got = sum(call.elements for call in calls if call.op == "reduce_scatter")
        times_of = lambda index: 1 if index == "root" else forwards
        want = sum(
            times_of(index) * flat.padded
            for index, unit in self.units.items()
            for flat in unit.trained_flats
        )
        if got != want:
            text = (
                f"{got} elements were reduce-scattered, expected {want}: every padded gradient once"
            )
            self.note("sent", "reduced", text)


def section(case, phase):
    """The label of the ledger's section of what an answer does in this phase."""
    return f"{case.name}, {phase}"


def part(case, phase, recorder, fn, *args):
    """What fn(*args), the answer's, returns, in a section of its own; None where the ranks'
    calls did not fit."""
    ledger.mark(section(case, phase))
    try:
        return fn(*args)
    except Stop:
        return None
    except Exception:
        if recorder.clash is None:
            raise
        return None
    finally:
        recorder.end()
        ledger.mark("")


def trained(case, kind, groups, most=None, watch_type=Watch):
    """Up to the first step that is wrong on any rank: {"ok", "value", "memory", "sent", ...: None,
    or the Problem}."""
    # in the background memory comes and goes by itself
    counted = watch_type is Watch and case == models.CASES[0]
    record, looks = _trained(case, kind, groups, most, watch_type, counted)
    if record["ok"] and counted:
        _, libs = _trained(case, zero.FSDP, groups, None, Watch, counted)
        more = next(
            (pair for pair in zip(looks, libs, strict=True) if pair[0][2] > pair[1][2]), None
        )
        if more and "sent" not in record:  # what is sent too often is there too
            (index, way, got), (*_, right) = more
            text = (
                f"{case.name}: in the {way} of unit {index} {got} bytes are alive, expected "
                f"{right} at most"
            )
            record.setdefault("memory", Problem("alive", text, {"way": way, "index": index}))
    return record


def _trained(case, kind, groups, most, watch_type, counted):
    (group, control), models_after = groups, models.one_process(case)
    rank = dist.get_rank(control)
    recorder, watch = (
        Recorder(control, [case.members]),
        watch_type(f"{case.name}: {case.rank(rank)}", most, counted),
    )
    net = models.Net(seed=rank)  # the ranks' models differ: rank 0's counts
    given = (recorder.reduce_scatter, recorder.all_gather)
    fsdp, problem = part(case, WRAPPED, recorder, kind, net, net.layers, group, None, *given), None
    if recorder.agreed(fsdp is not None):
        watch.watches(fsdp)
        optimizer = case.optimizer(fsdp.groups)
        for step in range(models.STEPS):
            problem = _step(case, step, fsdp, optimizer, rank, recorder, watch, models_after[step])
            if not recorder.agreed(problem is None):
                break
        else:
            problem = _evaluated(case, net, recorder, watch)
    problem = problem or recorder.clash
    return recorder.record() | watch.broken | {
        "ok": recorder.agreed(problem is None),
        "value": problem,
    }, watch.looks


def _step(case, step, fsdp, optimizer, rank, recorder, watch, want):
    """One optimizer step; the Problem that it has, or None."""
    optimizer.zero_grad()
    net, where = fsdp.module, f"{watch.where}, step {step + 1}"
    batches = range(step * case.k, (step + 1) * case.k)

    def backward(together):
        (sum(models.loss_of(net, rank, number) for number in together) / case.k).backward()
        fsdp.average_gradients()

    for together in [batches] if case.what == models.TWICE else [[number] for number in batches]:
        begun = len(recorder.calls)
        part(case, f"backward {together[-1] + 1}", recorder, backward, together)
        problem = recorder.clash or watch.broken.get("value")
        left = next((name for name, p in net.named_parameters() if p.grad is not None), None)
        if left and not problem:
            problem = Problem(
                "unreduced", f"{where}: {left} still has its gradient after average_gradients()"
            )
        if not recorder.agreed(problem is None):
            return problem
        watch.sent(recorder.calls[begun:], len(together))
        watch.nothing_is_left()
    optimizer.step()
    watch.stepped()
    problem = None
    for name, got in whole_parameters(
        fsdp, recorder.control
    ).items():  # on all ranks, whatever one has found
        problem = problem or compared(f"{where}: {name}", got, want[name])
    return problem


def _evaluated(case, net, recorder, watch):
    """A forward without a graph, after the last step: the Problem that it has, or None."""
    x, _, with_branch = models.batch(0, 0)
    alone, watch.evaluates = models.Net(seed=0), True
    alone.load_state_dict(models.one_process(case)[-1])
    with torch.no_grad():
        want = alone(x, with_branch)
        got = part(case, EVALUATION, recorder, net, x, with_branch)
    problem = recorder.clash or watch.broken.get("value")
    watch.nothing_is_left()
    return problem or compared(f"{watch.where}: the output after {models.STEPS} steps", got, want)


def whole_parameters(fsdp, control):
    """{name: parameter}, from all ranks' shards."""
    names, found = {p: name for name, p in fsdp.module.named_parameters()}, {}
    for flat in fsdp.flats:
        shards = [torch.empty_like(flat.shard) for _ in range(dist.get_world_size(control))]
        dist.all_gather(shards, flat.shard.detach(), group=control)
        pieces = slots(torch.cat(shards)[: flat.n].detach(), flat.slots)
        found |= {names[p]: piece for p, piece in zip(flat.parameters, pieces, strict=True)}
    return found


def found(cases, name):
    """The judge of a Problem that a record has under this name."""
    return each(cases, lambda case, rank, record: record.get(name))
