"""Lab 1, DiLoCo: outer_step(parameters, start, velocity, lr, momentum, group, all_reduce), which
ends a round.

Three rounds in each case; between them each rank's parameters move on by numbers of its own.
"""

from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.calls import shares_memory
from lib.check.cases import Case, called, groups_and_control, in_step
from lib.check.claims import claim, compared, noted
from lib.check.comm import MAY_CALL, Clash, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.tensors import draw
from lib.check.traffic import fitting, only_calls
from lib.data_parallel.diloco import outer_step

SHAPES = ((3, 4), (5,), (), (2, 1, 2))
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
ROUNDS = 3
MEAN, NESTEROV = "lr 1, no momentum", "lr 0.7, momentum 0.9"
HOW = {MEAN: (1.0, 0.0), NESTEROV: (0.7, 0.9)}


@dataclass(frozen=True)
class Rounds(Case):
    """A case of which neither elements nor dtype tell anything."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.group, self.what]))


CASES = tuple(Rounds(members, what=how) for how in HOW for members in (*GROUPS, ALONE))
PLAIN = tuple(case for case in CASES if case.what == MEAN)


def _moved(rank, number):
    """By how much the inner steps of round `number` move this rank's parameters."""
    return [draw(100 * rank + 10 * number + i, *shape) for i, shape in enumerate(SHAPES)]


def _begin():
    return [draw(7 + i, *shape) for i, shape in enumerate(SHAPES)]


def _right(case, group):
    """[(start, velocity) after each round]: lib's own, on this rank alone, told what all ranks
    together give."""
    start, found = _begin(), []
    velocity = [torch.zeros_like(w) for w in start]
    for number in range(ROUNDS):
        parts = zip(*(_moved(rank, number) for rank in range(case.world_size)), strict=True)
        sums = iter([-sum(part) for part in parts])
        mine = [w + by for w, by in zip(start, _moved(dist.get_rank(group), number), strict=True)]
        outer_step(
            mine,
            start,
            velocity,
            *HOW[case.what],
            group,
            lambda tensor, group, sums=sums: tensor.copy_(next(sums)),
        )
        found.append(([w.clone() for w in start], [v.clone() for v in velocity]))
    return found


def _measure(fn):
    return in_step(
        CASES, groups_and_control, lambda case, groups: _record(fn, case, *groups), dist.new_group()
    )


def _record(fn, case, group, control):
    rank, device = dist.get_rank(control), backend.device()
    recorder, problem = Recorder(control, [case.members]), None
    start = [w.to(device) for w in _begin()]
    parameters = [torch.nn.Parameter(w.clone()) for w in start]
    velocity = [torch.zeros_like(w) for w in start]
    with suppress(Clash):  # it is in the record
        for number, right in enumerate(_right(case, group)):
            with torch.no_grad():
                for p, by in zip(parameters, _moved(rank, number), strict=True):
                    p += by.to(device)
            now = {"parameter": parameters, "start": start, "velocity": velocity}
            before = {
                what: [tensor.detach().clone() for tensor in tensors]
                for what, tensors in now.items()
            }
            called(
                case,
                fn,
                iter(parameters),
                start,
                velocity,
                *HOW[case.what],
                group,
                recorder.all_reduce,
            )
            problem = problem or _wrong(case, rank, number, now, before, right)
            if problem:
                problem.facts["silent"] = not recorder.calls
    recorder.end()
    record = recorder.record() | {"problem": problem}
    record["ok"] = (
        problem is None and record["stray"] is None and len(record["calls"]) == ROUNDS * len(SHAPES)
    )
    return record


def _wrong(case, rank, number, now, before, right):
    """The Problem of the first tensor that is wrong after this round; facts: what, unchanged, and
    as `compared`.

    Or of a parameter that shares its memory with `start`.

    now, before: {what: its tensors}; right: (start, velocity).
    """
    for what, want in (("parameter", right[0]), ("start", right[0]), ("velocity", right[1])):
        for i, (mine, its) in enumerate(zip(now[what], want, strict=True)):
            where = f"{case.name}: {case.rank(rank)}, round {number + 1}, {what} {i}"
            if problem := compared(where, mine.detach().cpu(), its):
                problem.facts |= {
                    "what": what,
                    "case": case,
                    "unchanged": torch.equal(mine, before[what][i]),
                }
                return problem
    for i, (p, w) in enumerate(zip(now["parameter"], now["start"], strict=True)):
        if shares_memory(p, w):
            text = (
                f"{case.name}: {case.rank(rank)}, round {number + 1}: parameter {i} and start {i} "
                f"are one tensor"
            )
            return Problem("one tensor", text, {"case": case})
    return None


EXERCISE = Exercise(
    name="outer_step", reference=outer_step, measure=_measure, bonus=True, worlds=(WORLD,),
    may_call=("outer_step._record", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the round is over: no two are under way",
        "empty rank": "every rank has all parameters",
        "returned": "it returns nothing: the caller's tensors hold the result",
        "memory": "a difference for each parameter, which the docstring leaves open",
    },
    claims=(
        claim("the mean of all ranks", 3, f"1 rank, {GROUPS_SAY}; lr 1, no momentum",
              fitting(CASES),
              noted(PLAIN, "problem")),
        claim("Nesterov's momentum", 3, "lr 0.7, momentum 0.9; three rounds",
              noted(CASES, "problem")),
        claim("one all-reduce of each parameter", 2,
              f"{sum(SIZES)} elements a round, by the all_reduce it was given",
              only_calls(CASES, lambda case, rank: [("all_reduce", "",
                  n) for n in SIZES * ROUNDS])),
    ),
    hints=(
        s.CALLED_LIB.saying("five lines for each parameter, and the all_reduce that it is given."),
        s.NO_GROUP,
        Hint("an op for all_reduce", s.raised("TypeError"),
             "all_reduce takes (tensor, group), sums in place, and need not return anything."),
        Hint("a parameter that learns", s.raised("RuntimeError"),
             "parameters want a gradient: change them under torch.no_grad(), p.copy_(w)."),
        s.NARROW,
        Hint("an iterator used up", s.kind("value", silent=True),
             "all_reduce was never called. `parameters` may be an iterator, which can be gone "
             "through once: list(parameters) first, or a single loop."),
        Hint("start and parameters in one tensor", s.kind("one tensor"),
             "p.data = w makes them one tensor, and the next inner steps change `start` too: copy, "
             "p.copy_(w)."),
        Hint("parameters not written back", s.kind("value", what="parameter", unchanged=True),
             "the model still has this rank's own numbers: after the outer step p.copy_(w), or the "
             "ranks part."),
        Hint("start stays behind", s.kind("value", what="start", unchanged=True),
             "the next round begins where this one ended: change `start` in place, w.sub_(...), "
             "and then p.copy_(w)."),
        Hint("the velocity", s.kind("value", what="velocity"),
             "v <- momentum v + D, in place, with D the mean over the ranks. It is not multiplied "
             "by lr."),
        Hint("not the outer step", s.kind("value"),
             "D = start - mean of the ranks' parameters; v <- momentum v + D; start <- start - lr "
             "(D + momentum v)."),
        s.NOT_GIVEN,
        Hint("not each parameter once", s.kind("calls", "clash", "mismatch"),
             "every rank calls all_reduce once for each parameter, in their order: not on start, "
             "not on the velocity, which are alike on all ranks already."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
