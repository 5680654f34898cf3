"""Lab 4, section 14: owners(costs, N), the rank that owns each matrix.

A pure function. The best loads are stored, found by a search over all placements; within 5 % of
them is right, and any placement that is.
"""

from functools import partial

from lib.check import pure
from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.zero import muon

# what a square matrix of a layer costs; one that is four times as long costs three times as much
D = 6


def _gpt(layers, kv=D):
    return (D, kv, kv, D, 3 * D, 3 * D) * layers


# what it is: (costs in the order of the model, ranks, the best possible load of the rank with most)
SIZES = {
    "4 layers, 4 ranks": (_gpt(4), 4, 60),
    "4 layers, 3 ranks": (_gpt(4), 3, 84),
    "3 layers, 2 ranks": (_gpt(3), 2, 90),
    "12 layers, 16 ranks": (_gpt(12), 16, 48),
    "small keys and values, 8 layers, 4 ranks": (_gpt(8, 1), 4, 100),
    "small keys and values, 2 layers, 5 ranks": (_gpt(2, 1), 5, 24),
    "a large matrix last": ((10, 20, 30, 10, 20, 90), 2, 90),
    "more ranks than matrices": ((4, 9, 2), 5, 9),
    "one rank": ((3, 1, 2), 1, 6),
    "no matrices": ((), 3, 0),
}
CASES = [(costs, N) for costs, N, _ in SIZES.values()]
NAMES = {(costs, N): name for name, (costs, N, _) in SIZES.items()}
WITHIN = 1.05  # of the best


def _words(costs, N):
    return NAMES[costs, N]


def _given(costs, N):
    return [*costs], N


def _read(out, costs, N):
    """The ranks, as plain integers; the Problem of another form."""
    if problem := pure.iterator(out, "matrix {} has"):
        return problem
    if not isinstance(out, (list, tuple)):
        return Problem(
            "nothing" if out is None else "form", f"got {out!r:.60}, expected a list of ranks"
        )
    odd = next((x for x in out if isinstance(x, bool) or not hasattr(x, "__index__")), None)
    if odd is not None:
        return Problem(
            "form", f"{odd!r:.60} in the list is no rank: expected a whole number for each matrix"
        )
    return [x.__index__() for x in out]


def _each_once(owner, costs, N):
    if len(owner) != len(costs):
        return Problem("number", f"{len(owner)} ranks for {len(costs)} matrices: {owner!r:.80}")
    beyond = next((rank for rank in owner if not 0 <= rank < N), None)
    if beyond is not None:
        return Problem(
            "beyond",
            f"rank {beyond} owns a matrix; there are ranks 0 to {N - 1}",
            {"of": beyond == N},
        )
    return None


def _load(owner, costs, N):
    return [sum(c for c, o in zip(costs, owner, strict=True) if o == rank) for rank in range(N)]


def _balanced(owner, costs, N):
    loads, best = _load(owner, costs, N), SIZES[NAMES[costs, N]][2]
    if max(loads) <= WITHIN * best:
        return None
    counts = [owner.count(rank) for rank in range(N)]
    facts = {
        "in order": owner == sorted(owner),
        "by number": max(counts) - min(counts) <= 1,
        "idle": 0 in loads and len(costs) >= N,
        "all": loads.count(0) == N - 1,
    }
    text = f"rank {loads.index(max(loads))} has {max(loads)} of {sum(costs)}, best possible {best}"
    return Problem("load", f"{text}: {max(loads) / best - 1:.0%} more\nBy rank: {loads}", facts)


each = partial(pure.each, words=_words)

OWNERS = Exercise(
    name="owners", reference=muon.owners, measure=lambda fn: pure.asked(fn, muon.owners, CASES,
        _given, _read),
    worlds=(), bonus=True, leaves_out=pure.LEAVES_OUT,
    claims=(
        claim("one owner each", 1, "as many as matrices, ranks 0 to N-1", each(CASES, _each_once)),
        claim("within 5 % of the best", 2, "sizes of GPTs on 1 to 16 ranks",
              each(CASES, _balanced)),
        claim("the same on every rank", 1, "called again, the same; arguments left alone",
              pure.same_again(_words),
              pure.left_alone(_words), pure.new_each_time(_words)),
    ),
    hints=(
        s.CALLED_LIB.saying("a loop over the costs and a list of loads are enough."),
        pure.NOTHING,
        Hint("gone through once", s.kind("iterator"),
             "return a list: every rank goes through it in each step."),
        Hint("not a list of ranks", s.kind("form"),
             "return [rank, rank, ...], a whole number for each matrix."),
        pure.CHANGED,
        Hint("not one for each", s.kind("number"),
             "owner[i] is the rank of the matrix with costs[i]."),
        Hint("ranks from 1", s.kind("beyond", of=True), "ranks count from 0 to N-1."),
        Hint("no such rank", s.kind("beyond"),
             "ranks are 0 to N-1, also where there are fewer matrices than ranks."),
        Hint("nothing there", s.raised("IndexError", "ValueError", "ZeroDivisionError"),
             "there may be no matrices at all, or fewer than ranks."),
        Hint("all on one rank", s.kind("load", all=True),
             "add the cost to the owner's load, or every matrix goes to the same rank."),
        Hint("a rank is idle", s.kind("load", idle=True),
             "a rank has nothing to do, while there are matrices enough: give each to the rank "
             "with the least load."),
        Hint("runs of neighbours", s.both(s.kind("load"), s.fact("in order")),
             "neighbours need not stay together: nothing is sent from matrix to matrix. Any rank "
             "may own any of them."),
        Hint("by number, not by cost", s.both(s.kind("load"), s.fact("by number")),
             "each rank has about as many matrices as the others, but they differ in cost."),
        Hint("not balanced", s.kind("load"),
             "what comes last should be small, as it can still fill what is uneven: the most "
             "expensive first, each to the rank that has least so far."),
        *pure.GENERAL,
    ),
)  # fmt: skip
