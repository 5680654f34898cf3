"""Lab 6, section 9, bonus: job_mtbf, lost_share and best_interval, what failures cost a job, and
how often to save.

    job_mtbf       seconds between two failures of a job,
                   by what another one of another size has counted
    lost_share     within 3 % of the lost share of 10,000 failures that are simulated
    best_interval  within 2 % of the interval with which least is lost

Any formula will do, or a search, that comes as near.
"""

from functools import cache

from lib.check.causes import hints, of_name
from lib.check.exercise import Bundle, Exercise
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.numbers import NO_NUMBER, NOTHING, is_one, wrong
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.cost import goodput
from lib.cost.goodput import LLAMA_3, best_interval, job_mtbf, lost_share

NEAR, OF_THE_BEST = 0.03, 0.02
COUNTED = [(*LLAMA_3, gpus) for gpus in (LLAMA_3.gpus, 100_000, 8)] + [
    (30, 12, 512, 1024),
    (0.5, 6, 100, 10),
]
SHORT = [  # interval, save, restart, mtbf: all three short against it
    (90, 2, 40, 11_135), (200, 4, 0, 50_000), (60, 0, 30, 8_000), (300, 4, 100, 40_000),
    (120, 1, 10, 20_000),
]  # fmt: skip
LONG = [
    (600, 60, 300, 3_600), (1_800, 300, 600, 3_600), (3_600, 60, 900, 3_600), (500, 250, 0, 1_000),
    (300, 30, 1_200, 1_800), (9_000, 200, 100, 2_000), (40, 20, 20, 50),
]  # fmt: skip
QUICK = [(2, 11_135), (10, 36_000), (5, 60_000)]  # save, mtbf
# Daly 2006, figures 3 to 5: 117, 57 and 9.1 minutes
DALYS = [(300, 24 * 3600), (300, 6 * 3600), (300, 15 * 60)]
SLOW = [(100, 1_000), (600, 3_600), (300, 600)]


def _of_a_job(days, failures, gpus, job_gpus):
    return f"{failures} failures in {days} days on {gpus:,} GPUs: a job on {job_gpus:,}"


def _of_settings(interval, save, restart, mtbf):
    return f"lost_share({interval}, {save}, {restart}, {mtbf})"


def _of_a_save(save, mtbf):
    return f"best_interval({save}, {mtbf})"


@cache
def _clocked(setting):
    """The lost share of 10,000 failures."""
    return float(goodput.simulated(*setting)[0])


def _measure(reference, name, settings, words, tolerance=None):
    """Of a function that returns one number, which is shown under this name."""
    cases = here(*(words(*setting) for setting in settings))
    setting_of = dict(zip(cases, settings, strict=True))

    def script(make, case, show):
        setting = setting_of[case]
        clocked = _clocked(setting) if reference is lost_share else None  # before make is called
        out = show.run(make, *setting)
        good = is_one(show, out)
        if good and clocked is None:
            show(name, float(out), tolerance=tolerance)
        elif good:
            near = 0 <= out <= 1 and abs(out / clocked - 1) <= NEAR
            told = f"Expected is what 10,000 simulated failures lose, within {NEAR:.0%} of it."
            show(name, clocked if near else float(out), beside=told)

    return SideBySide(
        script, reference, cases, (goodput.__file__,), groups=None, excused=NO_TENSORS,
        together=cases[-2:],  # the quickest, where an answer searches
    )  # fmt: skip


def _exercise(measure, rows, **predicates):
    """rows: (name of a claim, points, says, what it is about ...)"""
    name = measure.reference.__name__
    return Exercise(
        name=name, reference=measure.reference, measure=measure, worlds=(), bonus=True,
        leaves_out=LEAVES_OUT | {"returned": "a number"}, claims=claims(measure, *rows),
        hints=hints(
            "lab6", name, nothing_returned=of_name(NOTHING), no_number=of_name(NO_NUMBER),
            **predicates,
        ),
    )  # fmt: skip


def _in(cases, name):
    return [(one, cases) for one in (NOTHING, NO_NUMBER, name)]


OF_A_JOB = _measure(job_mtbf, "seconds", COUNTED, _of_a_job)
MTBF = _exercise(
    OF_A_JOB,
    [("failures of a job", 1, "Llama 3's, on 16,384 GPUs, 100,000 and 8; others", "seconds")],
    another_time=of_name("seconds"),
)
LOST = _measure(lost_share, "lost share", SHORT + LONG, _of_settings)
SHARE = _exercise(
    LOST,
    [
        ("short intervals", 2, "within 3% of 10,000 failures",
         *_in(LOST.cases[: len(SHORT)], "lost share")),
        ("intervals as long as the MTBF", 2, "and longer; the same tolerance", "lost share"),
    ],
    percent=wrong(lambda got, want: abs(got / 100 / want - 1) < NEAR),
    what_is_kept=wrong(lambda got, want: abs(got - (1 - want)) < NEAR * want),
    first_order_only=wrong(lambda got, want: True, LOST.cases[len(SHORT) :]),
    more_than_all=wrong(lambda got, want: not 0 <= got <= 1),
    too_little_lost=wrong(lambda got, want: got < want),
    too_much_lost=wrong(lambda got, want: got > want),
)  # fmt: skip
INTERVAL = _measure(best_interval, "interval", QUICK + DALYS + SLOW, _of_a_save, OF_THE_BEST)
QUICK_ONES, LATER = INTERVAL.cases[: len(QUICK)], INTERVAL.cases[len(QUICK) :]
BEST = _exercise(
    INTERVAL,
    [
        ("a quick save", 1, "within 2% of the best", *_in(QUICK_ONES, "interval")),
        ("Daly's examples", 1, "117, 57 and 9.1 minutes",
         *_in(LATER[: len(DALYS)], "interval")),
        ("a slow save", 1, "up to half the MTBF", "interval"),
    ],
    **{"near, not near enough": wrong(lambda got, want: 1 < got / want < 1.1, QUICK_ONES)},
    not_in_seconds=wrong(lambda got, want: got / want < 1 / 25),
    **{"Young's alone": wrong(lambda got, want: got > want, LATER)},
    too_short=wrong(lambda got, want: got < want),
    too_long=wrong(lambda got, want: got > want),
)  # fmt: skip
EXERCISE = Bundle("goodput", (MTBF, SHARE, BEST), bonus=True)
