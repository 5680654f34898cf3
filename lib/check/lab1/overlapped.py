"""Lab 1, section 5: OverlappedDataParallel(module, group, all_reduce, capacity), buckets that leave
during backward.

Two models: the small one, and a chain of layers with a gate before each but the first
(lib/check/overlap.py).
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Setting, called, groups_and_control, in_step, seen
from lib.check.claims import claim, each, noted
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab1 import means, models
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.overlap import Alive, Gates, started_threads
from lib.check.traffic import astray, beside
from lib.data_parallel import bucketed, replicate

CHAIN, SMALL, NO_SYNC = "a chain of layers", "unused parameters", "no_sync"
TWO, OTHER, IDLE = "two models at once", "the other of two models", "rank 0 without a backward"
CASES = tuple(
    Setting(members, what=what, again=step)
    for members, what in (
        (GROUPS[0], CHAIN), *((members, SMALL) for members in GROUPS), (GROUPS[1], IDLE),
        (GROUPS[0], TWO),
        (ALONE, SMALL), (GROUPS[0], NO_SYNC),
    )
    for step in (0, 1)
)  # fmt: skip
SYNCED, MADE = CASES[:-2], "the wrapper is made"
MODELS = {CHAIN: models.Chain, OTHER: models.Chain, NO_SYNC: models.Chain}  # else the small one
CAPACITY = {CHAIN: 49, OTHER: 49, NO_SYNC: 49, SMALL: 21, IDLE: 21, TWO: 21}  # in float64 numbers
EARLIER = (
    "replicate.broadcast_parameters",
    "replicate.__init__",
    "bucketed.reduce_bucket",
    "background.start",
)
NOTHING = {
    "ok": False,
    "elements": [],
    "stray": None,
    "clash": None,
    "problem": None,
    "early": False,
}


def _model(case, seed):
    return MODELS.get(case.what, models.Small)(seed, models.FINE).to(backend.device())


def _shards(case, rank):
    """The micro-batches of this step; their losses are summed."""
    numbers = [0, 1, 2] if case.what == NO_SYNC and not case.again else [case.again]
    return [models.shard(rank, number) for number in numbers if (case.what, rank) != (IDLE, 0)]


def _is_libs(kind):
    """Is it one of lib's wrappers, or a child of one? (`Replicated` alone does nothing of
    this exercise.)"""
    classes = set(getattr(kind, "__mro__", ())) - {replicate.Replicated}
    return any(c.__module__.startswith("lib.data_parallel") for c in classes)


class Wrapped:
    """The answer's wrapper around one model of this rank, and what watches it.
    Steps follow one another."""

    def __init__(self, fn, group, control, case):
        self.case, self.rank, self.threads, self.gates = (
            case,
            dist.get_rank(control),
            started_threads(),
            None,
        )
        hold = lambda call: self.gates and self.gates.hold(call)
        self.recorder = Recorder(control, [case.members], before=hold, raises=False)
        self.module, self.alive, self.held = _model(case, self.rank), Alive(), 0
        self.alive.begin()
        self.libs, self.unlike, self.lacks = _is_libs(fn), None, []
        if not self.libs:
            made, capacity = replace(case, what=f"{case.what}, {MADE}"), 8 * CAPACITY[case.what]
            self.model = called(made, fn, self.module, group, self.recorder.all_reduce, capacity)
            names = ("average_gradients", "module", "no_sync")
            self.libs, self.lacks = (
                _is_libs(type(self.model)),
                [n for n in names if not hasattr(self.model, n)],
            )
            mine, first = self.module.state_dict(), _model(case, 0).state_dict()
            self.unlike = next(
                (name for name in first if not torch.equal(mine[name], first[name])), None
            )

    def losses(self, case):
        """Of each micro-batch in turn. ()"""
        for x, y, with_branch in _shards(case, self.rank):
            yield models.loss_of(
                self.model, (x.to(backend.device()), y.to(backend.device()), with_branch)
            )

    def step(self, case, losses):
        """One step, all micro-batches but the last inside no_sync. Returns what was seen."""
        for parameter in self.module.parameters():
            parameter.grad = None
        self.recorder.begin()
        gates = Gates(models.GATES, threads=self.threads)

        def backward_and_average():
            for _ in _shards(case, self.rank)[1:]:
                with self.model.no_sync():
                    next(losses).backward()
            alone = len(self.recorder.calls)
            if case.what == CHAIN or (case.what == NO_SYNC and case.again):
                self.gates, self.module.pass_one = gates, gates.pass_one
            for loss in losses:
                loss.backward()
            gates.end()
            self.model.average_gradients()
            return alone

        alone = called(case, backward_and_average)
        gates.over()
        self.recorder.end()
        self.gates, self.module.pass_one = None, lambda: None
        shards, make = (
            [_shards(case, r) for r in range(case.world_size)],
            lambda seed: _model(case, seed),
        )
        where, got = f"{case.name}: {case.rank(self.rank)}", models.gradients(self.module)
        parts = models.of_each_rank(shards, make=make)
        if (problem := models.wrong_gradient(where, self.rank, got, parts)) and problem.fact("own"):
            name = problem.facts["name"]
            problem.facts["divided"] = models.equal(
                got[name], parts[self.rank][name] / case.world_size
            )
        before, self.held = self.held, self.alive.look() if case.what == CHAIN else 0
        elements = [call.elements for call in self.recorder.calls]
        record = {"elements": elements, "sent_alone": elements[:alone], "problem": problem}
        record["grown"] = self.held - before if case.again else 0
        return (
            self.recorder.record()
            | record
            | {f: getattr(gates, f) for f in ("stuck", "early", "begun_in_time")}
        )


def _measure(fn):
    made = []

    def one(case, groups):
        if not case.again:
            whats = [case.what, OTHER] if case.what == TWO else [case.what]
            made[:] = [Wrapped(fn, *groups, replace(case, what=what)) for what in whats]
        mine = made[0]
        record = NOTHING | {"libs": mine.libs, "weights": mine.unlike, "lacks": mine.lacks}
        hopeless = (
            mine.libs
            or mine.unlike
            or [n for n in mine.lacks if case.what == NO_SYNC or n != "no_sync"]
        )
        if not mine.recorder.agreed(not hopeless):
            return record
        cases = [replace(case, what=wrapped.case.what) for wrapped in made]
        losses = [wrapped.losses(its) for wrapped, its in zip(made, cases, strict=True)]
        # of two models: first both forwards
        losses = [iter([*its]) for its in losses] if made[1:] else losses
        steps = [wrapped.step(*its) for wrapped, *its in zip(made, cases, losses, strict=True)]
        record |= {
            key: next((step[key] for step in steps if step[key]), steps[0][key]) for key in steps[0]
        }
        return record | {"ok": record["problem"] is None and record["stray"] is None}

    return in_step(CASES, groups_and_control, one, wire=dist.new_group())


def _weights(case, rank, record):
    if record["libs"]:
        return Problem("built-in", "the answer is lib's OverlappedDataParallel, or a child of it")
    if lacks := [name for name in record["lacks"] if name != "no_sync"]:
        return Problem(
            "attribute", f"{case.name}: the model has no {lacks[0]}, which later cells use"
        )
    text = f"{case.name}: {record['weights']} on {case.rank(rank)} is not rank 0's"
    return record["weights"] and Problem("weights", text)


def _early(case, rank, record):
    text = (
        f"{case.name}: {case.rank(rank)} came back from average_gradients() while an all-reduce "
        f"was under way"
    )
    return Problem("early", text, {"case": case}) if record["early"] else None


def _fit(runs):
    for _, case, records in seen(runs, SYNCED):
        for rank, record in enumerate(records):
            if problem := astray(f"{case.name}: {case.rank(rank)}", case, record):
                problem.facts["sent"] = [sum(one["elements"]) for one in records]
                return problem
    return None


def _given(runs):
    for run, case, records in seen(runs, SYNCED):
        for rank, record in enumerate(records):
            where = f"{case.name}: {case.rank(rank)}"
            if beside(run, case, where, rank, record):
                return Problem(
                    "another way",
                    f"{where} sent by an all_reduce that it was not given",
                    {"case": case},
                )
    return None


def _messages(case, rank, record):
    if case.world_size == 1 or case.what == TWO:
        return None
    got, sizes = (
        record["elements"],
        [p.numel() for p in _model(case, 0).parameters() if p.requires_grad],
    )
    where, facts = (
        f"{case.name}: {case.rank(rank)}",
        {"case": case, "elements": got, "sizes": sizes},
    )
    text, most = f"{where} sent messages of {got} elements\n", max(CAPACITY[case.what], *sizes)
    if sum(got) != sum(sizes):
        text += (
            f"That is {sum(got)}; the {len(sizes)} trained parameters have {sum(sizes)} elements."
        )
        return Problem("elements", text, facts)
    if max(got) > most or len(got) >= len(sizes):
        text += (
            f"Expected fewer messages than the {len(sizes)} parameters, none above {most} elements"
        )
        return Problem("messages", f"{text}: capacity={8 * CAPACITY[case.what]} bytes.", facts)
    text = (
        f"{where} holds {record['grown']} bytes more than after the step before, expected as many"
    )
    return Problem("memory", text, facts) if record["grown"] > 0 else None


def _overlap(case, rank, record):
    where = f"{case.name}: {case.rank(rank)}"
    if not record["begun_in_time"]:
        text = (
            f"{where} had started no all-reduce when only the first layer's gradients were still "
            f"missing"
        )
        text += f"\nIts messages, in elements: {record['elements']}"
        # planned from the first layer on
        return Problem("late", text, {"forward": record["elements"] == [41, 36, 49]})
    return (
        Problem("stuck", f"{where}: backward stood still until an all-reduce had ended")
        if record["stuck"]
        else None
    )


def _no_sync(case, rank, record):
    where = f"{case.name}: {case.rank(rank)}"
    if case.what != NO_SYNC:
        return None
    if "no_sync" in record["lacks"]:
        return Problem("no no_sync", f"{where}: the model has no method no_sync")
    if record["sent_alone"]:
        return Problem(
            "sent alone", f"{where} sent messages of {record['sent_alone']} elements inside no_sync"
        )
    if problem := astray(where, case, record) or record["problem"]:
        return Problem(
            "not accumulated",
            f"{problem.text}\nIn step 1, two micro-batches of three are in no_sync.",
        )
    text = f"{where} sent nothing during the backward of the step after no_sync"
    return None if record["begun_in_time"] else Problem("never back", text)


def _in(*whats, again=None):
    """Did the run fail, or the claim, in one of these cases?"""
    cases = [*CASES, *(replace(case, what=OTHER) for case in CASES if case.what == TWO)]
    return s.in_case(cases, lambda case: case.what in whats and again in (None, bool(case.again)))


EXERCISE = Exercise(
    name="OverlappedDataParallel", reference=bucketed.OverlappedDataParallel, measure=_measure,
    worlds=(WORLD,),
    may_call=(*MAY_CALL, *EARLIER),
    leaves_out={"generators": "it is given a module",
                "returned": "only forward returns, what the module does"},
    claims=(
        claim("rank 0's weights everywhere", 1, "parameters and buffers", each(CASES, _weights)),
        claim("the mean gradient everywhere", 6, f"{GROUPS_SAY}; tied, frozen, unused; 2 steps",
              each(SYNCED, _early), _fit, noted(SYNCED, "problem")),
        claim("buckets on the wire", 2, "every gradient once, at most `capacity` bytes a message",
              _given, each(SYNCED, _messages)),
        claim("sent before backward ends", 5, "the first bucket, while backward goes on",
              each(SYNCED, _overlap)),
        claim("no_sync", 6, "sends nothing; the next backward sends the sum",
              each(CASES, _no_sync)),
    ),
    hints=(
        s.BUILT_IN.saying(
            "build it yourself, of plan_buckets, parameter.register_post_accumulate_grad_hook, "
            "collectives.start."),
        Hint("weights not made equal", s.kind("weights"),
             "ranks that begin with different weights stay different: first "
             "broadcast_parameters(module, group)."),
        s.NARROW,
        Hint("another name", s.kind("attribute"),
             "later cells ask for model.module and model.average_gradients()."),
        Hint("no_sync still sends", s.either(s.kind("sent alone"),
            s.both(s.kind("raised"), _in(NO_SYNC))),
             "inside no_sync the hook must return at once. Set a flag on entry, look at it in the "
             "hook."),
        Hint("one state for all wrappers", s.both(s.kind("value", "raised", "clash", "group"),
            _in(TWO, OTHER)),
             "two wrappers are in use at once. What counts gradients and works belongs to self, "
             "not to the class."),
        Hint("left over from the step before",
             s.both(s.kind("value", "clash", "raised", "early"),
                    _in(CHAIN, SMALL, IDLE, again=True)),
             "right in the first step. What counts the missing gradients, and the list of started "
             "works, must begin anew in every step: reset them at the end of average_gradients()."),
        Hint("the hook comes before the gradient", s.both(s.refused("None"), _in(CHAIN)),
             ".grad is None, and the model uses every parameter: it is read too early. "
             "register_hook runs before .grad is written, register_post_accumulate_grad_hook "
             "after; and a bucket leaves with its *last* gradient."),
        Hint("a parameter without gradient", s.refused("None"),
             "a parameter that this rank did not use has .grad None. It contributes zeros, and "
             "gets the others' mean."),
        Hint("hooks on frozen parameters",
             lambda p: s.raised("RuntimeError")(p) and MADE in s.failed(p).case,
             "a frozen parameter has no gradient and takes no hook. Plan buckets of those with "
             "requires_grad only."),
        Hint("the group is not used", s.either(s.kind("group"), means.WORLD_SIZE.fits),
             "give `self.group` to all_reduce, and divide by dist.get_world_size(self.group)."),
        Hint("does not wait", s.kind("early"),
             "average_gradients() must wait for every bucket (work.wait()) before it returns, or "
             "the optimizer reads gradients that are still on their way."),
        Hint("zeros left out", lambda p: p.kind == "clash" and len(set(p.facts["sent"])) > 1,
             "ranks send different amounts. A rank that did not use a parameter sends zeros in its "
             "place, and every rank sends every bucket: average_gradients() starts those that have "
             "not left yet."),
        Hint("in the order of completion", s.kind("clash"),
             "ranks that use different parameters complete their buckets in different orders. "
             "Start bucket i only after bucket i-1, on every rank."),
        means.DIVIDED_TWICE,
        means.NOT_DIVIDED,
        Hint("copied back too early", s.kind("value", own=True, divided=True),
             "this is the rank's own gradient, divided: it was copied back before the sum came. "
             "First work.wait()."),
        Hint("what is left is not sent", s.either(s.kind("value", own=True),
            s.kind("value", absent=True)),
             "this gradient never left its rank: average_gradients() starts what is not complete "
             "when backward ends."),
        Hint("a bucket leaves too early", s.kind("value"),
             "the bucket left before this gradient was in it. It may leave only when the *last* of "
             "its gradients is ready; and what comes back goes to the places from which it was "
             "taken."),
        Hint("another all-reduce", s.kind("another way"),
             "send with self.all_reduce, the one that the wrapper was given: so your ring can "
             "carry your gradients."),
        Hint("sent twice, or frozen ones too", s.kind("elements"),
             "every gradient leaves once: average_gradients() starts only the buckets that have "
             "not left. module.parameters() names a tied parameter once; frozen ones have no "
             "gradient."),
        Hint("one message per parameter",
             lambda p: p.kind == "messages" and len(p.facts["elements"]) >= len(p.facts["sizes"]),
             "each gradient leaves by itself, and each message costs its latency. Wait until a "
             "whole bucket is ready."),
        Hint("more than `capacity`", s.kind("messages"),
             "use plan_buckets(parameters, capacity): one large bucket is complete only when "
             "backward ends."),
        Hint("kept from step to step", s.kind("memory"),
             "flat tensors of earlier steps are still alive: forget them at the end of "
             "average_gradients()."),
        Hint("buckets in the order of forward", s.kind("late", forward=True),
             "bucket 0 holds the first layer, whose gradient comes last: plan_buckets goes through "
             "them in reverse."),
        Hint("everything at the end", s.kind("late"),
             "the buckets leave when backward has ended. The hook of a bucket's last gradient must "
             "start it: collectives.start(self.all_reduce, flat, self.group)."),
        Hint("backward waits for the network", s.kind("stuck"),
             "the hook runs the all-reduce, or waits for it: collectives.start it, and wait in "
             "average_gradients()."),
        Hint("no_sync is missing", s.kind("no no_sync"),
             "write no_sync, a context manager (contextlib.contextmanager): it switches the hooks "
             "off, and on again."),
        Hint("no_sync counts", s.kind("not accumulated"),
             "gradients of micro-batches inside no_sync stay in .grad, and do not count as ready: "
             "the bucket leaves in the backward after it, with the sum."),
        Hint("no_sync for ever", s.kind("never back"),
             "when `with model.no_sync():` ends, the hooks must work again: switch the flag back "
             "after the yield."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
