"""Lab 6, section 9, bonus: job_mtbf, lost_share and best_interval, which say what failures cost a
job, and how often to save.

    job_mtbf       seconds between two failures of a job, from the failures that were counted in
                   another job, in most cases of another size
    lost_share     within 3 % of the share that is lost in a simulation of 10,000 failures
    best_interval  within 2 % of the interval that loses least

Any formula or search is right if its result is within these tolerances.
"""

from functools import cache

from lib.check.causes import hints
from lib.check.exercise import Bundle
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.numbers import NO_NUMBER, is_one
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.cost import goodput
from lib.cost.goodput import LLAMA_3, best_interval, job_mtbf, lost_share

NEAR, OF_THE_BEST = 0.03, 0.02
A_SHARE, LOST, LOST_OF_LONG = "from 0 to 1", "lost share", "lost share of a long interval"
COUNTED = [(*LLAMA_3, gpus) for gpus in (LLAMA_3.gpus, 100_000, 8)] + [
    (30, 12, 512, 1024),
    (0.5, 6, 100, 10),
]
SHORT = [  # interval, save, restart, mtbf: the first three are short compared with mtbf
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


IN_WORDS = {
    job_mtbf: "{1} failures in {0} days on {2:,} GPUs: a job on {3:,}",
    lost_share: "lost_share({}, {}, {}, {})",
    best_interval: "best_interval({}, {})",
}


def _measure(reference, settings, show_number):
    """The measure of a function that returns one number. show_number(show, setting, number) shows
    it."""
    cases = here(*(IN_WORDS[reference].format(*setting) for setting in settings))
    setting_of = dict(zip(cases, settings, strict=True))

    def script(make, case, show):
        out = show.run(make, *setting_of[case])
        if is_one(show, out):
            show_number(show, setting_of[case], float(out))

    return SideBySide(
        script, reference, cases, (goodput.__file__,), groups=None, excused=NO_TENSORS,
        together=cases[-2:],  # the quickest cases for an answer that searches
    )  # fmt: skip


@cache
def _simulated(setting):
    """The share that is lost in a simulation of 10,000 failures. The reference runs first and fills
    the cache, because a simulation during an answer's run would count as a call by the answer."""
    return float(goodput.simulated(*setting)[0])


def _show_share(show, setting, share):
    show(A_SHARE, "" if 0 <= share <= 1 else f"got {share:.6g}, expected 0 to 1")
    lost = _simulated(setting)
    near = abs(share / lost - 1) <= NEAR
    told = f"Expected is what 10,000 simulated failures lose, within {NEAR:.0%} of it."
    show(LOST if setting in SHORT else LOST_OF_LONG, lost if near else share, beside=told)


def _exercise(measure, *rows):
    """rows: the claims, as `shown.claims` takes them."""
    name = measure.reference.__name__
    return measure.exercise(
        *rows,
        hints=hints("lab6", name), bonus=True, leaves_out=LEAVES_OUT | {"returned": "a number"},
    )  # fmt: skip


def _in(cases, name):
    return (RETURNED, NO_NUMBER, name), cases


OF_A_JOB = _measure(job_mtbf, COUNTED, lambda show, _, seconds: show("seconds", seconds))
MTBF = _exercise(
    OF_A_JOB,
    ("failures of a job", 1, "Llama 3's, on 16,384 GPUs, 100,000 and 8; others", "seconds"),
)
OF_A_SHARE = _measure(lost_share, SHORT + LONG, _show_share)
SHORT_ONES = OF_A_SHARE.cases[: len(SHORT)]
SHARE = _exercise(
    OF_A_SHARE,
    ("short intervals", 2, "within 3% of 10,000 failures",
     (A_SHARE, SHORT_ONES), _in(SHORT_ONES, LOST)),
    ("intervals as long as the MTBF", 2, "and longer; the same tolerance", A_SHARE, LOST_OF_LONG),
)  # fmt: skip
INTERVAL = _measure(
    best_interval, QUICK + DALYS + SLOW,
    lambda show, _, seconds: show("interval", seconds, tolerance=OF_THE_BEST),
)  # fmt: skip
BEST = _exercise(
    INTERVAL,
    ("a quick save", 1, "within 2% of the best",
     _in(INTERVAL.cases[: len(QUICK)], "interval")),
    ("Daly's examples", 1, "117, 57 and 9.1 minutes",
     _in(INTERVAL.cases[len(QUICK) : -len(SLOW)], "interval")),
    ("a slow save", 1, "up to half the MTBF", "interval"),
)  # fmt: skip
EXERCISE = Bundle("goodput", (MTBF, SHARE, BEST), bonus=True)
