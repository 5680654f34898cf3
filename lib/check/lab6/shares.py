"""Lab 6, section 8: shares(B, speeds, most), which divides the rows of a batch among ranks of
unequal speed.

    10 rows, 3 2 1 rows per second   [4, 3, 3]  3 s  [6, 3, 1]  2 s: none of the 66 splits is faster

A split is judged by its speed, because several may be as fast as lib's, which no allowed split
beats. Only between equally fast ranks does it matter which one gets more rows.
"""

from itertools import combinations
from numbers import Integral

from lib.check.causes import hints
from lib.check.explain import described
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.hybrid.unequal.shares import seconds_of_step, shares

JOBS = [  # B, speeds, most
    (10, (3, 2, 1), None),
    (10, (1, 1, 1, 1), None),
    (12, (1, 4, 2, 1), None),
    # The largest remainder would give rank 1 a row, which takes longer than all 6 rows on rank 0.
    (6, (10, 1), None),
    (3, (1000, 1), None),
    (9, (0.5, 1.5, 2.5), None),
    (7, (2, 5), None),
    (11, (1, 6, 6, 1), None),
    (1, (1, 3, 2), None),
    (0, (1, 2), None),
    (5, (2,), None),
    (10, (3, 2, 1), (4, 4, 4)),
    (10, (3, 2, 1), (3, 10, 10)),
    (6, (5, 1, 1), (0, 4, 4)),
    (9, (1, 1, 4), (9, 9, 3)),
    (12, (8, 4, 2, 1), (3, 12, 12, 12)),
    (12, (4, 2, 2, 1), (5, 3, 12, 12)),
    (7, (4, 2, 1), (2, 2, 3)),
    (5, (1, 2), (5, 5)),
    (10, (3, 2, 1), (4, 3, 2)),  # the last three do not fit
    (5, (1, 1), (2, 2)),
    (1, (1,), (0,)),
]


def _given(B, speeds, most):
    return (B, [*speeds]) if most is None else (B, [*speeds], [*most])


OF_NAME = {f"shares({', '.join(map(str, _given(*job)))})": job for job in JOBS}
CASES = here(*OF_NAME)
FREE, LIMITED, REFUSED = CASES[:11], CASES[11:-3], CASES[-3:]
FORM = WHOLE, *_ = "whole numbers", "no fewer than none", "all rows"


def script(make, case, show):
    B, speeds, most = OF_NAME[case.what]
    given = _given(B, speeds, most)
    if case in REFUSED:
        show.refused(make, *given)
        return
    out = show.run(make, *given)
    is_given = any(out is one for one in given[1:])
    show("a list of its own", f"it returned {out}, which it was given" if is_given else "")
    N = len(speeds)
    is_list = isinstance(out, list | tuple) and len(out) == N
    if not show.returned(out, is_list, f"a list of {N} whole numbers", WHOLE):
        return
    if show.said(FORM, _misread(out, B)):
        return
    full = next((r for r, b in enumerate(out) if most and b > most[r]), None)
    show("room for no row", _over(out, full, most) if full is not None and not most[full] else "")
    show("room", "" if full is None else _over(out, full, most))
    slow = max(range(len(out)), key=lambda rank: out[rank] / speeds[rank])
    takes = f"got {out}: rank {slow} is the slowest, {out[slow]} rows at {speeds[slow]} per second"
    show("seconds of a step", float(seconds_of_step(out, speeds)), at_most=True, beside=takes)
    show("equally fast ranks", _first_gets_less(out, speeds, most))


def _misread(out, B):
    """{name: what is wrong}, or {}."""
    if odd := [b for b in out if not isinstance(b, Integral) or isinstance(b, bool)]:
        return {WHOLE: f"got {[*out]}, in it {described(odd[0])}"}
    if min(out) < 0:
        return {"no fewer than none": f"got {out}: rank {out.index(min(out))} has less than no row"}
    if sum(out) != B:
        return {"all rows": f"got {[*out]}, {sum(out)} rows in all, expected {B}"}
    return {}


def _over(out, rank, most):
    return f"got {out}: rank {rank} has {out[rank]} rows, and memory for {most[rank]}"


def _first_gets_less(out, speeds, most):
    for i, j in combinations(range(len(out)), 2):
        room = most is None or most[i] >= most[j]
        if speeds[i] == speeds[j] and room and out[i] < out[j]:
            return f"got {out}: ranks {i} and {j} are equally fast, and rank {i} has fewer rows"
    return ""


MEASURE = SideBySide(script, shares, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("integers that sum to B", 2, "1 to 4 ranks, 0 to 12 rows", ((RETURNED, *FORM), FREE)),
    ("no other shares are faster", 3, "compared with all possible shares",
     ("seconds of a step", FREE)),
    ("no more than `most`", 2, "and no other allowed shares are faster",
     ((RETURNED, *FORM, "room for no row", "room", "seconds of a step"), LIMITED)),
    ("equally fast ranks", 1, "the first gets more", "equally fast ranks"),
    ("rows that do not fit", 1, "a ValueError", "the error raised"),
    ("arguments left alone", 1, "speeds and most", "a list of its own"),
    hints=hints("lab6", "shares"), bonus=True, leaves_out=LEAVES_OUT,
)  # fmt: skip
