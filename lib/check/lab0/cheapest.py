"""Lab 0, section 6: cheapest(n_bytes, N, alpha, beta), which all-reduce takes the least time by the
alpha-beta model.

    few bytes   many messages cost          recursive doubling
    between                                 halving and doubling
    many bytes  bytes cost                  ring, where N is no power of two

An answer is judged by the time of what it names: several may take the same.
"""

from math import isclose

from lib.check import symptoms as s
from lib.check.claims import claim, is_number, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import NO_RANKS
from lib.collectives.cost import COST, cheapest

ALGORITHMS = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
# alpha, beta: processes of one machine; a fast network
SLOW, FAST = (20e-6, 1 / 1e9), (2e-6, 1 / 25e9)
ENDS, BETWEEN = (8, 64_000_000), (1000, 20_000, 100_000, 1_000_000)
CASES = [
    (n, N, *link) for N in (2, 3, 4, 8, 12, 64) for link in (SLOW, FAST) for n in ENDS + BETWEEN
]


def words(n_bytes, N, alpha, beta):
    """A case in words."""
    return (
        f"{n_bytes:,} bytes, {N} ranks, alpha {alpha * 1e6:g} us, beta {beta * 1e9:g} ns per byte"
    )


def _measure(fn):
    return {case: fn(*case) for case in CASES}


def _time(name, case):
    return COST[name].time(*case)


def _is_cheapest(sizes):
    @without_ranks
    def judge(seen):
        for case in CASES:
            got, best = seen[case], cheapest(*case)
            if case[0] not in sizes:
                continue
            if not isinstance(got, str) or got not in ALGORITHMS:
                text = f"{words(*case)}: expected a name such as {best!r}, got "
                shown = f"the function {got.__name__}" if callable(got) else f"{got!r:.60}"
                return Problem("returned", text + shown, {"got": "None" if got is None else got})
            if not isclose(_time(got, case), _time(best, case), rel_tol=1e-9):
                times = [f"{name} takes {_time(name, case) * 1e6:,.6g} us" for name in (got, best)]
                named = {
                    c: name
                    for c, name in seen.items()
                    if isinstance(name, str) and name in ALGORITHMS
                }
                return Problem("value", f"{words(*case)}: {', '.join(times)}", {"named": named})
        return None

    return judge


def _same_wherever(what):
    """Fits if the choice is the same in all cases that agree in what(case)."""

    def fits(problem):
        chosen = {}
        for case, name in problem.facts.get("named", {}).items():
            chosen.setdefault(what(*case), set()).add(name)
        return problem.kind == "value" and all(len(names) == 1 for names in chosen.values())

    return fits


def _dearest(problem):
    named = problem.facts.get("named", {}).items()
    dearest = lambda case: max(_time(name, case) for name in ALGORITHMS)
    return problem.kind == "value" and all(
        isclose(_time(name, case), dearest(case)) for case, name in named
    )


EXERCISE = Exercise(
    name="cheapest", reference=cheapest, measure=_measure, worlds=(), leaves_out=NO_RANKS,
    claims=(
        claim("8 bytes and 64 MB", 2, "2, 3, 4, 8, 12, 64 ranks; two links", _is_cheapest(ENDS)),
        claim("sizes between", 2, "1 kB, 20 kB, 100 kB, 1 MB", _is_cheapest(BETWEEN)),
    ),
    hints=(
        Hint("the dearest", _dearest,
             "that is the slowest of them: compare the times and take the least."),
        Hint("one for all", _same_wherever(lambda n, N, a, b: None),
             "you name the same algorithm for every size and number of ranks: compare the times."),
        Hint("by size alone", _same_wherever(lambda n, N, a, b: n),
             "your choice depends on the size alone. Where one overtakes the other depends on N, "
             "alpha and beta too: compare the five times."),
        Hint("whatever the size", _same_wherever(lambda n, N, a, b: (N, a, b)),
             "your choice does not depend on the size: few bytes want few messages, many bytes "
             "want few bytes sent."),
        Hint("whatever the link", _same_wherever(lambda n, N, a, b: (n, N)),
             "your choice does not depend on alpha and beta. On another link the crossing lies "
             "elsewhere."),
        Hint("not all compared", s.kind("value"),
             "compare the five times, all for the same n_bytes, N, alpha and beta, and take the "
             "least."),
        Hint("a time, not a name", lambda p: p.kind == "returned" and is_number(p.facts["got"]),
             "return the algorithm's name, not its time: min(times, key=times.get) of a dictionary "
             "gives the key."),
        s.NO_NUMBER,
        Hint("no such name", s.kind("returned"), f"the names are {', '.join(ALGORITHMS)}."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
