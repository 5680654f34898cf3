"""An answer on ranks, forward and backward, beside one process; and two calls of it under way at
once.

    two at once  forward 0  forward 1  backward 0  backward 1  0 on all ranks,
                                                               1 on pairs, twice as large

What backward needs belongs to its call: whoever keeps the group on a class or in a global takes
that of call 1.

A Case's n is the number of elements of the one all-reduce that a call makes. Groups of two come
first: whoever writes it for two ranks is found out next; then whoever takes ranks of the world for
ranks of the group; then one rank alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed as dist

from lib import ledger
from lib.check import comm
from lib.check import symptoms as s
from lib.check.calls import shares_memory
from lib.check.cases import called, groups_and_control, in_step
from lib.check.claims import each, element, form, kept
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import fraction, shares
from lib.check.pure import noting_calls
from lib.check.traffic import fitting

WORLD = 4
GROUPS = ((0, 1), (0, 1, 2), tuple(range(WORLD)), (1, 3), (2,))
GROUPS_SAY = "1, 2, 3, 4 ranks, a subgroup"
ALL = GROUPS[2]
PAIRS = ((0, 1), (2, 3))
AT_ONCE, LARGER = "two at once", 2
# of the largest number expected, or of 1: some gradients are zero but for rounding
TOLERANCE = 1e-12
# Other collectives too: that they are not what it was given is a claim, with better words.
MAY_CALL = (*comm.MAY_CALL, "both_ways.all_reduce", "linear.forward")


@dataclass
class Setting:
    """One call on one rank: what the answer is given, and what one process makes of the whole.
    Tensors by name."""

    given: tuple
    arguments: dict  # to be left alone
    outputs: dict  # expected
    loss: Callable  # of the list of outputs
    gradients: dict  # expected; of `leaves` of the same name, else of `arguments`
    leaves: dict = field(default_factory=dict)
    terms: dict = field(default_factory=dict)  # of which ranks' terms is a wrong tensor the sum?
    read: Callable = lambda returned: [returned]  # the list of outputs, or a Problem
    after: Callable = lambda: None  # what else is wrong afterwards: a Problem, or None


def in_place(recorder):
    """The all_reduce that an answer is given: it returns nothing, as torch's does."""

    def all_reduce(tensor, group=None, op=dist.ReduceOp.SUM):
        recorder.all_reduce(tensor, group, op)

    return all_reduce


def measure(fn, libs, cases, make, start, build=None):
    """A measure. make(case, rank) -> Setting; start(fn, setting, group, recorder) -> what the
    answer returns. build, called likewise: for a module, what is made of all calls before the first
    begins.

    A record: forward, backward, after, a Problem or None each; changed, shared, kept as in
    calls.py; a Recorder's. libs: lib's own function, which an answer does not call.
    """
    held = []

    def one(case, groups):
        rank, control = case.members.index(dist.get_rank()), groups[1]
        calls = _calls(case, rank, make, groups)
        recorder = comm.Recorder(
            control, [case.members, *PAIRS] if len(calls) > 1 else [case.members]
        )
        before = [
            {name: t.detach().clone() for name, t in setting.arguments.items()}
            for _, setting, _ in calls
        ]
        record = dict.fromkeys(("forward", "backward", "after")) | {
            "changed": [],
            "shared": [],
            "kept": True,
        }

        def forward():
            args = [(fn, setting, group, recorder) for _, setting, group in calls]
            for each_call in args if build else ():
                build(*each_call)
            return [start(*each_call) for each_call in args]

        with noting_calls(libs) as used:
            returned = _run(case, recorder, "forward", forward) or ()
        outputs = [
            out if isinstance(out, Problem) else call[1].read(out)
            for call, out in zip(calls, returned, strict=False)
        ]
        record["forward"] = _first(
            _wrong_outputs(*call[:2], ys) for call, ys in zip(calls, outputs, strict=False)
        )
        if used:
            text = f"{case.name}: the answer calls lib's {libs.__qualname__.split('.')[0]}"
            record["forward"] = Problem("built-in", text)
        fits = lambda: recorder.clash is None and recorder.stray is None
        record["ok"] = recorder.agreed(record["forward"] is None and fits())
        if record["ok"]:
            losses = [
                setting.loss(ys)
                for (_, setting, _), ys in zip(calls, outputs, strict=True)
                if setting.outputs
            ]
            _run(case, recorder, "backward", lambda: [loss.backward() for loss in losses])
            record["backward"] = (
                None if recorder.clash else _first(_wrong_gradient(*call[:2]) for call in calls)
            )
            record["ok"] = record["backward"] is None and fits()
            held.extend((record, y, y.detach().clone()) for ys in outputs for y in ys)
        for (_, setting, _), old, ys in zip(calls, before, outputs, strict=False):
            results = () if isinstance(ys, Problem) else ys
            record["changed"] += [
                name for name, t in setting.arguments.items() if not torch.equal(t, old[name])
            ]
            record["shared"] += [
                n for n, t in setting.arguments.items() if any(shares_memory(y, t) for y in results)
            ]
        record["after"] = (
            _first(setting.after() for _, setting, _ in calls) if record["ok"] else None
        )
        for problem in filter(None, (record["forward"], record["backward"], record["after"])):
            problem.facts = {"case": case, "rank": rank} | problem.facts
            problem.trace = problem.trace and [case.name, *problem.trace]
        sent = [call for call in recorder.calls if call.elements and len(call.ranks) > 1]
        record |= recorder.record() | {"calls": sent}
        return record

    records = in_step(cases, _groups, one, wire=dist.new_group())
    for record, y, before in held:
        record["kept"] = record["kept"] and torch.equal(y, before)
    return records


