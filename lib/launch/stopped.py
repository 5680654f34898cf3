"""What a run that a person has stopped still says: who waits for whom, who computes at which line,
and the figure."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from lib import frontend
from lib.launch.errors import RankError

_told: ContextVar[Callable[[RankError], None] | None] = ContextVar("told", default=None)


@contextlib.contextmanager
def told(tell: Callable[[RankError], None]) -> Iterator[None]:
    """While it lasts, a run that is stopped is told by `tell`, at once, and not printed."""
    before = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(before)


def in_a_check() -> bool:
    """Does a check run now?"""
    return _told.get() is not None


def say(error: RankError, show: bool) -> None:
    """Print what the ranks did when their run was stopped, if what they print is shown as well."""
    if tell := _told.get():
        tell(error)
    elif show:
        print(error, flush=True)


def figure(error: RankError) -> None:
    """Draw who waits for whom, for a person in front of a notebook that has imported lib.plots, if
    any rank waits for another."""
    waits_for = frontend.figures.get("waits_for")
    if waits_for and frontend.attended() and any(error.waits.values()):
        labels = {rank: f"waits in {op}" for rank, op in error.waits_in.items()}
        waits_for(error.waits, labels).show()
