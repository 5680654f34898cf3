"""Lab 0, section 6: what five all-reduces cost by the alpha-beta model, and which of them is cheapest (`cheapest.py`).

star_time, tree_time, ring_time, recursive_doubling_time, halving_doubling_time: (n_bytes, N, alpha, beta) -> seconds

The right formulas are those of `lib.collectives.cost`. A hint is a wrong formula: it fits if it gives what came out.
"""

from math import ceil, isclose, log, log2, log10
from numbers import Real

from lib.check.framework import Bundle, Claim, Exercise, Hint, Problem
from lib.check.lab0 import cheapest
from lib.check.lab0.cheapest import FAST, SLOW, words
from lib.collectives.cost import COST, L, P, folded

POWERS = [(n, N, *link) for N in (4, 2, 8, 64) for link in (SLOW, FAST) for n in (1_000_000, 8)]
OTHERS = [(n, N, *link) for N in (6, 3, 12) for link in (SLOW, FAST) for n in (1_000_000, 8)]


def _measure(fn):
    return {case: fn(*case) for case in POWERS + OTHERS}


def _equal(a, b):
    return isclose(a, b, rel_tol=1e-9)


def _is_time(got):
    return isinstance(got, Real) and not isinstance(got, bool)


def _is_right(time, cases):
    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        for case in cases:
            got, expected = seen[case], time(*case)
            text = f"{words(*case)}: expected {expected * 1e6:,.6g} us, got "
            if not _is_time(got):
                return Problem("form", f"{text}{got!r:.60}, a {type(got).__name__}", {"got": got})
            if not _equal(got, expected):
                numbers = {case: got for case, got in seen.items() if _is_time(got)}
                wrong = {case: got for case, got in numbers.items() if not _equal(got, time(*case))}
                return Problem(
                    "value", f"{text}{got * 1e6:,.6g} us = {got / expected:.4g} x expected", {"wrong": wrong}
                )
        return None

    return judge


def _as_if(*mistakes):
    """Fits if one of `mistakes`, formulas of (n_bytes, N, alpha, beta), gives all the wrong times."""

    def fits(problem):
        wrong = problem.facts.get("wrong", {}).items()
        return bool(wrong) and any(all(_equal(got, mistake(*case)) for case, got in wrong) for mistake in mistakes)

    return fits


def _general(time):
    """The mistakes that can be made with each of the formulas."""
    return (
        Hint(
            "latency forgotten",
            _as_if(lambda n, N, a, b: time(n, N, 0, b)),
            "alpha is missing: every message costs alpha, however short it is.",
        ),
        Hint(
            "latency once",
            _as_if(lambda n, N, a, b: time(n, N, 0, b) + a),
            "alpha is counted once. Messages that follow each other cost alpha each.",
        ),
        Hint(
            "bytes forgotten",
            _as_if(lambda n, N, a, b: time(n, N, a, 0)),
            "beta is missing: each byte that a message carries costs beta.",
        ),
        Hint(
            "beta taken for a bandwidth",
            _as_if(lambda n, N, a, b: time(n, N, a, 1 / b)),
            "beta is seconds per byte, so bytes are multiplied by it. A bandwidth, bytes per second, is 1 / beta.",
        ),
        Hint(
            "another unit",
            _as_if(*(lambda n, N, a, b, unit=unit: time(n, N, a, b) * unit for unit in (1e3, 1e6))),
            "return seconds, as alpha and beta are; convert when you print.",
        ),
        Hint(
            "nothing returned",
            lambda p: p.kind == "form" and p.facts["got"] is None,
            "the function must end with `return ...`.",
        ),
    )


ANY_N = [Claim("any N", 1, "2, 4, 8, 64, 3, 6, 12 ranks; two links", POWERS + OTHERS)]
POWERS_THEN_ANY = [
    Claim("N a power of two", 1, "2, 4, 8, 64 ranks; 8 bytes, 1 MB; two links", POWERS),
    Claim("any N", 1, "3, 6, 12 ranks", OTHERS),
]


def _exercise(algorithm, claims, *hints):
    """claims: with their cases in place of their judge."""
    time = COST[algorithm].time
    return Exercise(
        name=f"{algorithm}_time",
        reference=time,
        measure=_measure,
        worlds=(),
        claims=tuple(Claim(c.name, c.points, c.says, _is_right(time, c.judge)) for c in claims),
        hints=(*hints, *_general(time)),
    )


def _half(algorithm):
    return Hint(
        "one of the two passes",
        _as_if(lambda n, N, a, b: COST[algorithm].time(n, N, a, b) / 2),
        "that is half of it. The sum must be made, and then every rank must get it: a factor 2.",
    )


