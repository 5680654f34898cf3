"""Makes breakpoint() raise an error where no person can type commands for a rank, because otherwise
the debugger would wait for input forever."""

import pdb
import sys
from typing import Any, NoReturn

ALONE = (
    "breakpoint() needs someone at the keyboard. On a rank it works when you run the cell "
    "yourself, but not while a notebook is graded or validated, and not under torchrun. Print what "
    "you want to see, or return it."
)


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Stands in for breakpoint() and pdb.set_trace(): raises RuntimeError."""
    raise RuntimeError(ALONE)


def refuse_debuggers() -> None:
    """From now on, make breakpoint(), pdb.set_trace() and pdb.Pdb().set_trace() raise RuntimeError
    in this process."""
    sys.breakpointhook = pdb.set_trace = refuse  # type: ignore[assignment]
    pdb.Pdb.set_trace = refuse  # type: ignore[assignment]
