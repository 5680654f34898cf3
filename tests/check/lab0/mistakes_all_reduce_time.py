"""Known mistakes of the functions of all_reduce_time, each named after its cause."""

from math import ceil, log, log2, log10

from mistakes import Mistake, as_a_students

from lib.check.lab0.all_reduce_time import ALGORITHMS
from lib.collectives.cost import COST, L, P, folded

# no calls of lib's
star, tree, ring, doubling, halving = (as_a_students(COST[name].time) for name in ALGORITHMS)


def _all(hint, text, *formulas):
    return [Mistake(hint, formula, text) for formula in formulas]


def _general(time):
    """The mistakes that can be made with each of the formulas."""
    return (
        *_all("latency forgotten",
              "alpha is missing: every message costs alpha, however short it is.",
              lambda n, N, a, b: time(n, N, 0, b)),
        *_all("latency once",
              "alpha is counted once. Messages that follow each other cost alpha each.",
              lambda n, N, a, b: time(n, N, 0, b) + a),
        *_all("bytes forgotten", "beta is missing: each byte that a message carries costs beta.",
              lambda n, N, a, b: time(n, N, a, 0)),
        *_all("beta taken for a bandwidth",
              "beta is seconds per byte, so bytes are multiplied by it. A bandwidth, bytes per "
              "second, is 1 / beta.",
              lambda n, N, a, b: time(n, N, a, 1 / b)),
        *_all("another unit", "return seconds, as alpha and beta are; convert when you print.",
              lambda n, N, a, b: time(n, N, a, b) * 1e3, lambda n, N, a, b: time(n, N, a, b) * 1e6),
    )  # fmt: skip


def _half(time):
    text = "that is half of it. The sum must be made, and then every rank must get it: a factor 2."
    return Mistake("one of the two passes", lambda n, N, a, b: time(n, N, a, b) / 2, text)


MISTAKES = {
    "star_time": (
        *_general(star), _half(star),
        *_all("all at once",
              "rank 0 has one link: it receives N-1 tensors one after the other, and sends N-1 one "
              "after the other.",
              lambda n, N, a, b: 2 * (a + n * b), lambda n, N, a, b: N * (a + n * b)),
        *_all("N for N-1", "rank 0 sends nothing to itself: N-1 messages each way.",
              lambda n, N, a, b: 2 * N * (a + n * b)),
    ),
    "tree_time": (
        *_general(tree), _half(tree),
        *_all("a logarithm to another base",
              "math.log is to base e, math.log10 to base 10. Each round doubles how many ranks are "
              "done: math.log2.",
              *(lambda n, N, a, b, f=f: 2 * f(N) * (a + n * b) for f in (log, log10,
                  lambda N: ceil(log(N))))),
        *_all("rounds that are not whole",
              "6 ranks need 3 rounds: after two, only 4 are done. Round log2(N) up: "
              "math.ceil(math.log2(N)).",
              *(lambda n, N, a, b, f=f: 2 * f(log2(N)) * (a + n * b) for f in (float, int, round))),
        *_all("one message after another",
              "that is the star. In a tree the pairs of a round talk at the same time: count "
              "rounds, not messages.",
              star),
        *_all("bytes divided", "in this tree every message is the whole tensor.",
              lambda n, N, a, b: 2 * L(N) * (a + n / N * b)),
    ),
    "ring_time": (
        *_general(ring), _half(ring),
        *_all("N for N-1",
              "each pass takes N-1 rounds, not N: a chunk that has passed all other ranks need not "
              "come home.",
              lambda n, N, a, b: 2 * N * (a + n / N * b)),
        *_all("whole tensors",
              "a message in the ring is one chunk, n_bytes / N bytes, not the whole tensor.", star),
        *_all("chunks of n/(N-1)", "the tensor is cut into N chunks, one per rank, not N-1.",
              lambda n, N, a, b: 2 * (N - 1) * a + 2 * n * b),
        *_all("whole bytes only",
              "`//` throws the remainder away. The model takes chunks of exactly n_bytes / N.",
              lambda n, N, a, b: 2 * (N - 1) * (a + n // N * b)),
        *_all("latency of one pass",
              "reduce-scatter and all-gather have N-1 messages each, one after another: 2(N-1) "
              "alpha.",
              lambda n, N, a, b: (N - 1) * a + 2 * (N - 1) / N * n * b),
    ),
    "recursive_doubling_time": (
        *_general(doubling),
        *_all("two passes",
              "no second pass here: both ranks of a pair add, so that after the last round every "
              "rank has the sum.",
              lambda n, N, a, b: 2 * doubling(n, N, a, b), tree),
        *_all("no folding",
              "only P ranks can form pairs in every round. Where N > P, the other ranks hand over "
              "their tensor first and get the result last: log2 P + 2 messages, one after another.",
              *(lambda n, N, a, b, f=f: f(N) * (a + n * b) for f in (L, log2, lambda N: L(P(N))))),
        *_all("bytes divided",
              "every message is the whole tensor here. It is halving and doubling that cuts it.",
              lambda n, N, a, b: doubling(n / P(N), N, a, b)),
    ),
    "halving_doubling_time": (
        *_general(halving),
        *_all("one of the two passes",
              "that is the halving alone. Doubling takes as many messages, of the same sizes, "
              "again.",
              lambda n, N, a,
              b: L(P(N)) * a + (P(N) - 1) / P(N) * n * b + 2 * folded(N) * (a + n * b),
              lambda n, N, a, b: halving(n, N, a, b) / 2),
        *_all("whole tensors",
              "messages shrink: n/2, n/4, ... n/P bytes while halving, and grow back. Together "
              "(P-1)/P n bytes each "
              "way.", lambda n, N, a, b: (2 * L(P(N)) + 2 * folded(N)) * (a + n * b)),
        *_all("the last size in every round",
              "only the last message of halving has n/P bytes: n/2 + n/4 + ... + n/P = (P-1)/P n.",
              lambda n, N, a, b: 2 * L(P(N)) * (a + n / P(N) * b) + 2 * folded(N) * (a + n * b)),
        *_all("the whole tensor first",
              "the first message of halving is half of the tensor, n/2 bytes, and not all of it.",
              lambda n, N, a, b: halving(n, N, a, b) + 2 * (1 - 1 / P(N)) * n * b),
        *_all("bytes as in the ring",
              "the bytes are those of a ring of N ranks. Only P of them halve and double, so each "
              "way takes (P-1)/P n.",
              lambda n, N, a, b: halving(n, N, a, b) + 2 * (1 / P(N) - 1 / N) * n * b),
        *_all("extra messages without bytes",
              "the messages before and after carry the whole tensor, so each of them costs alpha + "
              "n beta.",
              lambda n, N, a, b: halving(n, N, a, b) - 2 * folded(N) * n * b),
        *_all("a round for each rank",
              "that is the ring, N-1 rounds each way. Halving and doubling takes log2 P rounds "
              "each way.", ring),
        *_all("no folding",
              "right where N is a power of two. Else the N-P other ranks hand over their whole "
              "tensor first and get the result last: two messages of n bytes more, and P in place "
              "of N between them.",
              lambda n, N, a, b: 2 * (L(N) * a + (N - 1) / N * n * b),
              lambda n, N, a, b: 2 * (log2(N) * a + (N - 1) / N * n * b),
              lambda n, N, a, b: 2 * (L(P(N)) * a + (P(N) - 1) / P(N) * n * b)),
    ),
}  # fmt: skip
