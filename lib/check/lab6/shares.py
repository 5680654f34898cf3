"""Lab 6, section 8: shares(B, speeds, most), rows of a batch for ranks of unequal speed.

    10 rows, 3 2 1 rows per second   [4, 3, 3]  3 s  [6, 3, 1]  2 s: of all 66 splits none is faster

Right is what is as fast as the best of all splits, whichever of several it is.
"""

from itertools import combinations
from math import isclose
from numbers import Integral

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.pure import (
    GENERAL,
    LEAVES_OUT,
    all_seen,
    asked,
    each,
    left_alone,
    new_each_time,
    refused,
)
from lib.hybrid.unequal.shares import seconds_of_step, shares

FREE = [  # B, speeds, most
    (10, (3, 2, 1), None),
    (10, (1, 1, 1, 1), None),
    (12, (1, 4, 2, 1), None),
    # By the largest remainder rank 1 gets a row, for which it takes longer than rank 0 for all 6.
    (6, (10, 1), None),
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
    return asked(fn, shares, FREE + LIMITED + REFUSED, _given, _read)


def _read(out, B, speeds, most):
    N = len(speeds)
    want = f"expected a list of {N} whole number{'s'[: N > 1]}"
    if not isinstance(out, (list, tuple)) or len(out) != N:
        return Problem("nothing" if out is None else "form", f"got {out!r:.60}, {want}")
    if odd := [b for b in out if not isinstance(b, Integral) or isinstance(b, bool)]:
        return Problem(
            "form", f"got {[*out]}, in it {odd[0]!r:.30}, a {type(odd[0]).__name__}; {want}"
        )
    return [*map(int, out)]


def _all_rows(got, B, speeds, most):
    if min(got) < 0:
        return Problem(
            "negative", f"got {got}: rank {got.index(min(got))} has fewer rows than none"
        )
    if sum(got) != B:
        return Problem("sum", f"got {got}, {sum(got)} rows in all, expected {B}")
    return None


def _fits(got, B, speeds, most):
    if problem := _all_rows(got, B, speeds, most):
        return problem
    for rank, (b, room) in enumerate(zip(got, most, strict=True)):
        if b > room:
            text = f"got {got}: rank {rank} has {b} rows, and memory for {room}"
            return Problem("over", text, {"none": room == 0})
    return _no_other_is_faster(got, B, speeds, most)


def _no_other_is_faster(got, B, speeds, most):
    best = shares(*_given(B, speeds, most))
    mine, fastest = seconds_of_step(got, speeds), seconds_of_step(best, speeds)
    if mine <= fastest or isclose(mine, fastest, rel_tol=1e-9):
        return None
    slow = max(range(len(got)), key=lambda rank: got[rank] / speeds[rank])
    takes = (
        f"rank {slow} is the slowest, with {got[slow]} row{'s'[: got[slow] > 1]} at {speeds[slow]} "
        f"per second"
    )
    return Problem(
        "pace", f"got {got}: {takes}: {mine:.4g} s\nexpected {fastest:.4g} s, as with {best}"
    )


def _first_gets_more(got, B, speeds, most):
    for i, j in combinations(range(len(got)), 2):
        room = most is None or most[i] >= most[j]
        if speeds[i] == speeds[j] and room and got[i] < got[j]:
            return Problem(
                "ties",
                f"got {got}: ranks {i} and {j} are equally fast, and rank {i} has fewer rows",
            )
    return None


def _falling(got, B, speeds, most):
    """Does a faster rank never get more than a slower one?"""
    pairs = [(i, j) for i in range(len(got)) for j in range(len(got)) if speeds[i] > speeds[j]]
    return all(got[i] <= got[j] for i, j in pairs)


EXERCISE = Exercise(
    name="shares", reference=shares, measure=_measure, worlds=(), bonus=True, leaves_out=LEAVES_OUT,
    claims=(
        claim("integers that sum to B", 2, "1 to 4 ranks, 0 to 12 rows",
              each(FREE, _all_rows, _words)),
        claim("no other shares are faster", 3, "compared with all possible shares",
              each(FREE, _no_other_is_faster, _words)),
        claim("no more than `most`", 2, "and no other allowed shares are faster",
              each(LIMITED, _fits, _words)),
        claim("equally fast ranks", 1, "the first gets more",
              each(FREE + LIMITED, _first_gets_more, _words)),
        claim("rows that do not fit", 1, "a ValueError",
              refused(REFUSED, _words, lambda B, speeds,
                  most: f"there is memory for {sum(most)} rows")),
        claim("arguments left alone", 1, "speeds and most", left_alone(_words),
              new_each_time(_words)),
    ),
    hints=(
        s.CALLED_LIB.saying("B rounds of a loop, each of which gives one rank one more row."),
        Hint("nothing returned", s.kind("nothing"), "the function must end with `return b`."),
        Hint("not whole numbers", s.kind("form"),
             "one int for each rank, in the order of `speeds`: a row is not halved."),
        Hint("never ends", s.kind("endless"),
             "a loop until all rows are dealt never ends if the rank whose turn it is has no room. "
             "Look only at ranks with b[r] < most[r], and see first whether sum(most) is enough."),
        Hint("whole speeds", s.raised("ZeroDivisionError"),
             "a speed is any number above 0, also 0.5: no int(speed), no //."),
        Hint("any number of rows", s.raised("TypeError"),
             "`most` may be left out, and is None then: each rank has memory for all B rows."),
        Hint("refused too soon", s.raised("ValueError"),
             "these rows fit: raise only where sum(most) < B. One rank may have less room than its "
             "share; others take the rest."),
        Hint("room for no row", s.kind("over", none=True),
             "0 rows of memory are none, and `most or ...` takes 0 for what is left out. Only None "
             "is any number."),
        Hint("slow ranks get more", s.both(s.kind("sum", "pace"), all_seen(_falling)),
             "speeds are rows per second, not seconds per row: the faster rank gets more."),
        Hint("a row for everybody", s.both(s.kind("sum", "pace"),
            all_seen(lambda got, *case: min(got) > 0)),
             "a rank that is very slow gets no row: it would take longer for one than the others "
             "for all."),
        Hint("one row over", s.kind("over"),
             "a rank takes a row only while b[r] < most[r]: before it is given, not after."),
        Hint("fewer than none", s.kind("negative"),
             "a correction has taken more rows than the rank had: deal, do not correct."),
        Hint("rows lost or made", s.kind("sum"),
             "every row is on one rank: exactly B of them are dealt, one after another."),
        Hint("not the fastest", s.kind("pace"),
             "a step ends with the last rank, max of b / v. The next row goes where (b + 1) / v is "
             "least."),
        Hint("ties to the last", s.kind("ties"),
             "of equally fast ranks the first gets more: min((seconds, r)) prefers the smaller r, "
             "and <= the later one."),
        Hint("no error", s.kind("not refused"),
             "if sum(most) < B: raise ValueError(...), before any row is dealt."),
        Hint("not a ValueError", s.kind("another error"),
             'look at once: if sum(most) < B: raise ValueError(f"{B} rows, but memory for '
             '{sum(most)}").'),
        Hint("arguments changed", s.kind("input"),
             "`speeds` and `most` are the caller's lists: count in a list of your own, b."),
        Hint("the caller's list", s.kind("shared"),
             "return a list of your own, which the caller may change."),
        *GENERAL,
    ),
)  # fmt: skip
