"""The processes of a step, found wherever they went, and ended by their numbers.

    runner  ->  step (a session of its own, MARK=<a name> in its environment)
                  ->  forkserver -> ranks         orphans and new sessions keep
                                                  the environment that they started with

A process group loses what starts a session of its own, as torchrun's ranks do, and a tree loses
orphans. What a process was started with stays in /proc/<pid>/environ. So this is for Linux, as CUDA
is.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from lib.launch import warm

MARK = "TESTS_GPU_STEP"
GRACE = 5.0  # seconds for helpers, such as the forkserver, to see that their parent has ended
UNTIL_DEAD = 10.0  # seconds that the system may take to end what was killed


@dataclass(frozen=True)
class Ended:
    """How a command ended. left: processes that were still there when it had ended by
    itself, and were killed."""

    code: int | None  # None: it outlasted its time
    seconds: float
    left: int
    unkillable: int = 0  # still there after SIGKILL, as when the driver does not let go of them


def run_limited(command: list[str], seconds: float, log: Path, cwd=None, env=None) -> Ended:
    """Run `command` with its output in `log`, for at most `seconds`. No process of it is left,
    whatever happens."""
    mark, began = uuid.uuid4().hex, time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=cwd,
            start_new_session=True,
            env={**os.environ, **(env or {}), MARK: mark},
        )  # fmt: skip
    left = unkillable = 0
    try:
        code = process.wait(seconds)
        took, late = time.monotonic() - began, time.monotonic() + GRACE
        while (left := len(marked(mark))) and time.monotonic() < late:
            time.sleep(0.05)
    except subprocess.TimeoutExpired:
        code, took = None, time.monotonic() - began
    finally:
        unkillable = end_marked(mark)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
    return Ended(code, took, left, unkillable)


def marked(mark: str) -> list[int]:
    """The living processes that were started with this mark in their environment (not zombies:
    theirs is empty)."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or belongs to somebody else
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end_marked(mark: str) -> int:
    """Kill them, again and again, for one may have been starting another. Returns
    how many do not go."""
    until = time.monotonic() + UNTIL_DEAD
    while (pids := marked(mark)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return len(pids)


def descendants(pid: int) -> list[int]:
    """The living processes below `pid`, whoever their direct parent is. Zombies do not count."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    found, below = [], [pid]
    while below:
        below = [child for child, parent in parents.items() if parent in below]
        found += below
    return found


def ranks_left(seconds: float = GRACE) -> int:
    """How many ranks of `launch` live after `seconds` at most, besides those that rest
    until the next run."""
    until = time.monotonic() + seconds
    left = lambda: (
        {pid for server in warm.server_pids() for pid in descendants(server)} - warm.resting()
    )
    while (found := left()) and time.monotonic() < until:
        time.sleep(0.05)
    return len(found)
