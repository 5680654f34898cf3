"""Known mistakes of the functions of all_reduce_time, each named after its cause."""

from math import ceil, log, log2, log10

from mistakes import Mistake, as_a_students

from lib.check.lab0.all_reduce_time import ALGORITHMS
from lib.collectives.cost import COST, L, P, folded

# no calls of lib's
star, tree, ring, doubling, halving = (as_a_students(COST[name].time) for name in ALGORITHMS)


def _all(hint, *formulas):
    return [Mistake(hint, formula) for formula in formulas]


def _general(time):
    """The mistakes that can be made with each of the formulas."""
    return (
        Mistake("latency forgotten", lambda n, N, a, b: time(n, N, 0, b)),
        Mistake("latency once", lambda n, N, a, b: time(n, N, 0, b) + a),
        Mistake("bytes forgotten", lambda n, N, a, b: time(n, N, a, 0)),
        Mistake("beta taken for a bandwidth", lambda n, N, a, b: time(n, N, a, 1 / b)),
        *_all("another unit",
              lambda n, N, a, b: time(n, N, a, b) * 1e3, lambda n, N, a, b: time(n, N, a, b) * 1e6),
    )  # fmt: skip


def _half(time):
    return Mistake("one of the two passes", lambda n, N, a, b: time(n, N, a, b) / 2)


MISTAKES = {
    "star_time": (
        *_general(star), _half(star),
        *_all("all at once",
              lambda n, N, a, b: 2 * (a + n * b), lambda n, N, a, b: N * (a + n * b)),
        Mistake("N for N-1", lambda n, N, a, b: 2 * N * (a + n * b)),
    ),
    "tree_time": (
        *_general(tree), _half(tree),
        *_all("a logarithm to another base",
              *(lambda n, N, a, b, f=f: 2 * f(N) * (a + n * b) for f in (log, log10,
                  lambda N: ceil(log(N))))),
        *_all("rounds that are not whole",
              *(lambda n, N, a, b, f=f: 2 * f(log2(N)) * (a + n * b) for f in (float, int, round))),
        Mistake("one message after another", star),
        Mistake("bytes divided", lambda n, N, a, b: 2 * L(N) * (a + n / N * b)),
    ),
    "ring_time": (
        *_general(ring), _half(ring),
        Mistake("N for N-1", lambda n, N, a, b: 2 * N * (a + n / N * b)),
        Mistake("whole tensors", star),
        Mistake("chunks of n/(N-1)", lambda n, N, a, b: 2 * (N - 1) * a + 2 * n * b),
        Mistake("whole bytes only", lambda n, N, a, b: 2 * (N - 1) * (a + n // N * b)),
        Mistake("latency of one pass", lambda n, N, a, b: (N - 1) * a + 2 * (N - 1) / N * n * b),
    ),
    "recursive_doubling_time": (
        *_general(doubling),
        *_all("two passes", lambda n, N, a, b: 2 * doubling(n, N, a, b), tree),
        *_all("no folding",
              *(lambda n, N, a, b, f=f: f(N) * (a + n * b) for f in (L, log2, lambda N: L(P(N))))),
        Mistake("bytes divided", lambda n, N, a, b: doubling(n / P(N), N, a, b)),
    ),
    "halving_doubling_time": (
        *_general(halving),
        *_all("one of the two passes",
              lambda n, N, a,
              b: L(P(N)) * a + (P(N) - 1) / P(N) * n * b + 2 * folded(N) * (a + n * b),
              lambda n, N, a, b: halving(n, N, a, b) / 2),
        Mistake("whole tensors", lambda n, N, a, b: (2 * L(P(N)) + 2 * folded(N)) * (a + n * b)),
        Mistake("the last size in every round",
                lambda n, N, a, b: 2 * L(P(N)) * (a + n / P(N) * b) + 2 * folded(N) * (a + n * b)),
        Mistake("the whole tensor first",
                lambda n, N, a, b: halving(n, N, a, b) + 2 * (1 - 1 / P(N)) * n * b),
        Mistake("bytes as in the ring",
                lambda n, N, a, b: halving(n, N, a, b) + 2 * (1 / P(N) - 1 / N) * n * b),
        Mistake("extra messages without bytes",
                lambda n, N, a, b: halving(n, N, a, b) - 2 * folded(N) * n * b),
        Mistake("a round for each rank", ring),
        *_all("no folding",
              lambda n, N, a, b: 2 * (L(N) * a + (N - 1) / N * n * b),
              lambda n, N, a, b: 2 * (log2(N) * a + (N - 1) / N * n * b),
              lambda n, N, a, b: 2 * (L(P(N)) * a + (P(N) - 1) / P(N) * n * b)),
    ),
}  # fmt: skip
