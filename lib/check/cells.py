"""Finds out whether a verdict is about the code that the student sees. If it is not, a sentence
above the verdict says so.

    the cell raised      it defines the function but failed before the definition, so the check gets
                         the function of an earlier run
    edited, not run      the saved notebook has another text in that cell than the one that ran;
                         only the browser knows of edits that are not saved yet (card.py)
    another function     check.ring_all_reduce(ring_all_gather)
"""

import inspect
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lib import frontend, here


@dataclass(frozen=True)
class Ran:
    """A cell as it last ran. error: the type of the exception that it raised, or "". when:
    time.time() at its end."""

    cell: str
    source: str
    error: str
    when: float


_ran: dict[str, Ran] = {}  # by the cell's id, or by its text if the front end gives no id


def watch() -> None:
    """Record from now on how the cells of this kernel end. In a script or on a rank, do nothing."""
    if (kernel := frontend.kernel()) is not None:
        kernel.shell.events.register("post_run_cell", _note)


def _note(result):
    info = result.info
    if info is None or not info.raw_cell:
        return
    error = result.error_before_exec or result.error_in_exec
    cell = getattr(info, "cell_id", None) or info.raw_cell
    _ran.pop(cell, None)  # keeps the dict in the order in which the cells ran
    _ran[cell] = Ran(cell, info.raw_cell, type(error).__name__ if error else "", time.time())


def stale(names: Iterable[str], fns: Iterable[Callable], known: Iterable[str]) -> list[str]:
    """Sentences that the student should read before the verdict on these functions.

    names: the functions that the exercise asks for.
    known: the functions of all exercises.
    """
    said, known = [], set(known)
    for name, fn in zip(names, fns, strict=False):
        given = getattr(fn, "__name__", name)
        if given != name and given in known:
            said.append(f"This check is about {name}, and it was given {given}.")
            continue
        defines = re.compile(rf"^(?:async )?(?:def|class)\s+{re.escape(name)}\b", re.MULTILINE)
        ran = next((one for one in reversed(_ran.values()) if defines.search(one.source)), None)
        if ran is None:
            continue
        if ran.error and not _is_from(fn, ran.source):
            said.append(
                f"The cell that defines {name} raised {ran.error} when it last ran, so this "
                f"verdict is about the {name} of an earlier run."
            )
        elif _edited(ran, defines):
            said.append(
                f"The cell that defines {name} has been edited since it last ran, so this verdict "
                "is about the earlier code. Run that cell, and then this one."
            )
    return said


def _is_from(fn, source):
    try:
        return inspect.getsource(fn).strip() in source
    except (OSError, TypeError):
        return True  # there is no source to compare


def _edited(ran, defines):
    """True if the notebook has been saved with another text in this cell since the cell ran."""
    path = here.opened()
    try:
        if path is None or os.path.getmtime(path) <= ran.when:
            return False
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return False
    texts = {cell.get("id"): "".join(cell["source"]) for cell in cells}
    now = texts.get(ran.cell)
    return now is not None and bool(defines.search(now)) and now.strip() != ran.source.strip()
