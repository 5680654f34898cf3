"""Functions that return a number: what they return in place of one, and how far from lib's own.

Those of plain numbers need no script:

    MEASURE, about = numbers(model_state_bytes, CASES, words, "bytes")
    claims(MEASURE, ("one parameter", 1, "4 bytes", *about((1, "fp32"))), ...)

A case is the function's arguments, in order; words(*case) is its name in a verdict.
"""

from lib.check.claims import is_number
from lib.check.explain import described, times
from lib.check.left_out import NO_TENSORS
from lib.check.side_by_side import SideBySide, here

NOTHING, NO_NUMBER = "something is returned", "a number is returned"


def is_one(show, out, what="a number") -> bool:
    """Is it a finite number? What it is in place of one is shown."""
    good = is_number(out) and out - out == 0
    show(NOTHING, f"got None, expected {what}" if out is None else "")
    said = f"got {described(out)}, expected {what}"
    show(NO_NUMBER, "" if good or out is None else said)
    return good


def show_times(show, name, number):
    """Shows the number, and beside it how many times lib's it is."""
    libs = show.lib and show.lib.shown[name, 1].values[""]
    show(name, number, beside=times(number, libs) if libs else "")


def wrong(fits, cases=None):
    """For hints: is it another number than lib's, in one of these cases, and fits(got, lib's)?"""
    return lambda p: (
        p.kind == "number"
        and is_number(p.fact("got"))
        and (cases is None or p.fact("case") in cases)
        and fits(p.facts["got"], p.facts["want"])
    )


def numbers(reference, cases, words, name, unit=1):
    """(the measure, about(*cases): what a claim on these is about). name: of the number, in the
    unit in which a verdict tells it: times `unit`."""
    names = {case: words(*case) for case in cases}
    jobs = {what: case for case, what in names.items()}

    def script(make, case, show):
        out = show.run(make, *jobs[case.what])
        if is_one(show, out, f"a number of {name}"):
            show_times(show, name, out * unit)

    def about(*some):
        these = here(*(names[case] for case in some))
        return [(what, these) for what in (NOTHING, NO_NUMBER, name)]

    return SideBySide(script, reference, here(*jobs), groups=None, excused=NO_TENSORS), about
