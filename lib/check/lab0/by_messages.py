"""What the checks of Lab 0's collectives have in common. An answer sends its messages itself, with
p2p or with dist, so the ranks' logs say who sent how much to whom, and a run may hang.

Inputs are those of cases.py, whose sums tell which ranks are in them. A wrong value is therefore
told with its cause: `told` puts this in the place of the harness's "expected 425, got 405".
"""

from functools import partial

import torch

from lib.check import symptoms as s
from lib.check.cases import ALONE, GROUPS, Case, seen
from lib.check.causes import hints
from lib.check.exercise import Problem
from lib.check.shown import with_trace
from lib.check.side_by_side import SideBySide

F64, I64 = torch.float64, torch.int64
FOUR = GROUPS[2]
LOW = 2**20  # float64 holds all of an int64 but its last bits: they are shown by themselves
EXCUSED = {
    "strided": "tensors are contiguous, and torch's sends take no others",
    "two at once": "a call returns when all its messages have arrived",
}
IN_PLACE = EXCUSED | dict.fromkeys(
    ("storage", "graph"), "the tensor holds the result; to return it, too, is a convenience"
)
PROBES = ("arguments", "storage", "changed later")


def cases_of(of_group, *more):
    """The cases of every group, of_group(N) -> [(n, dtype, what)], and more Cases, each after those
    of its group; one rank alone last. A subgroup comes after all others: where an answer is wrong
    in it alone, it has mixed up whose ranks are counted."""
    found = [Case(ranks, *one) for ranks in GROUPS for one in of_group(len(ranks))]
    order = [*GROUPS, ALONE]
    return tuple(sorted([*found, *more], key=lambda case: order.index(case.members)))


def called(show, make, group, *args, **named):
    """What it returns. What is None is left to its default."""
    named = {key: one for key, one in (named | {"group": group}).items() if one is not None}
    return show.run(make, *args, **named)


def result(show, name, y):
    """Show what holds the result, which `told` looks at."""
    kept = y.detach().clone() if torch.is_tensor(y) else None
    show.judged = kept, show.lib.judged[0] if show.lib else None
    low = torch.is_tensor(y) and y.dtype == I64
    show(name, {"": y, f"modulo {LOW}": y % LOW} if low else y)


def told(measure, name, explain):
    """A judge: a wrong value of this name, with what explain(case, rank, got, want, wrong) says of
    it, (text, facts). wrong: the ranks that have a wrong one."""

    def judge(runs):
        for _, case, records in seen(runs, measure.cases):
            found = [record["wrong"].get(name) for record in records]
            wrong = [rank for rank, problem in enumerate(found) if problem]
            if not wrong:
                continue
            first = found[wrong[0]]
            if first.kind != "value":
                return None
            text, facts = explain(case, wrong[0], *records[wrong[0]]["judged"], wrong)
            facts = first.facts | {"rank": wrong[0], "wrong": wrong} | facts
            return with_trace(Problem("value", text, facts), runs, measure)
        return None

    return judge


def hints_of(exercise, cases, first=(), **more):
    """The exercise's hints, its own predicates between those that they share."""
    some = {
        "ranks of the world, not of the group": s.whose_ranks,
        "everyone sends first": s.all_wait_in("send"),
        "rounded on the way": s.fact("narrowed"),
        "a buffer of another dtype": s.another_dtype,
        "right only where there is something": s.nothing_there(cases).fits,
    }
    later = {
        "right only when N divides n": s.remainder(cases),
        "a receive without its send": s.NOT_PAIRED.fits,
        "nothing returned": s.kind("returned"),
    }
    return hints("lab0", exercise, "messages", **dict(first), **some, **more, **later)


measure = partial(SideBySide, excused=EXCUSED)
