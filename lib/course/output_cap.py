"""Stops a cell that prints without end: loaded into the kernel in which a student's notebook is
graded.

A million lines cost nbval half a minute and a gigabyte, so the flood is stopped at its source: at
the limit, print and display raise in the student's own code, and the check reports that as any
other error. The count then starts again, so that the check's own verdict still fits; code that
catches the error and floods on is soon heard no more.
"""

import sys

CHARACTERS = 1_000_000  # printed by one cell on one stream
DISPLAYS = 1_000  # shown by one cell
FLOODS = 10  # that raise in one cell; whatever it prints after them is dropped


class OutputLimit(RuntimeError):
    """One cell has printed or displayed more than any answer needs to."""


def install(shell) -> None:
    """From its next cell on, limit what each cell of `shell` (IPython's) may print and display."""
    shell.events.register("pre_execute", lambda: _cap(shell))


def _cap(shell) -> None:
    """Wrap afresh before each cell, for IPython 9 puts its own `write` there for each; never twice
    on one stream."""
    for stream in (sys.stdout, sys.stderr):
        stream.write = _limited(stream.write, len, CHARACTERS, "characters printed")
    publisher = shell.display_pub
    publisher.publish = _limited(publisher.publish, lambda *data: 1, DISPLAYS, "displays")


def _limited(call, size, limit: int, what: str):
    """`call`, until the sizes of what it was given add up to more than `limit`; then it
    raises OutputLimit."""
    call = getattr(call, "unlimited", call)
    total, floods = 0, 0

    def limited(*args, **kwargs):
        nonlocal total, floods
        if floods == FLOODS:
            return None
        total += size(*args)
        if total > limit:
            total, floods = 0, floods + 1
            raise OutputLimit(f"more than {limit:,} {what} by one cell")
        return call(*args, **kwargs)

    limited.unlimited = call
    return limited
