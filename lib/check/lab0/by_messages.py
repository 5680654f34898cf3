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
from lib.check.explain import narrowed, read_sum, rounded_words, two, who
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
    (text, facts). What is only divided is told in the harness's words. facts: rank; wrong, all
    ranks that have another value; right on one rank; divided."""

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
                if len(wrong) < len(records):
                    text += f"\nIt is wrong on {who(wrong)}, and right on the others."
                known = {"rank": rank, "wrong": wrong}
                known["right on one rank"] = len(wrong) == len(records) - 1
                problem = Problem("value", text, first.facts | known | facts)
                return with_trace(problem, runs, measure)
        return None

    return judge


def whose(case, rank, got, want):
    """`told` of tensors that hold what ranks own (cases.own), by the first wrong element. facts:
    source, the rank whose element it is; own, of the right rank, displaced, unwritten: if it is
    this rank's, another one of the right rank's, another rank's, or no rank's; reordered."""
    got, want = got.flatten(), want.flatten()
    at = int((got != want).nonzero()[0])
    x, y = two(want[at], got[at])
    source, right = owner(got[at], case.world_size), owner(want[at], case.world_size)
    nth = lambda value: round(value.item() / FINE.get(value.dtype, 1)) % 1000
    of = lambda value, rank: f"element {nth(value)} of rank {rank}'s tensor"
    text = f"{case.name}: {case.rank(rank)}, element {at}: expected {x}, got {y}"
    rounded = source is None and narrowed(got, want)  # another rank's element may be near by chance
    facts = {
        "narrowed": rounded,
        "source": source,
        "own": source == rank,
        "of the right rank": source == right,
        "displaced": source not in (None, right),
        "unwritten": source is None and not rounded,
        "reordered": torch.equal(got.sort().values, want.sort().values),
    }
    is_there = "no rank's" if source is None else of(got[at], source)
    why = f"It is {is_there}, expected {of(want[at], right)}."
    return f"{text}\n{rounded_words(case.dtype) if rounded else why}", facts


def sum_of_chunks(case, rank, got, want):
    """`told` of a full sum. facts: read_sum's; finished, how many chunks are right; unchanged."""
    text, facts = read_sum(case, rank, got)
    chunks = zip(got.tensor_split(case.world_size), want.tensor_split(case.world_size), strict=True)
    facts["unchanged"] = torch.equal(got, part(rank, case.n, case.dtype))
    facts["finished"] = sum(torch.equal(mine, sum_) for mine, sum_ in chunks)
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
                    return Problem("elements", f"{text}\nexpected {_listed(want)}", {"case": case})
        return None

    return judge


def _listed(messages):
    return ", ".join(f"{n} elements to rank {to}" for to, n in messages) or "nothing"


def on_the_wire(cases, *formulas):
    """The judge `traffic.elements` of a ring. facts: more rounds, if a rank sends more messages
    than the expected elements have chunks."""
    elements = traffic.elements(cases, *formulas)

    def judge(runs):
        found = elements(runs)
        if found:
            case = found.facts["case"]
            rounds = max(map(len, traffic.sent(runs[0], case)))
            found.facts["more rounds"] = rounds * case.n > found.facts["expected"]
            found.trace = [found.trace, rounds]
        return found

    return judge


def hints_of(*sections):
    """The hints of these sections. What the messages tell comes before what the exercise can, and
    what a hang tells comes last."""
    return hints("lab0", *sections, **{"a buffer of another dtype": s.another_dtype})


def hints_of_a_ring(exercise):
    """The same for a function that sends chunks to the right neighbour. With chunks that N divides
    tried first, a mistake in the remainder is not taken for another."""
    return hints_of("messages", "chunks", exercise, "unpaired", "rings")
