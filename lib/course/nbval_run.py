"""Run one notebook through nbval in a process of its own, under a cell limit and a total limit.

    nbval_run.py  --starts-->  pytest + nbval + nbval_plugin  --starts-->  kernel  --starts-->  ranks, anything
         ^                              |
         +----- one line per cell ------+

Whatever was started carries a name of this run in its environment. When the run ends, in whichever way, every process
that still carries it is killed by its id: a kernel sits in a session of its own and a daemon has lost its parent, so
neither a process group nor a process tree would find them all.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import notebook
from .notebook import ROOT, CourseError

NAME = "LAB_RUN"
# jsonschema does without this module, which checks web addresses and takes longer to import than all of nbval.
START = "import sys; sys.modules['rfc3987_syntax'] = None; import pytest; sys.exit(pytest.main())"
OPTIONS = ["-p", "nbval.plugin", "-p", "lib.course.nbval_plugin", "-p", "no:cacheprovider", "-c", os.devnull]
OPTIONS += ["-q", "--color=no", "--nbval-lax", "--nbval-current-env"]


@dataclass(frozen=True)
class Cell:
    """What one code cell did: see nbval_plugin.py."""

    cell: str
    outcome: str
    message: str
    report: list[dict]


@dataclass(frozen=True)
class Run:
    """cells: by cell id, in the order they ran. cut: the total limit was reached."""

    cells: dict[str, Cell]
    cut: bool

    @property
    def stopped_at(self) -> Cell | None:
        """The cell that hung or killed the kernel; nothing ran after it."""
        return next((cell for cell in self.cells.values() if cell.outcome in ("timeout", "kernel died")), None)


def run(path: Path, cell_timeout: float, total_timeout: float) -> Run:
    """Run `path` through nbval, its kernel working in the notebook's folder.

    cell_timeout, total_timeout: seconds. Raises CourseError if nbval could not run the notebook at all.
    """
    name = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="lab-run-") as folder:
        book, log = Path(folder, "cells.jsonl"), Path(folder, "log.txt")
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        env |= {NAME: name, "LAB_CELLS": str(book), "LAB_REPORT": str(Path(folder, "report.jsonl")), "LAB_STATIC": "1"}
        env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-c", START, *OPTIONS, f"--nbval-cell-timeout={cell_timeout:g}"]
        command += ["--rootdir", str(path.parent), str(path)]
        cut = False
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
            try:
                process.wait(timeout=total_timeout)
            except subprocess.TimeoutExpired:
                cut = True
            finally:
                end_all(name)
                process.wait()
        text = book.read_text(encoding="utf-8") if book.exists() else ""
        cells = [Cell(**json.loads(line)) for line in text.splitlines(True) if line.endswith("\n")]
        if not cells and not cut:
            raise CourseError(f"nbval could not run {path}:\n{log.read_text(errors='replace')[-3000:]}")
    if process.returncode < 0 and not cut:  # a cell may kill its parents, too
        ran = {cell.cell for cell in cells}
        left = [cell.id for cell in notebook.read(path).cells if cell.cell_type == "code" and cell.id not in ran]
        cells += [Cell(name, "kernel died", "the process that runs the notebook was killed", []) for name in left[:1]]
    return Run({cell.cell: cell for cell in cells}, cut)


def end_all(name: str, patience: float = 10) -> None:
    """Kill every process of run `name`, until none is left; raises CourseError if some outlive `patience` seconds."""
    deadline = time.monotonic() + patience
    while left := carriers(name):
        if time.monotonic() > deadline:
            raise CourseError(f"processes {[process.pid for process in left]} of a graded notebook cannot be ended")
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1)


def carriers(name: str) -> list[psutil.Process]:
    """The processes that were started, directly or not, by run `name`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(NAME) == name:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # another user's, or gone meanwhile
    return found