STAR = _exercise(
    "star",
    ANY_N,
    _half("star"),
    Hint(
        "all at once",
        _as_if(lambda n, N, a, b: 2 * (a + n * b)),
        "rank 0 has one link: it receives N-1 tensors one after the other, and sends N-1 one after the other.",
    ),
    Hint(
        "N for N-1",
        _as_if(lambda n, N, a, b: 2 * N * (a + n * b)),
        "rank 0 sends nothing to itself: N-1 messages each way.",
    ),
)
TREE = _exercise(
    "tree",
    POWERS_THEN_ANY,
    _half("tree"),
    Hint(
        "a logarithm to another base",
        _as_if(*(lambda n, N, a, b, f=f: 2 * f(N) * (a + n * b) for f in (log, log10, lambda N: ceil(log(N))))),
        "math.log is to base e, math.log10 to base 10. Each round doubles how many ranks are done: math.log2.",
    ),
    Hint(
        "rounds that are not whole",
        _as_if(*(lambda n, N, a, b, f=f: 2 * f(log2(N)) * (a + n * b) for f in (float, int, round))),
        "6 ranks need 3 rounds: after two, only 4 are done. Round log2(N) up: math.ceil(math.log2(N)).",
    ),
    Hint(
        "one message after another",
        _as_if(COST["star"].time),
        "that is the star. In a tree the pairs of a round talk at the same time: count rounds, not messages.",
    ),
    Hint(
        "bytes divided",
        _as_if(lambda n, N, a, b: 2 * L(N) * (a + n / N * b)),
        "in this tree every message is the whole tensor.",
    ),
)
RING = _exercise(
    "ring",
    POWERS_THEN_ANY,
    _half("ring"),
    Hint(
        "N for N-1",
        _as_if(lambda n, N, a, b: 2 * N * (a + n / N * b)),
        "each pass takes N-1 rounds, not N: a chunk that has passed all other ranks need not come home.",
    ),
    Hint(
        "whole tensors",
        _as_if(COST["star"].time),
        "a message in the ring is one chunk, n_bytes / N bytes, not the whole tensor.",
    ),
    Hint(
        "chunks of n/(N-1)",
        _as_if(lambda n, N, a, b: 2 * (N - 1) * a + 2 * n * b),
        "the tensor is cut into N chunks, one per rank, not N-1.",
    ),
    Hint(
        "whole bytes only",
        _as_if(lambda n, N, a, b: 2 * (N - 1) * (a + n // N * b)),
        "`//` throws the remainder away. The model takes chunks of exactly n_bytes / N.",
    ),
    Hint(
        "latency of one pass",
        _as_if(lambda n, N, a, b: (N - 1) * a + 2 * (N - 1) / N * n * b),
        "reduce-scatter and all-gather have N-1 messages each, one after another: 2(N-1) alpha.",
    ),
)
RECURSIVE_DOUBLING = _exercise(
    "recursive_doubling",
    POWERS_THEN_ANY,
    Hint(
        "two passes",
        _as_if(lambda n, N, a, b: 2 * COST["recursive_doubling"].time(n, N, a, b), COST["tree"].time),
        "no second pass here: both ranks of a pair add, so that after the last round every rank has the sum.",
    ),
    Hint(
        "no folding",
        _as_if(*(lambda n, N, a, b, f=f: f(N) * (a + n * b) for f in (L, log2, lambda N: L(P(N))))),
        "only P ranks can form pairs in every round. Where N > P, the other ranks hand over their tensor first and get "
        "the result last: log2 P + 2 messages, one after another.",
    ),
    Hint(
        "bytes divided",
        _as_if(lambda n, N, a, b: COST["recursive_doubling"].time(n / P(N), N, a, b)),
        "every message is the whole tensor here. It is halving and doubling that cuts it.",
    ),
)
HALVING_DOUBLING = _exercise(
    "halving_doubling",
    POWERS_THEN_ANY,
    Hint(
        "one of the two passes",
        _as_if(lambda n, N, a, b: L(P(N)) * a + (P(N) - 1) / P(N) * n * b + 2 * folded(N) * (a + n * b)),
        "that is the halving alone. Doubling takes as many messages, of the same sizes, again.",
    ),
    Hint(
        "whole tensors",
        _as_if(lambda n, N, a, b: (2 * L(P(N)) + 2 * folded(N)) * (a + n * b)),
        "messages shrink: n/2, n/4, ... n/P bytes while halving, and grow back. Together (P-1)/P n bytes each way.",
    ),
    Hint(
        "the last size in every round",
        _as_if(lambda n, N, a, b: 2 * L(P(N)) * (a + n / P(N) * b) + 2 * folded(N) * (a + n * b)),
        "only the last message of halving has n/P bytes: n/2 + n/4 + ... + n/P = (P-1)/P n.",
    ),
    Hint(
        "a round for each rank",
        _as_if(COST["ring"].time),
        "that is the ring, N-1 rounds each way. Halving and doubling sends the same bytes in log2 P rounds each way.",
    ),
    Hint(
        "no folding",
        _as_if(
            lambda n, N, a, b: 2 * (L(N) * a + (N - 1) / N * n * b),
            lambda n, N, a, b: 2 * (log2(N) * a + (N - 1) / N * n * b),
            lambda n, N, a, b: 2 * (L(P(N)) * a + (P(N) - 1) / P(N) * n * b),
        ),
        "right where N is a power of two. Else the N-P other ranks hand over their whole tensor first and get the "
        "result last: two messages of n bytes more, and P in place of N between them.",
    ),
)

EXERCISE = Bundle("all_reduce_time", (STAR, TREE, RING, RECURSIVE_DOUBLING, HALVING_DOUBLING, cheapest.EXERCISE))
