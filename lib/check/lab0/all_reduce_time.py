"""Lab 0, section 6: what five all-reduces cost by the alpha-beta model, and which of them is
cheapest.

star_time, tree_time, ring_time, recursive_doubling_time, halving_doubling_time: (n_bytes, N, alpha,
beta) -> seconds
cheapest: (n_bytes, N, alpha, beta) -> the name of one

    few bytes   the messages dominate       recursive doubling
    between                                 halving and doubling
    many bytes  the bytes dominate          ring, if N is not a power of two

The answer of `cheapest` is judged by the time of the algorithm that it names, because several
algorithms may take the same time.
"""

from lib.check.causes import hints
from lib.check.claims import is_number
from lib.check.exercise import Bundle
from lib.check.explain import cut
from lib.check.left_out import NO_RANKS, NO_TENSORS
from lib.check.numbers import numbers
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.collectives.cost import COST, cheapest

ALGORITHMS = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
# (alpha, beta) of processes on one machine, of a fast network, and of GPUs in one node
SLOW, FAST, FASTEST = (20e-6, 1 / 1e9), (2e-6, 1 / 25e9), (0.3e-6, 1 / 450e9)
POWERS, OTHERS = (
    [(n, N, *link) for N in ranks for link in (SLOW, FAST) for n in (1_000_000, 8)]
    for ranks in ((4, 2, 8, 64), (6, 3, 5, 12))
)
ENDS, BETWEEN = (8, 64_000_000), (1000, 20_000, 100_000, 1_000_000)
TIME, NAME, TAKES = "no time", "one of the five names", "the microseconds of what is named"


def words(n_bytes, N, alpha, beta):
    """A case in words."""
    return (
        f"{n_bytes:,} bytes, {N} ranks, alpha {alpha * 1e6:g} us, beta {beta * 1e9:g} ns per byte"
    )


JOBS = {
    words(n, N, *link): (n, N, *link)
    for N in (2, 3, 4, 8, 12, 64) for link in (SLOW, FAST, FASTEST) for n in ENDS + BETWEEN
}  # fmt: skip
AT_ENDS = here(*(name for name, job in JOBS.items() if job[0] in ENDS))


def _time_of(algorithm):
    time, name = COST[algorithm].time, f"{algorithm}_time"
    measure, about = numbers(time, POWERS + OTHERS, words, "microseconds", unit=1e6)
    two = (
        ("N a power of two", 1, "2, 4, 8, 64 ranks; 8 bytes, 1 MB; two links", about(*POWERS)),
        ("any N", 2, "3, 5, 6, 12 ranks"),
    )
    one = (("any N", 2, "2, 4, 8, 64, 3, 5, 6, 12 ranks; two links"),)
    return measure.exercise(
        *(one if algorithm == "star" else two),
        hints=hints("lab0", name, "all_reduce_time"), name=name, leaves_out=NO_RANKS,
    )  # fmt: skip


def script(make, case, show):
    job = JOBS[case.what]
    name = show.run(make, *job)
    is_name = isinstance(name, str) and name in ALGORITHMS
    form = RETURNED if name is None else TIME if is_number(name) else NAME
    told = f"the function {name.__name__}" if callable(name) else cut(name, 60)
    wrong = {} if is_name else {form: f"got {told}, expected a name such as 'ring'"}
    if not show.said((RETURNED, TIME, NAME), wrong):
        takes = COST[name].time(*job) * 1e6
        show(TAKES, takes, beside=f"{name} takes {takes:,.6g} us.")


MEASURE = SideBySide(script, cheapest, here(*JOBS), groups=None, excused=NO_TENSORS)
CHOICE = MEASURE.exercise(
    ("8 bytes and 64 MB", 2, "2, 3, 4, 8, 12, 64 ranks; three links",
     ((RETURNED, TIME, NAME, TAKES), AT_ENDS)),
    ("sizes between", 2, "1 kB, 20 kB, 100 kB, 1 MB"),
    hints=hints("lab0", "cheapest"), leaves_out=NO_RANKS,
)  # fmt: skip
EXERCISE = Bundle("all_reduce_time", (*map(_time_of, ALGORITHMS), CHOICE))
