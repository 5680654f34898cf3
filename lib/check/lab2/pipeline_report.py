"""Lab 2, section 8: pipeline_report(costs, p, v, m, stage_gb, rank_mfu), Llama 3 405B in small.

    0, 1 x 14, 0.66        16 items, one for each of 4 x 4 stages       pace 12
    0, 1 x 16, 0.66        18 items: the last rank has 4.66             pace 13.98

The answer calls the student's own `balance` and `interleaved`. In every case only one split is
best, so what it should be does not depend on which of several a student's `balance` prefers. Of
schedules there are several that `interleaved` may give, whose bubbles differ where stages do:
right is what lib's gives, or the student's own once it has passed its check.
"""

from math import isclose
from numbers import Real
from types import FunctionType

from lib.check import framework, pure
from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import BUILT
from lib.check.pure import each
from lib.pipeline.report import pipeline_report

KEYS = ("pace", "bubble", "memory", "MFU")
CASES = [  # costs, p, v, m, stage_gb, rank_mfu
    ((0, *[1] * 14, 0.66), 4, 4, 4, 0.5, 0.46),
    ((0, *[1] * 14, 0.66), 4, 4, 8, 0.5, 0.46),
    ((0, *[1] * 16, 0.66), 4, 4, 8, 0.25, 0.5),
    ((2, 1, 1, 3, 1, 2, 2), 3, 1, 5, 2.0, 0.4),
    ((1, 3, 2, 2), 2, 2, 6, 1.5, 0.6),
    ((1, 2), 1, 2, 3, 1.0, 0.5),
]
CASES_SAY = "p = 1 to 4; v = 1, 2, 4; m = 3 to 8"


def _measure(fn):
    return pure.asked(fn, pipeline_report, CASES, lambda costs, *rest: ([*costs], *rest), _read)


def _read(out, *case):
    """[pace, bubble, memory, MFU]; else the Problem."""
    if out is None:
        return Problem("nothing", f"got None, expected a dict with {', '.join(KEYS)}")
    if not isinstance(out, dict):
        return Problem("form", f"got {out!r:.60}, expected a dict with {', '.join(KEYS)}")
    if {*out} != {*KEYS}:
        return Problem("keys", f"got the keys {[*out]}, expected {[*KEYS]}")
    wrong = next((key for key in KEYS if not isinstance(out[key], Real)), None)
    if wrong:
        text = f'"{wrong}" is {out[wrong]!r:.60}, expected a number'
        return Problem("number", text, {"several": isinstance(out[wrong], list | tuple)})
    return [float(out[key]) for key in KEYS]


def _right(key):
    """A judge: this entry of every case."""
    at = KEYS.index(key)

    def judge(got, *case):
        want = pipeline_report(*case)[key]
        if any(
            isclose(got[at], one, rel_tol=1e-9, abs_tol=1e-12) for one in (want, *_own(key, case))
        ):
            return None
        rounded = isclose(got[at], want, abs_tol=0.006) and got[at] == round(got[at], 2)
        text = f'"{key}" is {got[at]:.4g}, expected {want:.4g}'
        return Problem(key, text, {"rounded": rounded})

    return each(CASES, judge, _words)


def _own(key, case):
    """The same with the student's schedule, if that has passed its check; else nothing."""
    schedule = framework.passed("interleaved")
    if schedule is None:
        return []
    names = {**pipeline_report.__globals__, "interleaved": schedule}
    return [FunctionType(pipeline_report.__code__, names)(*case)[key]]


def _words(costs, p, v, m, stage_gb, rank_mfu):
    return f"{len(costs)} items, p = {p}, v = {v}, m = {m}"


EXERCISE = Exercise(
    name="pipeline_report", reference=pipeline_report, measure=_measure, worlds=(),
    leaves_out=BUILT
    | {"precise": "plain numbers, compared up to rounding",
       "empty rank": "there are no ranks, and every stage has an item"},
    claims=(
        claim("pace of the slowest rank", 1, f"over its v stages; {CASES_SAY}", _right("pace"),
              pure.left_alone(_words), pure.kept(_words)),
        claim("bubble", 1, "simulated with these times", _right("bubble")),
        claim("memory of the fullest rank", 1, "GB of activations", _right("memory")),
        claim("MFU", 1, "with the idle time", _right("MFU")),
    ),
    hints=(
        s.CALLED_LIB.saying("put it together from use(balance), use(interleaved) and simulate."),
        pure.ONCE,
        s.NOT_KEPT,
        s.OVERWRITTEN,
        pure.NOTHING,
        Hint("not a dict", s.kind("form"),
             'return a dict: {"pace": ..., "bubble": ..., "memory": ..., "MFU": ...}.'),
        Hint("other keys", s.kind("keys"),
             'the four keys are "pace", "bubble", "memory" and "MFU", no more and no fewer.'),
        Hint("one for each rank", s.kind("number", several=True),
             "each entry is one number. Pace and memory are those of the rank with the most, and "
             "the bubble is the mean over all ranks, which is `simulate(...).bubble`."),
        Hint("no number", s.kind("number"), "each of the four is a plain number, not a text."),
        Hint("rounded", s.fact("rounded"),
             "this looks rounded. Return the number as it is, and round when you print it."),
        Hint("another pace", s.kind("pace"),
             "add up the forward and backward times of each rank's stages, which are rank, "
             "rank + p, rank + 2p, ..., and take the largest sum."),
        Hint("another bubble", s.kind("bubble"),
             "simulate the interleaved schedule with a list of times for each kind, one per stage: "
             '{"F": [...], "B": [...]}, where a backward takes twice its forward. No formula knows '
             "that the stages differ."),
        Hint("another memory", s.kind("memory"),
             "simulate(...).peak_kept has the micro-batches x stages that each rank keeps at "
             "most. The fullest rank's, times stage_gb."),
        Hint("another MFU", s.kind("MFU"),
             "a rank reaches rank_mfu while it computes, and nothing while it is idle."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
