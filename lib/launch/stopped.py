"""Shows what the ranks were doing when a person stopped a run: which ranks waited for which others,
which ranks computed at which line, and a figure of the waits. People often press stop because a run
seems to hang, and this tells them why it did."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from lib import frontend
from lib.launch.errors import RankError

_told: ContextVar[Callable[[RankError], None] | None] = ContextVar("told", default=None)


@contextlib.contextmanager
def told(tell: Callable[[RankError], None]) -> Iterator[None]:
    """Inside the block, if a run is stopped, `tell` is called with its error at once, and nothing
    is printed. Checks use this to report the stop in their own words."""
    before = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(before)


def in_a_check() -> bool:
    """Is a check running now? We know this because only checks use `told`."""
    return _told.get() is not None


def say(error: RankError, show: bool) -> None:
    """Print what the ranks were doing when their run was stopped, if the run shows its output; in a
    check, pass it to the function of `told` instead."""
    if tell := _told.get():
        tell(error)
    elif show:
        print(error, flush=True)


def figure(error: RankError) -> None:
    """Draw which ranks wait for which, if any rank waits and a person sees the notebook. lib.plots
    provides the figure, so if it has not been imported, nothing is drawn."""
    waits_for = frontend.figures.get("waits_for")
    if waits_for and frontend.attended() and any(error.waits.values()):
        labels = {rank: f"waits in {op}" for rank, op in error.waits_in.items()}
        waits_for(error.waits, labels).show()
