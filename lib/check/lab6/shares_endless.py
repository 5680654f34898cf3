"""A function that never returns, ended: not by a clock, which a busy machine would make unfair, but by lines executed.

while sum(b) < B:        nobody has room: 1, 2, 3, ... 300,000 lines, and it is told where it was
    ...
"""

import sys
import traceback
from functools import wraps

from lib.check.framework import Problem
from lib.ledger.source import place


class _Endless(BaseException):
    """Not an Exception: `except Exception` in an answer must not catch it."""


def ended(fn, most=300_000):
    """`fn`, but a Problem instead of what it returns once a call has executed `most` lines of Python. Then no call is
    made any more: the Problem is all that is returned."""
    endless = []

    @wraps(fn)
    def call(*args):
        if not endless:
            try:
                with _Counter(most):
                    return fn(*args)
            except _Endless as reached:
                where = traceback.extract_tb(reached.__traceback__)[-2]  # the last is the counter's own
                at = place(where.filename, where.lineno, where.name)
                endless.append(Problem("endless", f"it had not returned after {most:,} lines; it was in\n  {at}"))
        return endless[0]

    return call


class _Counter:
    """`with _Counter(most):` raises _Endless in the line after so many."""

    def __init__(self, most):
        self.left = most

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)

    def __exit__(self, *error):
        sys.settrace(self.before)

    def __call__(self, frame, event, arg):
        self.left -= 1
        if self.left < 0:
            raise _Endless
        return self
