"""Lab 6, section 9, bonus: job_mtbf, lost_share and best_interval, what failures cost a job, and
how often to save.

    job_mtbf       seconds between two failures of a job,
                   by what another one of another size has counted
    lost_share     within 3 % of the lost share of 10,000 failures that are simulated
    best_interval  within 2 % of the interval with which least is lost

Any formula will do, or a search, that comes as near.
"""

from math import isfinite

from lib.check import symptoms as s
from lib.check.claims import claim, is_number, numbers
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.left_out import NO_RANKS
from lib.check.pure import (
    LEAVES_OUT,
    NOTHING,
    ONCE,
    all_seen,
    asked,
    each,
    noting_calls,
    same_again,
)
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
    (300, 30, 1_200, 1_800), (5_000, 200, 100, 2_000), (40, 20, 20, 50),
]  # fmt: skip
QUICK = [(2, 11_135), (10, 36_000), (5, 60_000)]  # save, mtbf
# minutes: Daly 2006, figures 3 to 5
DALYS = {(300, 24 * 3600): 117, (300, 6 * 3600): 57, (300, 15 * 60): 9.1}
SLOW = [(100, 1_000), (600, 3_600), (300, 600)]


def _of_a_job(days, failures, gpus, job_gpus):
    return f"{failures} failures in {days} days on {gpus:,} GPUs: a job on {job_gpus:,}"


def _of_settings(interval, save, restart, mtbf):
    return f"lost_share({interval}, {save}, {restart}, {mtbf})"


def _of_a_save(save, mtbf):
    return f"best_interval({save}, {mtbf})"


def _number(got, *_):
    if isinstance(got, Problem):
        return got
    if not is_number(got) or not isfinite(got):
        kind = "nothing" if got is None else "form"
        return Problem(kind, f"expected a number, got {got!r:.60}, a {type(got).__name__}")
    return float(got)


def _clocked(*case):
    """The lost share of 10,000 failures."""
    return float(goodput.simulated(*case)[0])


def _is_near(got, *case):
    want = _clocked(*case)
    if 0 <= got <= 1 and abs(got / want - 1) <= NEAR:
        return None
    facts, trace = (
        {"got": got, "want": want, "long": case in LONG},
        [_of_settings(*case), got / want],
    )
    if not 0 <= got <= 1:
        return Problem("no share", f"got {got:.4g}: a share of time lies from 0 to 1", facts, trace)
    text = (
        f"got {got:.4g}; 10,000 simulated failures lose {want:.4g}, and {NEAR:.0%} of that is near "
        f"enough"
    )
    return Problem("share", text, facts, trace)


def _is_best(got, *case):
    want = best_interval(*case)
    if abs(got / want - 1) <= OF_THE_BEST:
        return None
    text = (
        f"got {got:.4g} s; least is lost with {want:.4g} s, and {OF_THE_BEST:.0%} of that is near "
        f"enough"
    )
    facts = {"ratio": got / want, "later": case not in QUICK}
    return Problem("interval", text, facts, [_of_a_save(*case), got / want])


def _measure_mtbf(fn):
    return {case: fn(*case) for case in COUNTED}


def _measure_share(fn):
    return asked(_noted(fn), lost_share, SHORT + LONG, read=_number)


def _measure_best(fn):
    return asked(_noted(fn), best_interval, [*QUICK, *DALYS, *SLOW], read=_number)


def _noted(fn):
    """fn, which may call nothing of lib's: neither the formulas nor the simulation that it is
    compared with."""

    def noted(*args):
        with noting_calls(goodput.__file__) as calls:
            out = fn(*args)
        return (
            Problem("built-in", "it calls lib.cost.goodput, which is what it is compared with")
            if calls
            else out
        )

    return noted


def _shares(fits):
    """Is fits(got, want) true of all settings that could be read?"""
    return all_seen(lambda got, *case: fits(got, _clocked(*case)))


