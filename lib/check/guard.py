"""Runs an answer here, in the kernel. It may raise, exit, interrupt or never return, and is judged
all the same.

    with guarded() as run:          run.problem    what the answer did instead of returning, or None
        seen = measure(fn)          run.printed    the lines that it printed

An answer that never returns is stopped after CPUS seconds of processor time, so that a busy machine
does not count against it. An answer that only waits is stopped after SECONDS of wall-clock time.
"""

import contextlib
import io
import os
import signal
import sys
import sysconfig
import threading
import traceback

import torch

import lib
from lib.check.exercise import Problem
from lib.ledger.source import position

CPUS, SECONDS = 10, 120
PRINTS = 8  # if a claim fails, at most this many printed lines of the answer are shown
OURS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (lib.__file__, torch.__file__, sysconfig.get_paths()["stdlib"] + "/x")
)


def is_students(file: str) -> bool:
    """True if this file belongs to an answer, and not to lib, torch, Python or an installed
    package."""
    ours = file.startswith((*OURS, "<frozen", "<__array_function__"))
    return not ours and "site-packages" not in file


class _Endless(BaseException):
    """Not an Exception, because `except Exception` in an answer must not catch it."""


class guarded:
    def __init__(self, cpus: float = CPUS, seconds: float = SECONDS):
        self.limits = {signal.ITIMER_VIRTUAL: cpus, signal.ITIMER_REAL: seconds}
        self.problem, self.error, self.at, self.interrupted = None, None, "", False

    def __enter__(self):
        self.text = io.StringIO()
        self.redirected = contextlib.redirect_stdout(self.text)
        self.redirected.__enter__()
        self.before = {}
        if threading.current_thread() is threading.main_thread():  # no other can handle signals
            for number, handler in ((signal.SIGVTALRM, self._end), (signal.SIGALRM, self._end)):
                self.before[number] = signal.signal(number, handler)
            self.sigint = signal.getsignal(signal.SIGINT)
            self.before[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
            for timer, limit in self.limits.items():
                signal.setitimer(timer, limit, 1)  # repeated, as an answer may catch the first
        return self

    def __exit__(self, kind, error, trace):
        for timer in self.limits if self.before else ():
            signal.setitimer(timer, 0)
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.redirected.__exit__(None, None, None)
        if error is None or self.interrupted:  # the stop button ends the check, too
            if isinstance(error, KeyboardInterrupt):
                error.at = self.at
            return False
        # not a subclass: input() in a kernel without a keyboard raises one
        if type(error) is NotImplementedError:
            self.problem = Problem("not written", "not written yet")
        elif isinstance(error, _Endless):
            self.problem = Problem("endless", f"it has not returned; it was in\n  {self.at}")
        elif isinstance(error, (SystemExit, KeyboardInterrupt)):
            exits = isinstance(error, SystemExit)
            did = f"called sys.exit({error.code!r})" if exits else "raised KeyboardInterrupt"
            self.problem = Problem("exited", f"it {did}; return from the function instead")
        elif isinstance(error, Exception):
            self.problem = raised(error)
        return self.problem is not None

    @property
    def printed(self) -> list[str]:
        return self.text.getvalue().splitlines()

    def _end(self, number, frame):
        self._note(frame)
        raise _Endless

    def _note(self, frame):
        """Record which line of the answer led to this frame."""
        while frame is not None and not is_students(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self.at = position(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def _interrupt(self, number, frame):
        self.interrupted = True
        self._note(frame)
        if callable(self.sigint):
            self.sigint(number, frame)
        else:
            raise KeyboardInterrupt


def raised(error: Exception, where: str = "") -> Problem:
    """The Problem of an exception. If no line of the answer led to it, the error is the check's
    own."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_students(f.filename)]
    words = f"{type(error).__name__}: {error}"
    if not frames:
        return unreadable(words)
    at = position(frames[-1].filename, frames[-1].lineno, frames[-1].name)
    facts = {"raised": type(error).__name__}
    return Problem("raised", f"{where}{': ' if where else ''}{words}\n  {at}", facts)


def unreadable(words: str) -> Problem:
    """The Problem of an error in the check's own code, which cannot handle what the answer returned
    or left behind."""
    text = "the check cannot read what your function returned or left behind. Compare it with the "
    own = f"(no line of yours failed; the check's own error: {words.splitlines()[0]})"
    return Problem("unreadable", f"{text}docstring.\n  {own}")


def shown(printed: list[str]) -> list[str]:
    """The first lines that the answer printed, for the report: they may explain what is wrong."""
    if not printed:
        return []
    more = [f"... {len(printed) - PRINTS} more lines"] if len(printed) > PRINTS else []
    return ["      It printed:", *(f"        {line[:100]}" for line in [*printed[:PRINTS], *more])]


@contextlib.contextmanager
def noting_calls(*theirs):
    """After `with noting_calls(f, file) as calls: ...`, `calls` has the names of those of `theirs`
    that were called in this thread, from anywhere.

    theirs: functions, or the paths of files of which nothing may be called. This is for functions
    that send nothing; what sends is in the ledger.
    """
    # by id, because another function may have equal code
    known = {one if isinstance(one, str) else id(one.__code__) for one in theirs}
    calls, before = [], sys.gettrace()

    def note(frame, event, arg):
        code = frame.f_code
        if id(code) in known or code.co_filename in known:
            calls.append(f"{frame.f_globals.get('__name__')}.{code.co_qualname}")
        return before and before(frame, event, arg)

    sys.settrace(note)
    try:
        yield calls
    finally:
        sys.settrace(before)
