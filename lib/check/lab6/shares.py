"""Lab 6, section 7: shares(B, speeds, most), rows of a batch for ranks of unequal speed.

    10 rows, 3 2 1 rows per second       [4, 3, 3]  3 s       [6, 3, 1]  2 s: of all 66 splits none is faster

Right is what is as fast as the best of all splits, whichever of several it is; the best is found by trying them all.
"""

from functools import cache
from itertools import combinations
from math import isclose
from numbers import Integral

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab2.asking import asked, each
from lib.check.lab6.shares_endless import ended
from lib.check.lab6.shares_hints import HINTS
from lib.unequal.shares import seconds_of_step, shares

FREE = [  # B, speeds, most
    (10, (3, 2, 1), None),
    (10, (1, 1, 1, 1), None),
    (12, (1, 4, 2, 1), None),
    (6, (10, 1), None),  # by the largest remainder rank 1 gets a row, for which it takes longer than rank 0 for all 6
    (3, (1000, 1), None),
    (9, (0.5, 1.5, 2.5), None),
    (7, (2, 5), None),
    (11, (1, 6, 6, 1), None),
    (1, (1, 3, 2), None),
    (0, (1, 2), None),
    (5, (2,), None),
]
LIMITED = [
    (10, (3, 2, 1), (4, 4, 4)),
    (10, (3, 2, 1), (3, 10, 10)),
    (6, (5, 1, 1), (0, 4, 4)),
    (9, (1, 1, 4), (9, 9, 3)),
    (12, (8, 4, 2, 1), (3, 12, 12, 12)),
    (12, (4, 2, 2, 1), (5, 3, 12, 12)),
    (7, (4, 2, 1), (2, 2, 3)),
    (5, (1, 2), (5, 5)),
]
REFUSED = [(10, (3, 2, 1), (4, 3, 2)), (5, (1, 1), (2, 2)), (1, (1,), (0,))]


def _given(B, speeds, most):
    return (B, [*speeds]) if most is None else (B, [*speeds], [*most])


def _words(*case):
    return f"shares({', '.join(map(str, _given(*case)))})"


def _measure(fn):
    cases = FREE + LIMITED + REFUSED
    arguments = {case: _given(*case) for case in cases}
    seen = asked(ended(fn), shares, arguments, lambda out, *_: out)
    seen = {case: out if isinstance(out, Problem) else _read(out, *case) for case, out in seen.items()}
    seen["changed"] = next((case for case in cases if arguments[case] != _given(*case)), None)
    seen["now"] = arguments.get(seen["changed"])
    return seen


def _read(out, B, speeds, most):
    N = len(speeds)
    want = f"expected a list of {N} whole number{'s'[: N > 1]}"
    if not isinstance(out, (list, tuple)) or len(out) != N:
        return Problem("nothing" if out is None else "form", f"got {out!r:.60}, {want}")
    if odd := [b for b in out if not isinstance(b, Integral) or isinstance(b, bool)]:
        return Problem("form", f"got {[*out]}, in it {odd[0]!r:.30}, a {type(odd[0]).__name__}; {want}")
    return [*map(int, out)]


def _all_rows(got, B, speeds, most):
    if min(got) < 0:
        return Problem("negative", f"got {got}: rank {got.index(min(got))} has fewer rows than none")
    if sum(got) != B:
        return Problem("sum", f"got {got}, {sum(got)} rows in all, expected {B}")
    return None


def _fits(got, B, speeds, most):
    if problem := _all_rows(got, B, speeds, most):
        return problem
    for rank, (b, room) in enumerate(zip(got, most, strict=True)):
        if b > room:
            return Problem("over", f"got {got}: rank {rank} has {b} rows, and memory for {room}")
    return _no_other_is_faster(got, B, speeds, most)


def _no_other_is_faster(got, B, speeds, most):
    mine, fastest = seconds_of_step(got, speeds), _fastest(B, speeds, most)
    if mine <= fastest or isclose(mine, fastest, rel_tol=1e-9):
        return None
    slow = max(range(len(got)), key=lambda rank: got[rank] / speeds[rank])
    takes = f"rank {slow} is the slowest, with {got[slow]} row{'s'[: got[slow] > 1]} at {speeds[slow]} per second"
    return Problem(
        "pace", f"got {got}: {takes}: {mine:.4g} s\nexpected {fastest:.4g} s, as with {shares(B, speeds, most)}"
    )


@cache
def _fastest(B, speeds, most):
    """Seconds of the fastest of all splits, found by trying them all."""
    fits = lambda rows: most is None or all(b <= room for b, room in zip(rows, most, strict=True))
    return min(seconds_of_step(rows, speeds) for rows in _splits(B, len(speeds)) if fits(rows))


def _splits(B, N):
    """All lists of N whole numbers, 0 or more, whose sum is B: N - 1 bars between B rows."""
    for bars in combinations(range(B + N - 1), N - 1):
        ends = [-1, *bars, B + N - 1]
        yield [ends[i + 1] - ends[i] - 1 for i in range(N)]


def _first_gets_more(got, B, speeds, most):
    for i, j in combinations(range(len(got)), 2):
        room = most is None or most[i] >= most[j]
        if speeds[i] == speeds[j] and room and got[i] < got[j]:
            return Problem("ties", f"got {got}: ranks {i} and {j} are equally fast, and rank {i} has fewer rows")
    return None


def _refused(runs):
    ((seen,),) = (run.results for run in runs)
    for case in REFUSED:
        got, want = seen[case], f"there is memory for {sum(case[2])} rows, expected a ValueError"
        error = got.facts.get("error") if isinstance(got, Problem) else None
        if isinstance(got, Problem) and got.kind == "endless":
            return Problem("endless", f"{_words(*case)}: {got.text}\n{want}")
        if error is None:
            said = f"got {got}" if isinstance(got, list) else "no error"
            return Problem("not refused", f"{_words(*case)}: {said}; {want}")
        if not isinstance(error, ValueError):
            return Problem("another error", f"{_words(*case)}: {got.text}\n{want}")
    return None


def _left_alone(runs):
    ((seen,),) = (run.results for run in runs)
    if seen["changed"] is None:
        return None
    return Problem(
        "changed", f"{_words(*seen['changed'])}: afterwards the arguments are {', '.join(map(str, seen['now']))}"
    )


EXERCISE = Exercise(
    name="shares",
    reference=shares,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("whole rows, B in all", 2, "1 to 4 ranks, 0 to 12 rows", each(FREE, _all_rows, _words)),
        Claim("no other shares are faster", 3, "compared with all there are", each(FREE, _no_other_is_faster, _words)),
        Claim("no more than `most`", 2, "and no other such shares are faster", each(LIMITED, _fits, _words)),
        Claim("equally fast ranks", 1, "the first gets more", each(FREE + LIMITED, _first_gets_more, _words)),
        Claim("rows that fit nowhere", 1, "a ValueError", _refused),
        Claim("arguments left alone", 1, "speeds and most", _left_alone),
    ),
    hints=HINTS,
)
