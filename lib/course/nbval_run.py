"""Runs one notebook with nbval in a process of its own, with a time limit for each cell and another
for the complete run.

    nbval_run.py  --starts-->  pytest + nbval + nbval_plugin  -->  kernel  -->  ranks, anything
         ^                              |
         +----- one line per cell ------+

With `limits`, the notebook is a student's, and supervisor.py runs pytest in a sandbox: see
sandbox.py.

Every process of a run inherits the run's name in its environment. However the run ends, each
process that still carries this name is killed by its id. Neither a process group nor a process tree
would find them all, because a kernel has a session of its own and a daemon has lost its parent.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import notebook, sandbox, temporary
from .notebook import ROOT, CourseError

NAME = "LAB_RUN"
# lib.course comes first, because it makes the import of nbformat faster
START = "import sys, lib.course, pytest; sys.exit(pytest.main())"
OPTIONS = [
    "-p",
    "nbval.plugin",
    "-p",
    "lib.course.nbval_plugin",
    "-p",
    "no:cacheprovider",
    "-c",
    os.devnull,
]
OPTIONS += ["-q", "--color=no", "--nbval-lax", "--nbval-current-env"]
# How many characters the path of a temporary folder may have. Ranks create sockets in it, whose
# paths relative to it have up to 60.
LONGEST = 40
BOOK_BYTES = 20_000_000  # how much of the log of cells is read; no notebook needs more


@dataclass(frozen=True)
class Cell:
    """What one code cell did; nbval_plugin.py describes the fields."""

    cell: str
    outcome: str
    message: str
    report: list[dict]
    compared: bool = False


@dataclass(frozen=True)
class Run:
    """What a notebook did. cells: {cell id: Cell}, in the order in which they ran. cut: True if the
    total limit was reached."""

    cells: dict[str, Cell]
    cut: bool

    @property
    def stopped_at(self) -> Cell | None:
        """The cell that hung or killed the kernel, after which nothing ran; else None."""
        return next(
            (cell for cell in self.cells.values() if cell.outcome in ("timeout", "kernel died")),
            None,
        )


def run(
    path: Path,
    cell_timeout: float,
    total_timeout: float,
    limits: sandbox.Limits | None = None,
    hidden: Sequence[Path] = (),
    held: sandbox.Held | None = None,
    claims: str = "once",
) -> Run:
    """Run the notebook `path` with nbval. Its kernel works in the notebook's folder.

    cell_timeout, total_timeout: seconds. limits: run a copy of the notebook in a sandbox, with
    these limits; without limits, the notebook is trusted. hidden: folders that are empty in the
    sandbox, if it can hide folders. held: the sandbox, by default the strongest one that works
    here. claims: "hold" if
    the notebook's measurements have to show what its sentences say, else "once"
    (lib/measuring/rounds.py). Raises CourseError if nbval could not run the notebook at all.
    """
    name = uuid.uuid4().hex
    with temporary.folder("lab-run-", _short()) as folder:
        book, log = folder / "cells.jsonl", folder / "log.txt"
        env = {
            NAME: name,
            "LAB_CELLS": str(book),
            "LAB_REPORT": str(folder / "report.jsonl"),
            "LAB_STATIC": "1",
        }
        env |= {"LAB_CLAIMS": claims, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        runs = folder / "work" / path.name if limits else path
        command = [sys.executable, "-c", START, *OPTIONS, f"--nbval-cell-timeout={cell_timeout:g}"]
        command += ["--rootdir", str(runs.parent), str(runs)]
        task = b""
        if not limits:
            # the notebook is trusted, so ranks may be kept between exercises (lib/launch/warm.py)
            env["LAB_OURS"] = "1"
        else:
            env |= {"LAB_WORK": str(runs.parent), "PYTHONDONTWRITEBYTECODE": "1"}
            command, task = sandbox.wrap(
                command, env, folder, path, limits, hidden, held or sandbox.held()
            )
        outer = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")
        } | env
        cut = False
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=folder, env=outer, stdin=subprocess.PIPE, stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=bool(limits),
            )  # fmt: skip
            try:
                with process.stdin as put:
                    put.write(task)
                process.wait(timeout=total_timeout)
            except subprocess.TimeoutExpired:
                cut = True
            finally:
                if limits and process.poll() is None:
                    _stop_supervisor(process)
                end_all(name)
                process.wait()
        cells = _cells(book)
        if not cells and not cut:
            raise CourseError(f"nbval could not run {path}:\n{_end_of(log)}")
    killed = process.returncode < 0 or process.returncode > 128  # supervisor: 128 + signal
    if killed and not cut:  # a cell may kill its parent processes, too
        ran = {cell.cell for cell in cells}
        left = [
            cell.id
            for cell in notebook.read(path).cells
            if cell.cell_type == "code" and cell.id not in ran
        ]
        cells += [
            Cell(name, "kernel died", "the process that runs the notebook was killed", [])
            for name in left[:1]
        ]
    return Run({cell.cell: cell for cell in cells}, cut)


def _short() -> str | None:
    """A folder in which the paths of ranks' sockets stay within the limit of 107 characters; None
    for the usual folder, if its path is short enough or /tmp cannot be used."""
    long = len(tempfile.gettempdir()) > LONGEST and os.access("/tmp", os.W_OK)
    return "/tmp" if long else None


def _stop_supervisor(process: subprocess.Popen) -> None:
    """Tell the supervisor to end all processes that it has started, daemons too."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)


def _cells(book: Path) -> list[Cell]:
    """The Cells in the log. A malformed line is left out, because only a cell itself can have
    written it."""
    if not book.exists():
        return []
    with book.open("rb") as file:
        text = file.read(BOOK_BYTES).decode("utf-8", "replace")
    cells = []
    for line in text.splitlines(True):
        try:
            cell = Cell(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            continue
        if all(
            isinstance(part, str) for part in (cell.cell, cell.outcome, cell.message)
        ) and _are_dicts(cell.report):
            cells.append(cell)
    return cells


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 3000))
        return file.read().decode("utf-8", "replace")


def _are_dicts(lines) -> bool:
    return isinstance(lines, list) and all(isinstance(line, dict) for line in lines)


def end_all(name: str, patience: float = 10, spared: Collection[int] = ()) -> bool:
    """Kill every process of run `name`, except those whose pid is in `spared`, until none is left.

    Returns True if there was any. Raises CourseError if some outlive `patience` seconds.
    """
    deadline, ended = time.monotonic() + patience, False
    while left := [process for process in carriers(name) if process.pid not in spared]:
        ended = True
        if time.monotonic() > deadline:
            raise CourseError(
                f"processes {[process.pid for process in left]} of a graded notebook cannot be "
                f"ended"
            )
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)
    return ended


def carriers(name: str) -> list[psutil.Process]:
    """The processes that carry the name of run `name` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(NAME) == name:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # another user's, or gone meanwhile
    return found
