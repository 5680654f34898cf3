"""Lab 0, section 6: cheapest(n_bytes, N, alpha, beta), which all-reduce takes the least time by the
alpha-beta model.

    few bytes   many messages cost          recursive doubling
    between                                 halving and doubling
    many bytes  bytes cost                  ring, where N is no power of two

An answer is judged by the time of what it names: several may take the same.
"""

from lib.check import symptoms as s
from lib.check.causes import hints, of_name
from lib.check.claims import is_number
from lib.check.exercise import Exercise, Problem
from lib.check.left_out import NO_RANKS, NO_TENSORS
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.collectives.cost import COST, cheapest

ALGORITHMS = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
# alpha, beta: processes of one machine; a fast network
SLOW, FAST = (20e-6, 1 / 1e9), (2e-6, 1 / 25e9)
ENDS, BETWEEN = (8, 64_000_000), (1000, 20_000, 100_000, 1_000_000)


def words(n_bytes, N, alpha, beta):
    """A case in words."""
    return (
        f"{n_bytes:,} bytes, {N} ranks, alpha {alpha * 1e6:g} us, beta {beta * 1e9:g} ns per byte"
    )


JOBS = {
    words(n, N, *link): (n, N, *link)
    for N in (2, 3, 4, 8, 12, 64) for link in (SLOW, FAST) for n in ENDS + BETWEEN
}  # fmt: skip
AT_ENDS = here(*(name for name, job in JOBS.items() if job[0] in ENDS))
FORM = NOTHING, TIME, NAME = "something is returned", "no time", "one of the five names"
TAKES = "the microseconds of what is named"
DEAREST = "the dearest"
# hint -> what of (n, N, alpha, beta) a choice depends on, if on nothing else
FAMILIES = {
    "one for all": lambda job: (),
    "by size alone": lambda job: job[0],
    "whatever the size": lambda job: job[1:],
    "whatever the link": lambda job: job[:2],
}


def script(make, case, show):
    job = JOBS[case.what]
    name = show.judged = show.run(make, *job)
    is_name = isinstance(name, str) and name in ALGORITHMS
    form = NOTHING if name is None else TIME if is_number(name) else NAME
    told = f"the function {name.__name__}" if callable(name) else f"{name!r:.60}"
    for what in FORM:
        wrong = not is_name and what == form
        show(what, f"got {told}, expected a name such as 'ring'" if wrong else "")
    if is_name:
        takes = COST[name].time(*job) * 1e6
        show(TAKES, takes, beside=f"{name} takes {takes:,.6g} us.")


def family(sizes):
    """A judge: the first Problem at these sizes, if all choices are of one family."""

    def judge(runs):
        (records,) = runs[0].results
        named = [(job, one["judged"]) for job, one in zip(JOBS.values(), records, strict=False)]
        wrong = [
            problem for (job, _), record in zip(named, records, strict=False)
            for problem in record["wrong"].values() if job[0] in sizes
        ]  # fmt: skip
        if not wrong or not all(isinstance(name, str) and name in ALGORITHMS for _, name in named):
            return None
        for kind, of in FAMILIES.items():
            if len({(of(job), name) for job, name in named}) == len({of(job) for job, _ in named}):
                return Problem(kind, wrong[0].text)
        most = lambda job: max(COST[one].time(*job) for one in ALGORITHMS)
        if all(COST[name].time(*job) == most(job) for job, name in named):
            return Problem(DEAREST, wrong[0].text)
        return None

    return judge


MEASURE = SideBySide(script, cheapest, here(*JOBS), groups=None, excused=NO_TENSORS)
EXERCISE = Exercise(
    name="cheapest", reference=cheapest, measure=MEASURE, worlds=(), leaves_out=NO_RANKS,
    claims=claims(
        MEASURE,
        ("8 bytes and 64 MB", 2, "2, 3, 4, 8, 12, 64 ranks; two links",
         family(ENDS), *((what, AT_ENDS) for what in (*FORM, TAKES))),
        ("sizes between", 2, "1 kB, 20 kB, 100 kB, 1 MB", family(BETWEEN)),
    ),
    hints=hints(
        "lab0", "cheapest",
        **{name: s.kind(name) for name in (*FAMILIES, DEAREST)},
        nothing_returned=of_name(NOTHING),
        **{"a time, not a name": of_name(TIME)},
        no_such_name=of_name(NAME),
        not_all_compared=of_name(TAKES),
    ),
)  # fmt: skip
