"""What the checks of Lab 0's collectives have in common. An answer sends its messages itself, with
p2p or with dist. The ranks' logs therefore say which rank sent how much to which, and a run may
hang. The inputs are those of cases.py, whose values show which ranks they came from. The judge
`told` can therefore explain a wrong value, where the harness would only say "expected 425, got
405".
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
# Values are compared in float64, which does not hold the last bits of an int64. So the values
# modulo LOW are shown, too.
LOW = 2**20
EXCUSED = {
    "strided": "tensors are contiguous, and torch's sends take no others",
    "two at once": "a call returns when all its messages have arrived",
}
IN_PLACE = EXCUSED | dict.fromkeys(
    ("storage", "graph"), "the tensor holds the result; to return it, too, is a convenience"
)
PROBES = ("arguments", "storage", "changed later")
# facts of `read_sum`; if one of them holds, more than a factor is wrong with the sum
PARTS = ("absent", "doubled", "moved", "own")


def cases_of(of_group, *more):
    """The cases of every group, of_group(N) -> [(n, dtype, ...)], and `more` Cases, each after the
    others of its group. The subgroup comes after all other groups of several ranks, so an answer
    that first fails there has mixed up group ranks and global ranks."""
    found = [Case(ranks, *one) for ranks in GROUPS for one in of_group(len(ranks))]
    order = [*GROUPS, ALONE]
    return tuple(sorted([*found, *more], key=lambda case: order.index(case.members)))


# The cases of sums. In each group the size that N divides comes first, so that a mistake in the
# remainder is not taken for another one.
SUMS = cases_of(
    lambda N: [(2 * N,), (7, torch.int64)],
    Case(FOUR, 1), Case(FOUR, 1000), Case(FOUR, 0), Case(ALONE, 3),
)  # fmt: skip


def called(show, make, group, *args, **named):
    """Call the answer and return what it returns. A named argument that is None is not passed, so
    that its default is used."""
    named = {key: one for key, one in (named | {"group": group}).items() if one is not None}
    return show.run(make, *args, **named)


def result(show, name, tensor):
    """Show the tensor that holds the result, and keep it for the judge `told`."""
    mine = tensor.detach().clone() if torch.is_tensor(tensor) else None
    show.judged = mine, show.lib.judged[0] if show.lib else None
    low = mine is not None and mine.dtype == torch.int64
    show(name, {"": tensor, f"modulo {LOW}": tensor % LOW} if low else tensor)


def told(measure, name, explain):
    """A judge that finds a wrong value shown under this name, and explains it.

    explain: explain(case, rank, got, want) -> (text, facts). If the only fault is that the values
        were divided, the harness's own text is used.
    The Problem has these facts as well: rank; wrong, a list of all ranks with a wrong value; right
    on one rank, whether only one rank has the right value; divided, if the values were.
    """

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
    """For `told`: explains the first wrong element of a tensor whose elements show from which rank
    they are (cases.own).

    facts: source, the rank that the element is from, or None. Four facts follow from it: own (it is
    this rank), of the right rank (it is the expected one), displaced (it is another one), and
    unwritten (it is None, and the element is not just rounded). narrowed, if elements were rounded
    to a narrower type. reordered, if all elements are the expected ones in another order.
    """
    got, want = got.flatten(), want.flatten()
    at = int((got != want).nonzero()[0])
    x, y = two(want[at], got[at])
    source, right = owner(got[at], case.world_size), owner(want[at], case.world_size)
    nth = lambda value: round(value.item() / FINE.get(value.dtype, 1)) % 1000
    of = lambda value, rank: f"element {nth(value)} of rank {rank}'s tensor"
    text = f"{case.name}: {case.rank(rank)}, element {at}: expected {x}, got {y}"
    # only if the element belongs to no rank, because another rank's may be near by chance
    rounded = source is None and narrowed(got, want)
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
    """For `told`: explains a wrong full sum. facts: those of read_sum; finished, how many chunks
    are right; unchanged, whether it is still the rank's own tensor."""
    text, facts = read_sum(case, rank, got)
    chunks = zip(got.tensor_split(case.world_size), want.tensor_split(case.world_size), strict=True)
    facts["unchanged"] = torch.equal(got, part(rank, case.n, case.dtype))
    facts["finished"] = sum(torch.equal(mine, sum_) for mine, sum_ in chunks)
    return text, facts


def messages(cases, expected):
    """A judge: each rank sends the messages expected(case, rank), [(to, elements), ...], in any
    order. Messages without elements do not count."""

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
    """The judge `traffic.elements`, for a ring. It adds the fact "more rounds", which is true if
    some rank sends more messages than a ring has rounds."""
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
    """The hints of these sections of sentences/lab0.toml, in this order."""
    return hints("lab0", *sections, **{"a buffer of another dtype": s.another_dtype})


def hints_of_a_ring(exercise):
    """The hints of an exercise in which ranks send chunks to the right neighbour. The hints in
    "chunks" may rely on the size, because in each group a size that N divides comes first."""
    return hints_of("messages", "chunks", exercise, "unpaired", "rings")
