"""Was lib's own function called? For a function that sends nothing: the ledger names only those that do."""

import sys
from contextlib import contextmanager


@contextmanager
def noting_calls(function):
    """`with noting_calls(f) as calls:` afterwards `calls` has an item for each call of `f`, under whatever name."""
    calls, before = [], sys.getprofile()

    def note(frame, event, arg):
        if event == "call" and frame.f_code is function.__code__:
            calls.append(frame.f_lineno)

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
