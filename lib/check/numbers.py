"""Checks of functions that return a number: is it a number, and how far is it from lib's?

Functions of plain numbers need no script:

    MEASURE, about = numbers(model_state_bytes, CASES, words, "bytes")
    claims(MEASURE, ("one parameter", 1, "4 bytes", about((1, "fp32"))), ...)

A case is the tuple of the function's arguments, in order; words(*case) is its name in a verdict.
"""

from lib.check.claims import is_number
from lib.check.explain import times
from lib.check.left_out import NO_TENSORS
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here

NO_NUMBER = "a number is returned"


def is_one(show, out, what="a number") -> bool:
    """True if `out` is a finite number. If it is not, show what it is instead."""
    return show.returned(out, is_finite(out), what, NO_NUMBER)


def is_finite(out) -> bool:
    """True if `out` is a number, and neither infinite nor nan."""
    return is_number(out) and out - out == 0


def show_times(show, name, number):
    """Show the number. If it is wrong, the verdict adds its ratio to lib's."""
    libs = show.lib and show.lib.shown[name, 1].values[""]
    show(name, number, beside=times(number, libs) if libs else "")


def wrong(fits, cases=None):
    """A predicate for hints: in one of these cases (None: in any), the number differs from lib's
    and fits(got, lib's) holds."""
    return lambda p: (
        p.kind == "number"
        and is_number(p.fact("got"))
        and (cases is None or p.fact("case") in cases)
        and fits(p.facts["got"], p.facts["want"])
    )


def numbers(reference, cases, words, name, unit=1):
    """Return the measure, and a function: about(*cases) is the last entry of a claim's row, which
    limits the claim to these cases.

    name: what the number counts, "bytes" for example.
    unit: a verdict states `unit` times the number that the function returns.
    """
    names = {case: words(*case) for case in cases}
    jobs = {what: case for case, what in names.items()}

    def script(make, case, show):
        out = show.run(make, *jobs[case.what])
        if is_one(show, out, f"a number of {name}"):
            show_times(show, name, out * unit)

    def about(*some):
        return (RETURNED, NO_NUMBER, name), here(*(names[case] for case in some))

    return SideBySide(script, reference, here(*jobs), groups=None, excused=NO_TENSORS), about
