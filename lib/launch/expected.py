"""Shows a run that is meant to fail: its error message is printed, and the notebook continues."""

import textwrap
from collections.abc import Callable
from typing import Any

from lib.launch.errors import RankError
from lib.launch.run import run


def expect_error(fn: Callable, *args: Any, **options: Any) -> RankError:
    """Run fn(*args) on ranks, print the message of the RankError with which the run ends, wrapped
    at 100 columns, and return the error.

    options: those of `launch.run`. Raises RuntimeError if the run succeeds, because the text around
    the cell would then be wrong. Other errors of `launch.run`, for example for a wrong call, are
    not caught.
    """
    try:
        run(fn, *args, **options)
    except RankError as error:
        for line in str(error).splitlines():
            print(textwrap.fill(line, 100, subsequent_indent="      ", break_on_hyphens=False))
        return error
    name = getattr(fn, "__name__", "the function")
    raise RuntimeError(
        f"{name} ran to its end on all ranks, but this cell shows how it fails. Run it with "
        f"launch.run if you have mended it."
    )
