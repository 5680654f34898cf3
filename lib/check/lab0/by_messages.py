"""What the checks of Lab 0's collectives have in common. An answer sends its messages itself, with
p2p or with dist, so the ranks' logs say who sent how much to whom, and a run may hang.

Inputs are those of cases.py, whose values tell which ranks they came from. A wrong value is
therefore told with its cause: `told` gives more than the harness's "expected 425, got 405".
"""

from typing import NamedTuple

import torch

from lib.check import symptoms as s
from lib.check.cases import ALONE, GROUPS, Case, seen
from lib.check.causes import hints
from lib.check.exercise import Problem
from lib.check.explain import read_sum, who
from lib.check.shown import with_trace

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
    """The cases of every group, of_group(N) -> [(n, dtype, ...)], and more Cases, each after those
    of its group. The subgroup comes after all others that have several ranks: an answer that is
    wrong in it alone has mixed up whose ranks are counted."""
    found = [Case(ranks, *one) for ranks in GROUPS for one in of_group(len(ranks))]
    order = [*GROUPS, ALONE]
    return tuple(sorted([*found, *more], key=lambda case: order.index(case.members)))


# of sums: what N divides comes first, so that a mistake in the remainder is not taken for another
SUMS = cases_of(
    lambda N: [(2 * N,), (7, torch.int64)],
    Case(FOUR, 1), Case(FOUR, 1000), Case(FOUR, 0), Case(ALONE, 3),
)  # fmt: skip


def called(show, make, group, *args, **named):
    """What it returns. What is None is left to its default."""
    named = {key: one for key, one in (named | {"group": group}).items() if one is not None}
    return show.run(make, *args, **named)


def result(show, name, tensor, returned=None):
    """Show the tensor that holds the result, at which `told` looks."""
    copy = lambda x: x.detach().clone() if torch.is_tensor(x) else None
    show.judged = copy(tensor), show.lib.judged[0] if show.lib else None, copy(returned)
    low = torch.is_tensor(tensor) and tensor.dtype == torch.int64
    show(name, {"": tensor, f"modulo {LOW}": tensor % LOW} if low else tensor)


class Wrong(NamedTuple):
    """A wrong value: in which case, on which rank, and on which ranks there is another."""

    case: Case
    rank: int
    got: torch.Tensor
    want: torch.Tensor
    returned: torch.Tensor | None
    ranks: list[int]

    @property
    def where(self):
        return f"{self.case.name}: {self.case.rank(self.rank)}"

    @property
    def came_back(self):
        """Was the result returned, though the tensor that was to hold it does not?"""
        a, b = self.returned, self.want
        return a is not None and a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def told(measure, name, explain):
    """A judge: a wrong value of this name, with what explain(Wrong) says of it, (text, facts)."""

    def judge(runs):
        for _, case, records in seen(runs, measure.cases):
            found = [record["wrong"].get(name) for record in records]
            ranks = [rank for rank, problem in enumerate(found) if problem]
            if ranks:
                first, rank = found[ranks[0]], ranks[0]
                wrong = Wrong(case, rank, *records[rank]["judged"], ranks)
                if first.kind != "value" or wrong.got.dtype != wrong.want.dtype:
                    return None
                text, facts = explain(wrong)
                if first.fact("narrowed") and "narrowed" not in facts:
                    text = first.text
                facts = {"rank": rank, "wrong": ranks, "scale": first.fact("factor")} | facts
                return with_trace(Problem("value", text, first.facts | facts), runs, measure)
        return None

    return judge


def in_place_sum(wrong):
    """`told` of a sum that the caller's tensor is to hold. facts: read_sum's; in_place; finished,
    the chunks that are right; right, the ranks that have all of it."""
    text, facts = read_sum(wrong.case, wrong.rank, wrong.got)
    N = wrong.case.world_size
    chunks = zip(wrong.got.tensor_split(N), wrong.want.tensor_split(N), strict=True)
    facts["finished"] = [c for c, (mine, sum_) in enumerate(chunks) if torch.equal(mine, sum_)]
    facts["right"] = right = [rank for rank in range(N) if rank not in wrong.ranks]
    facts["in_place"] = not (wrong.came_back and facts["own"] and not facts["finished"])
    if not facts["in_place"]:
        return f"{wrong.where} returned the sum, but its tensor holds what it held before", facts
    if right:
        text += f"\nOnly {who(right)} {'has' if len(right) == 1 else 'have'} the sum everywhere."
    return text, facts


def divided(p):
    """Is it an N-th of the sum, or another part of it, in which every rank is once?"""
    scale, others = p.fact("scale"), ("absent", "doubled", "moved", "own", "narrowed")
    in_parts = scale and 0 < scale < 1 and not any(map(p.fact, others))
    return p.fact("divided") or in_parts


def of_chunks(cases):
    """Of functions that split a tensor. In each group what N divides comes before what it does
    not."""
    return {
        "right only where there is something": s.nothing_there(cases).fits,
        "right only when N divides n": s.remainder(cases),
    }


def of_rings(cases):
    """What the messages tell of a ring that is none."""
    return {
        "padded": s.kind("elements", padded=True),
        "the other way round": s.OTHER_WAY_ROUND.fits,
        "not a ring": s.kind("neighbours", "rounds"),
    }


FAMILIES = {"chunks": of_chunks, "rings": of_rings}


def hints_of(exercise, cases, *families, first=(), **more):
    """The exercise's hints. first: those of its predicates that are tried before the shared ones;
    more: those that are tried after."""
    shared = {
        "ranks of the world, not of the group": s.whose_ranks,
        "everyone sends first": s.all_wait_in("send"),
        "rounded on the way": s.fact("narrowed"),
        "a buffer of another dtype": s.another_dtype,
    }
    last = {"a receive without its send": s.NOT_PAIRED.fits, "nothing returned": s.kind("returned")}
    chunks, rings = (FAMILIES[one](cases) if one in families else {} for one in FAMILIES)
    tried = dict(first) | shared | chunks | more | last | rings
    return hints("lab0", exercise, "messages", *families, **tried)