LEFT_OUT = LEAVES_OUT | {"returned": "a number"}
LIBS = s.CALLED_LIB.saying("the formula stands above the exercise: write it down.")
MTBF = Exercise(
    name="job_mtbf", reference=job_mtbf, measure=_measure_mtbf, worlds=(), bonus=True,
    leaves_out=NO_RANKS,
    claims=(
        claim("failures of a job", 1, "Llama 3's, on 16,384 GPUs, 100,000 and 8; others",
              numbers(job_mtbf, COUNTED, _of_a_job, unit_name=" s")),
    ),
    hints=(
        s.NO_NUMBER,
        Hint("another time", s.kind("value"),
             "the seconds that were counted, over the failures, are the counted job's; a job on "
             "twice the GPUs fails twice as often."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
SHARE = Exercise(
    name="lost_share", reference=lost_share, measure=_measure_share, worlds=(), bonus=True,
    leaves_out=LEFT_OUT,
    claims=(
        claim("short intervals", 2, "within 3% of 10,000 failures",
              each(SHORT, _is_near, _of_settings), same_again(_of_settings)),
        claim("intervals as long as the MTBF", 2, "and longer; the same tolerance",
              each(LONG, _is_near, _of_settings)),
    ),
    hints=(
        LIBS,
        NOTHING,
        Hint("no number", s.kind("form"), "return one number, from 0 to 1."),
        Hint("percent", _shares(lambda got, want: abs(got / 100 / want - 1) < NEAR),
             "0 to 1: a share, no per cent."),
        Hint("what is kept", _shares(lambda got, want: abs(got - (1 - want)) < NEAR * want),
             "that is the share of time that counts, the goodput. Lost is the rest: 1 minus it."),
        Hint("first order only", s.kind("no share", "share", long=True),
             "S/T + (T/2 + R)/M holds while T, S and R are short against M. Here they are not: "
             "take the sum over all saves, with e^(-R/M) / (e^((T+S)/M) - 1)."),
        Hint("more than all", s.kind("no share"),
             "kept is T for each save that ends, and of these there are e^(-R/M) / (e^((T+S)/M) - "
             "1) in M seconds."),
        Hint("too little lost", s.both(s.kind("share"), lambda p: p.facts["got"] < p.facts["want"]),
             "three things are lost: what each save takes, the restart after each failure, and the "
             "work since the last save. Which of them is missing?"),
        Hint("too much lost", s.both(s.kind("share"), lambda p: p.facts["got"] > p.facts["want"]),
             "of the interval in which a failure comes, half is lost on average, and a save is "
             "lost once for each interval. What is counted twice?"),
        ONCE,
        *s.ANYWHERE,
    ),
)  # fmt: skip
BEST = Exercise(
    name="best_interval", reference=best_interval, measure=_measure_best, worlds=(), bonus=True,
    leaves_out=LEFT_OUT,
    claims=(
        claim("a quick save", 1, "within 2% of the best", each(QUICK, _is_best, _of_a_save),
              same_again(_of_a_save)),
        claim("Daly's examples", 1, "117, 57 and 9.1 minutes",
              each([*DALYS], _is_best, _of_a_save)),
        claim("a slow save", 1, "up to half the MTBF", each(SLOW, _is_best, _of_a_save)),
    ),
    hints=(
        LIBS,
        NOTHING,
        Hint("no number", s.kind("form"), "return one number, of seconds."),
        Hint("near, not near enough",
             s.both(s.kind("interval", later=False), lambda p: 1 < p.facts["ratio"] < 1.1),
             "with a quick save the best interval is a small part of the MTBF: look in smaller "
             "steps there, or take Daly's series."),
        Hint("not in seconds", s.both(s.kind("interval"), lambda p: p.facts["ratio"] < 1 / 25),
             "save and mtbf are seconds, and so is what is returned: no minutes, no hours."),
        Hint("Young's alone", s.both(s.kind("interval"), s.fact("later"),
            lambda p: p.facts["ratio"] > 1),
             "the square root holds while a save is short against the MTBF. Add Daly's terms, or "
             "look for the interval at which your lost_share is least."),
        Hint("too short", s.both(s.kind("interval"), lambda p: p.facts["ratio"] < 1),
             "it saves too often. With T too short the saves cost more than the work that they "
             "keep: sqrt(2 S M)."),
        Hint("too long", s.kind("interval"),
             "it saves too seldom: at the least, what the saves take and what failures take grow "
             "equally fast."),
        ONCE,
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("goodput", (MTBF, SHARE, BEST), bonus=True)
