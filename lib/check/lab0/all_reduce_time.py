"""Lab 0, section 6: what five all-reduces cost by the alpha-beta model, and which of them is
cheapest (`cheapest.py`).

star_time, tree_time, ring_time, recursive_doubling_time, halving_doubling_time: (n_bytes, N, alpha,
beta) -> seconds
"""

from lib.check.causes import hints, of_name
from lib.check.exercise import Bundle, Exercise
from lib.check.lab0 import cheapest
from lib.check.lab0.cheapest import ALGORITHMS, FAST, SLOW, words
from lib.check.left_out import NO_RANKS
from lib.check.numbers import NOTHING, numbers
from lib.check.shown import claims
from lib.collectives.cost import COST

POWERS, OTHERS = (
    [(n, N, *link) for N in ranks for link in (SLOW, FAST) for n in (1_000_000, 8)]
    for ranks in ((4, 2, 8, 64), (6, 3, 5, 12))
)


def _exercise(algorithm):
    time = COST[algorithm].time
    measure, about = numbers(time, POWERS + OTHERS, words, "microseconds", unit=1e6)
    two = (
        ("N a power of two", 1, "2, 4, 8, 64 ranks; 8 bytes, 1 MB; two links", *about(*POWERS)),
        ("any N", 2, "3, 5, 6, 12 ranks"),
    )
    one = (("any N", 2, "2, 4, 8, 64, 3, 5, 6, 12 ranks; two links"),)
    return Exercise(
        name=f"{algorithm}_time", reference=time, measure=measure, worlds=(), leaves_out=NO_RANKS,
        claims=claims(measure, *(one if algorithm == "star" else two)),
        hints=hints(
            "lab0", "all_reduce_time",
            nothing_returned=of_name(NOTHING),
            not_its_rounds_and_its_bytes=of_name("microseconds"),
        ),
    )  # fmt: skip


EXERCISE = Bundle("all_reduce_time", (*map(_exercise, ALGORITHMS), cheapest.EXERCISE))
