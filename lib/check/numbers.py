"""Functions of plain numbers that return one: beside lib's own, in many cases.

    MEASURE, about = numbers(model_state_bytes, CASES, words, "bytes")
    claims(MEASURE, ("one parameter", 1, "4 bytes", *about((1, "fp32"))), ...)

A case is the function's arguments, in order; words(*case) is its name in a verdict.
"""

from lib.check.claims import is_number
from lib.check.explain import times
from lib.check.left_out import NO_TENSORS
from lib.check.side_by_side import SideBySide, here

NOTHING, NO_NUMBER = "something is returned", "a number is returned"


def numbers(reference, cases, words, name, unit=1):
    """(the measure, about(*cases): what a claim on these is about). name: of the number, in the
    unit in which a verdict tells it: times `unit`."""
    names = {case: words(*case) for case in cases}
    jobs = {what: case for case, what in names.items()}

    def script(make, case, show):
        out = show.run(make, *jobs[case.what])
        show(NOTHING, "" if out is not None else f"got None, expected a number of {name}")
        got = f"got {out!r:.60}, a {type(out).__name__}, expected a number of {name}"
        show(NO_NUMBER, "" if out is None or is_number(out) else got)
        if is_number(out):
            wanted = show.lib.shown[name, 1].values[""] if show.lib else None
            show(name, out * unit, beside=times(out * unit, wanted))

    def about(*some):
        these = here(*(names[case] for case in some))
        return [(what, these) for what in (NOTHING, NO_NUMBER, name)]

    return SideBySide(script, reference, here(*jobs), groups=None, excused=NO_TENSORS), about
