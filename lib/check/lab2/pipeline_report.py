"""Lab 2, section 8: pipeline_report(costs, p, v, m, stage_gb, rank_mfu), judged on small pipelines
such as these two, which are modelled on Llama 3 405B:

    0, 1 x 14, 0.66        16 items, one for each of 4 x 4 stages       pace 12
    0, 1 x 16, 0.66        18 items: the last rank has 4.66             pace 13.98

The answer calls the student's own `balance` and `interleaved`. In every case only one split is
best, so it does not matter which of several splits a student's `balance` prefers. But `interleaved`
may return one of several schedules, whose bubbles differ if the stages take different times. So a
number is right if it follows from lib's schedule, or from the student's once that has passed.
"""

from functools import cache
from math import isclose
from numbers import Real
from types import FunctionType

from lib.check import framework
from lib.check.causes import hints
from lib.check.explain import cut
from lib.check.left_out import BUILT, NO_TENSORS
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here, unwatched
from lib.pipeline.report import pipeline_report

KEYS = ("pace", "bubble", "memory", "MFU")
JOBS = [  # costs, p, v, m, stage_gb, rank_mfu
    ((0, *[1] * 14, 0.66), 4, 4, 4, 0.5, 0.46),
    ((0, *[1] * 14, 0.66), 4, 4, 8, 0.5, 0.46),
    ((0, *[1] * 16, 0.66), 4, 4, 8, 0.25, 0.5),
    ((2, 1, 1, 3, 1, 2, 2), 3, 1, 5, 2.0, 0.4),
    ((1, 1, 3, 2), 2, 2, 6, 1.5, 0.6),  # its bubble would be smaller if B took as long as F
    ((1, 2), 1, 2, 3, 1.0, 0.5),
]
OF_NAME = {
    f"{len(costs)} items, p = {p}, v = {v}, m = {m}": (costs, p, v, m, *rest)
    for costs, p, v, m, *rest in JOBS
}
FORM = A_DICT, *ENTRIES = "a dictionary", "numbers", "several numbers"


def script(make, case, show):
    costs, *rest = job = OF_NAME[case.what]
    with unwatched():  # or this call of lib's function would count as the answer's
        libs, own = _right(job, framework.passed("interleaved"))
    out = show.run(make, [*costs], *rest)
    is_dict = isinstance(out, dict) and {*out} == {*KEYS}
    is_dict = show.returned(out, is_dict, f"a dict with {', '.join(KEYS)}", A_DICT)
    for key in KEYS if is_dict else ():
        if show.said(ENTRIES, _misread(key, out[key])):
            return
        got = float(out[key])
        alike = own and isclose(got, own[key], rel_tol=1e-9, abs_tol=1e-12)
        show(key, libs[key] if alike else got)


def _misread(key, got):
    """{name: what is wrong}, or {}."""
    name = "several numbers" if isinstance(got, list | tuple) else "numbers"
    return {} if isinstance(got, Real) else {name: f'"{key}" is {cut(got, 60)}, expected a number'}


@cache
def _right(job, schedule):
    """The four numbers with lib's schedule, and those with the student's if that has passed its
    check, else None."""
    if schedule is None:
        return pipeline_report(*job), None
    names = {**pipeline_report.__globals__, "interleaved": schedule}
    return pipeline_report(*job), FunctionType(pipeline_report.__code__, names)(*job)


def _rounded(problem):
    got, want = problem.fact("got"), problem.fact("want")
    numbers = isinstance(got, float) and isinstance(want, float)
    return numbers and any(got == round(want, digits) for digits in range(2, 7))


MEASURE = SideBySide(script, pipeline_report, here(*OF_NAME), groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("pace of the slowest rank", 1, "over its v stages; p = 1 to 4; v = 1, 2, 4; m = 3 to 8",
     RETURNED, *FORM, "pace", "arguments", "changed later"),
    ("bubble", 1, "simulated with these times", "bubble"),
    ("memory of the fullest rank", 1, "GB of activations", "memory"),
    ("MFU", 1, "with the idle time", "MFU"),
    hints=hints("lab2", "pipeline_report", rounded=_rounded),
    leaves_out=BUILT
    | {"precise": "plain numbers, compared up to rounding",
       "empty rank": "there are no ranks, and every stage has an item"},
)  # fmt: skip
