"""What the checks of Lab 0's collectives have in common. An answer sends its messages itself, with
p2p or with dist, so the ranks' logs say who sent how much to whom, and a run may hang.

Inputs are those of cases.py, whose values tell which ranks they came from. A wrong value is
therefore told with its cause: `told` gives more than the harness's "expected 425, got 405".
"""

import torch

from lib.check import symptoms as s
from lib.check import traffic
from lib.check.cases import ALONE, FINE, GROUPS, Case, owner, part, seen
from lib.check.causes import hints
from lib.check.exercise import Problem
from lib.check.explain import read_sum, two, who
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
PARTS = ("absent", "doubled", "moved", "own")  # facts of a sum that is more than divided


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


def result(show, name, tensor):
    """Show the tensor that holds the result, at which `told` looks."""
    mine = tensor.detach().clone() if torch.is_tensor(tensor) else None
    show.judged = mine, show.lib.judged[0] if show.lib else None
    low = mine is not None and mine.dtype == torch.int64
    show(name, {"": tensor, f"modulo {LOW}": tensor % LOW} if low else tensor)


def told(measure, name, explain):
    """A judge: a wrong value of this name, with what explain(case, rank, got, want) says of it,
    (text, facts). What is only rounded or divided is told in the harness's words. facts: rank;
    wrong, all ranks that have another value; divided."""

    def judge(runs):
        for _, case, records in seen(runs, measure.cases):
            wrong = [rank for rank, record in enumerate(records) if name in record["wrong"]]
            if wrong:
                rank, first = wrong[0], records[wrong[0]]["wrong"][name]
                got, want = records[rank]["judged"]
                if first.kind != "value" or got.dtype != want.dtype:
                    return None
                text, facts = explain(case, rank, got, want)
                scale = first.fact("factor")
                if scale and 0 < scale < 1 and not any(map(facts.get, PARTS)):
                    text, facts["divided"] = first.text, True
                if first.fact("narrowed") and "narrowed" not in facts:
                    text = first.text
                if len(wrong) < len(records):
                    text += f"\nIt is wrong on {who(wrong)}, and right on the others."
                facts = first.facts | {"rank": rank, "wrong": wrong} | facts
                return with_trace(Problem("value", text, facts), runs, measure)
        return None

    return judge


def whose(case, rank, got, want):
    """`told` of tensors that hold what ranks own (cases.own). facts: source and right, the ranks
    whose element is there and should be; owners, of all elements; reordered."""
    got, want = got.flatten(), want.flatten()
    at = int((got != want).nonzero()[0])
    x, y = two(want[at], got[at])
    owners = [owner(value, case.world_size) for value in got]
    source, right = owners[at], owner(want[at], case.world_size)
    of = lambda value, rank: f"element {_nth(value)} of rank {rank}'s tensor"
    is_there = "no rank's" if source is None else of(got[at], source)
    text = f"{case.name}: {case.rank(rank)}, element {at}: expected {x}, got {y}"
    facts = {"source": source, "right": right, "owners": owners}
    facts["reordered"] = torch.equal(got.sort().values, want.sort().values)
    return f"{text}\nIt is {is_there}, expected {of(want[at], right)}.", facts


def _nth(value):
    return round(value.item() / FINE.get(value.dtype, 1)) % 1000


def sum_of_chunks(case, rank, got, want):
    """`told` of a full sum. facts: read_sum's; finished, the chunks that are right; unchanged."""
    text, facts = read_sum(case, rank, got)
    N = case.world_size
    chunks = zip(got.tensor_split(N), want.tensor_split(N), strict=True)
    facts["unchanged"] = torch.equal(got, part(rank, case.n, case.dtype))
    facts["finished"] = [c for c, (mine, sum_) in enumerate(chunks) if torch.equal(mine, sum_)]
    return text, facts


def messages(cases, expected):
    """A judge: each rank sends these, [(to, elements), ...], in any order. What has no elements
    does not count."""

    def judge(runs):
        for run, case, _ in seen(runs, cases):
            for rank, mine in enumerate(traffic.sent(run, case)):
                got, want = ([m for m in ms if m[1]] for ms in (mine, expected(case, rank)))
                if sorted(got) != sorted(want):
                    text = f"{case.name}: {case.rank(rank)} sent {_listed(got)}"
                    facts = {"case": case, "more": _elements(got) > _elements(want)}
                    return Problem("elements", f"{text}\nexpected {_listed(want)}", facts)
        return None

    return judge


def _listed(messages):
    return ", ".join(f"{n} elements to rank {to}" for to, n in messages) or "nothing"


def _elements(messages):
    return sum(n for _, n in messages)


def on_the_wire(cases, *formulas):
    """The judge `traffic.elements` of a ring. facts: rounds, the most messages of a rank."""
    elements = traffic.elements(cases, *formulas)

    def judge(runs):
        found = elements(runs)
        if found:
            found.facts["rounds"] = max(map(len, traffic.sent(runs[0], found.facts["case"])))
            found.trace = [found.trace, found.facts["rounds"]]
        return found

    return judge


def of_chunks(cases):
    """Of functions that split a tensor. What N divides comes before what it does not, and empty
    chunks come after both."""
    return {
        "right only where there is something": s.in_case(
            cases, lambda case: case.n < case.world_size, *s.SHAPES
        ),
        "right only when N divides n": s.remainder(cases),
    }


def of_rings(cases):
    """What the messages tell of a ring that is none."""
    too_many = lambda p: (
        p.kind == "elements" and p.facts["rounds"] * p.facts["case"].n > p.facts["expected"]
    )
    return {
        "padded": s.kind("elements", padded=True),
        "a round too many": too_many,
        "whole tensors in the ring": s.kind("elements"),
        "the other way round": s.other_way_round,
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
    last = {"a receive without its send": s.not_paired, "nothing returned": s.kind("returned")}
    chunks, rings = (FAMILIES[one](cases) if one in families else {} for one in FAMILIES)
    tried = dict(first) | shared | chunks | more | last | rings
    return hints("lab0", exercise, "messages", *families, **tried)
