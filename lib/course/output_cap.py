"""Stops a cell that prints without end. It is loaded into the kernel that runs a graded notebook.

A million lines cost nbval half a minute and a gigabyte, so we stop the output where it is produced.
At the limit, print and display raise an error in the student's own code, and the check reports it
like any other. The count then starts again, so that the check can still print its verdict. If a
cell catches the error and continues FLOODS times, the rest of its output is dropped.
"""

import sys

CHARACTERS = 1_000_000  # that one cell may print on one stream
DISPLAYS = 1_000  # that one cell may show
FLOODS = 10  # times that one cell may reach a limit; what it prints afterwards is dropped


class OutputLimit(RuntimeError):
    """One cell has printed or displayed more than any answer needs to."""


def install(shell) -> None:
    """Limit what each cell of IPython's `shell` may print and display, beginning with the next
    cell."""
    shell.events.register("pre_execute", lambda: _cap(shell))


def _cap(shell) -> None:
    """Wrap the streams anew before each cell, because IPython 9 replaces their `write` for each
    cell. `_limited` never wraps its own result."""
    for stream in (sys.stdout, sys.stderr):
        stream.write = _limited(stream.write, len, CHARACTERS, "characters printed")
    publisher = shell.display_pub
    publisher.publish = _limited(publisher.publish, lambda *data: 1, DISPLAYS, "displays")


def _limited(call, size, limit: int, what: str):
    """Wrap `call`, so that it raises OutputLimit once the sizes of its arguments add up to more
    than `limit`."""
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