def _first(problems):
    return next(filter(None, problems), None)


def _calls(case, rank, make, groups):
    """[(where, in words; Setting; group), ...] of one call, or of two at once."""
    group, _, pair = groups
    calls = [(f"{case.name}: {case.rank(rank)}", make(case, rank), group)]
    if case.what == AT_ONCE:
        ranks = next(ranks for ranks in PAIRS if dist.get_rank() in ranks)
        setting = make(
            replace(case, members=ranks, n=LARGER * case.n), ranks.index(dist.get_rank())
        )
        calls.append((f"{case.name}, the second: {case.rank(rank)}", setting, pair))
    return calls


def _groups(cases):
    pairs = [dist.new_group(pair) for pair in PAIRS]
    return {
        case: (*both, pairs[dist.get_rank() // 2])
        for case, both in groups_and_control(cases).items()
    }


def _run(case, recorder, phase, run):
    recorder.phase, out = phase, None
    try:
        out = called(case, run)
    except comm.Clash:
        ledger.mark("")
    recorder.end()
    return out


def _wrong_outputs(where, setting, outputs):
    if isinstance(outputs, Problem):
        outputs.text = f"{where} {outputs.text}"
        return outputs
    for (name, want), y in zip(setting.outputs.items(), outputs, strict=True):
        found = form(where, y, want, name) or different(
            where, name, y.detach(), want, setting.terms.get(name)
        )
        if found is None and not y.requires_grad:
            text = f"{where}: {name} has no gradient: autograd does not know how it was made"
            found = Problem("no graph", text)
        if found:
            found.facts["of"] = name
            return found
    return None


def _wrong_gradient(where, setting):
    for name, want in setting.gradients.items():
        got, of = (setting.arguments | setting.leaves)[name].grad, f"{name}.grad"
        if got is None:
            return Problem("no graph", f"{where}: {of} is None", {"of": of})
        if found := different(where, of, got, want, setting.terms.get(of)):
            return found
    return None


def different(where, name, got, want, terms=None):
    """The Problem of a tensor of the right form with other numbers. facts: of, narrowed, shares
    {rank: how much}."""
    most = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    close = lambda a, b, tolerance=TOLERANCE: (a - b).abs() <= tolerance * most
    if close(got, want).all():
        return None
    problem, found = (
        element(f"{where}: {name}", got, want, close),
        shares(got, terms) if terms else None,
    )
    narrowed, wrong = bool(close(got, want, 1e-6).all()), got[~close(got, want)][:8]
    problem.facts |= {"of": name, "shares": found, "narrowed": narrowed}
    problem.trace = [name, narrowed, (wrong.round(decimals=6) + 0.0).tolist()]
    if found:
        problem.text += (
            f"\nIt is {' + '.join(f'{fraction(c)} x rank {r}' for r, c in found.items())}."
        )
    return problem


def seed(case):
    """Another one for each case, so that results of two cases are never alike."""
    return case.n + 1000 * len(case.what) + 10 * len(case.members)


def found(cases, what):
    """A judge: no rank has noted a Problem of this kind: "forward", "backward", "after"."""
    return each(cases, lambda case, rank, record: record[what])


def right(cases):
    """Judges: the calls fit together, and all that comes of them is right, forward and
    backward, and stays so."""
    return fitting(cases), found(cases, "forward"), found(cases, "backward"), kept(cases)


def once(phase):
    """For `only_calls`: one all-reduce of n elements in this phase; nothing where there is nobody
    or nothing to sum."""

    def expected(case, rank):
        sizes = [case.n, LARGER * case.n] if case.what == AT_ONCE else [case.n]
        return [("all_reduce", phase, n) for n in sizes if n and case.world_size > 1]

    return expected


def larger(p):
    """For hints: has the tensor more elements than it should?"""
    return p.kind == "form" and p.fact("numel", 0) > p.fact("case").n


def two_at_once(cases):
    return Hint("state shared by two calls",
                s.in_case(cases, lambda case: case.what == AT_ONCE, "clash", "raised", *s.SHAPES),
                "one call alone was right. Here two are under way, on different groups, before the "
                "first goes backward: what backward needs belongs to its call, in ctx or in a "
                "closure, and not on a class or in a global.")  # fmt: skip


LEAVES_OUT = {
    "generators": "no argument is an iterator",
    "memory": "a call keeps its group, and no tensor of its own",
}


def exercise(reference, cases, make, start, claims, hints, may_call=MAY_CALL):
    """Of one function, measured as above."""
    run = partial(measure, libs=reference, cases=cases, make=make, start=start)
    return Exercise(
        name=reference.__name__, reference=reference, measure=run, worlds=(WORLD,),
        may_call=may_call,
        leaves_out=LEAVES_OUT, claims=claims, hints=hints,
    )  # fmt: skip
