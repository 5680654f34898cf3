"""Where no one can type at a rank, breakpoint() raises a sentence instead of waiting for ever."""

import pdb
import sys
from typing import Any, NoReturn

ALONE = (
    "breakpoint() needs someone at the keyboard. On a rank it works when you run the cell "
    "yourself, but not while a notebook is graded or validated, and not under torchrun. Print what "
    "you want to see, or return it."
)


def refuse(*_: Any, **__: Any) -> NoReturn:
    """What breakpoint() and pdb.set_trace() do here."""
    raise RuntimeError(ALONE)


def refuse_debuggers() -> None:
    """From now on, in this process: breakpoint(), pdb.set_trace() and pdb.Pdb().set_trace()
    raise."""
    sys.breakpointhook = pdb.set_trace = refuse  # type: ignore[assignment]
    pdb.Pdb.set_trace = refuse  # type: ignore[assignment]
