"""Shut in what a notebook's code may do while it is graded: what is asked of keeper.py, and what it can hold here.

    what                     sealed (Linux, namespaces)            open (elsewhere; most containers)
    network                  loopback only                         not prevented
    files                    read-only; home, solutions, others'   an ordinary user's: not prevented
                             submissions hidden; work bounded      root's: code runs as a user of its own
    other processes          not seen                              root's: cannot be touched; else not prevented
    left running             ended by the kernel                   ended by the keeper (Linux), by their name else
    environment              the names in ALLOWED, nothing else    the same
    CPU, memory, file size   per process, and memory of all        per process (macOS: CPU and file size only), of all

Not prevented anywhere: what code does inside its own kernel, where the checks run, too. It can read lib (whose
functions solve the exercises), see a hidden test while that runs, and forge a report. tamper.py looks for some of it.
"""

import functools
import importlib.util
import json
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .notebook import ROOT

START = [sys.executable, "-S", "-m", "lib.course.keeper"]  # -S: it needs no packages, and starts at once
ALLOWED = {
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
}


@dataclass(frozen=True)
class Limits:
    """What a graded notebook may use. Per process: seconds of CPU, bytes of memory, bytes in one file. In all:
    processes (threads count), total bytes of memory, and, sealed, bytes in all files together."""

    seconds: int = 1800
    memory: int = 4 * 2**30
    processes: int = 1000
    files: int = 2**30
    total: int = 8 * 2**30


@dataclass(frozen=True)
class Held:
    """How far notebooks are shut in here. sealed, drop: see keeper.py; says: a sentence for whoever grades."""

    sealed: bool
    drop: bool
    says: str


def wrap(
    command: list[str], env: dict, folder: Path, notebook: Path, limits: Limits, hidden: Sequence[Path], held: Held
) -> tuple[list[str], bytes]:
    """(command, its standard input) that runs `command` shut in.

    It works in `folder`/work, with a copy of `notebook` in there; of `folder`, report.jsonl and cells.jsonl stay
    writable. env: given to it besides ALLOWED. hidden: folders that it finds empty, where that can be had.
    """
    work, books = folder / "work", [folder / "report.jsonl", folder / "cells.jsonl"]
    work.mkdir()
    for book in books:
        book.touch()
    kept = {key: value for key, value in os.environ.items() if key in ALLOWED}
    own = {"HOME": str(work), "TMPDIR": str(work), "USER": "student", "LOGNAME": "student"}
    task = {
        "command": command,
        "env": {**kept, **own, **env},
        "work": str(work),
        "notebook": str(notebook),
        "writable": [str(book) for book in books],
        "needed": sorted({str(Path(place).resolve()) for place in _needed()}),
        "hidden": sorted({str(Path(place).resolve()) for place in [*hidden, Path.home()]} - {"/"}),
        "limits": asdict(limits),
        "sealed": held.sealed,
        "drop": held.drop,
    }
    return START, json.dumps(task).encode()


def _needed() -> list[str]:
    """Where Python, its packages and lib lie: all that a notebook must find, wherever a hidden folder lies."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [sys.prefix, sys.base_prefix, str(ROOT), site.getusersitepackages(), *filter(None, path)]


@functools.cache
def held() -> Held:
    """The strongest of what this machine allows: tried, not guessed."""
    root = os.name == "posix" and os.geteuid() == 0
    modes = [
        Held(True, root, "sealed: no network, read-only files, own processes only"),
        Held(False, root, f"open: limits{', and a user of its own' if root else ''}; network and files not shut off"),
        Held(False, False, "open, as root: the number of processes is not limited; network and files not shut off"),
    ]
    return next((mode for mode in modes[:2] if _works(mode)), modes[2 if root else 1])


def _works(mode: Held) -> bool:
    """Whether a process shut in by `mode` can be started here, and can still read Python, nbval and lib."""
    look = "import os, sys; sys.exit(not all(os.access(path, os.R_OK) for path in sys.argv[1:]))"
    with tempfile.TemporaryDirectory(prefix="lab-try-") as folder:
        needed = [importlib.util.find_spec("nbval").origin, str(ROOT / "lib" / "course")]
        command = [sys.executable, "-I", "-S", "-c", look, *needed]
        start, task = wrap(command, {}, Path(folder), Path(__file__), Limits(), [], mode)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(start, env=env, input=task, capture_output=True, timeout=60, check=False).returncode == 0
