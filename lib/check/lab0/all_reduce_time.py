"""Lab 0, section 6: what five all-reduces cost by the alpha-beta model, and which of them is
cheapest (`cheapest.py`).

star_time, tree_time, ring_time, recursive_doubling_time, halving_doubling_time: (n_bytes, N, alpha,
beta) -> seconds
"""

from lib.check import symptoms as s
from lib.check.claims import claim, numbers
from lib.check.exercise import Bundle, Exercise, Hint
from lib.check.lab0 import cheapest
from lib.check.lab0.cheapest import FAST, SLOW, words
from lib.check.left_out import NO_RANKS
from lib.collectives.cost import COST

POWERS = [(n, N, *link) for N in (4, 2, 8, 64) for link in (SLOW, FAST) for n in (1_000_000, 8)]
OTHERS = [(n, N, *link) for N in (6, 3, 5, 12) for link in (SLOW, FAST) for n in (1_000_000, 8)]
ALGORITHMS = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")


def _measure(fn):
    return {case: fn(*case) for case in POWERS + OTHERS}


def _exercise(algorithm):
    time = COST[algorithm].time
    is_right = lambda cases: numbers(time, cases, words, unit=1e6, unit_name=" us")
    two = (
        claim(
            "N a power of two", 1, "2, 4, 8, 64 ranks; 8 bytes, 1 MB; two links", is_right(POWERS)
        ),
        claim("any N", 2, "3, 5, 6, 12 ranks", is_right(OTHERS)),
    )
    one = (
        claim("any N", 2, "2, 4, 8, 64, 3, 5, 6, 12 ranks; two links", is_right(POWERS + OTHERS)),
    )
    return Exercise(
        name=f"{algorithm}_time", reference=time, measure=_measure, worlds=(), leaves_out=NO_RANKS,
        claims=one if algorithm == "star" else two,
        hints=(
            s.NO_NUMBER,
            Hint("not its rounds or its bytes", s.kind("value"),
                 "draw it for these ranks: how many messages follow each other, and how many bytes "
                 "does each carry? Each message costs alpha, and beta for each of its bytes."),
            *s.ANYWHERE,
        ),
    )  # fmt: skip


EXERCISE = Bundle("all_reduce_time", (*map(_exercise, ALGORITHMS), cheapest.EXERCISE))
