"""Builds claims from several judges, and judges that look at each case and each rank in turn.

Judges of values that are shown side by side are in shown.py, and judges of what was sent are in
traffic.py.
"""

from numbers import Real

from lib.check.cases import seen
from lib.check.exercise import Claim, Problem
from lib.check.explain import kind_of


def claim(name, points, says, *judges) -> Claim:
    """One claim with several judges. They are asked in order, and the first Problem counts."""

    def judge(runs):
        return next((found for one in judges if (found := one(runs))), None)

    return Claim(name, points, says, judge)


def without_ranks(judge):
    """Turn judge(seen), where `seen` is what the measure returned, into a judge of a function that
    needs no ranks."""

    def of(runs):
        ((seen,),) = (run.results for run in runs)
        return judge(seen)

    return of


def each(cases, problem):
    """A judge: calls problem(case, rank, record) for each case and each rank, and returns the first
    Problem."""

    def judge(runs):
        for _, case, records in seen(runs, cases):
            for rank, record in enumerate(records):
                if found := problem(case, rank, record):
                    return found
        return None

    return judge


def is_number(got) -> bool:
    return isinstance(got, Real) and not isinstance(got, bool)


def iterator(out, item):
    """The Problem if `out`, or one of its items, can be iterated over only once, else None. item:
    how a sentence about an item begins, such as "rank {} has"."""
    inside = enumerate(out) if isinstance(out, (list, tuple)) else ()
    for what, one in [("got", out), *((item.format(number), one) for number, one in inside)]:
        if hasattr(one, "__next__") or isinstance(one, map | zip | filter | reversed):
            text = f"{what} {kind_of(one)}, which can be gone through once, expected a list"
            return Problem("iterator", text)
    return None
