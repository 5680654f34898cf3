"""What only Linux reports or does. Elsewhere, as on macOS, each function here says that it does not
know, and nothing fails.

    asked                       Linux                         elsewhere, or hidden (WITHOUT)
    when threads ran or waited  /proc/<pid>/task/*/schedstat  {}      no rank is ever called idle
    a process's state, parent   /proc/<pid>/stat              "", {}  resting ranks are not stopped
    memory it holds; free       /proc, the control group      0, inf  sets of ranks are not limited
    die with the parent         prctl(2)                      ranks ask who it is 5 times a second
    children of this process?   waitid(2), WNOWAIT            False   they do not retire a set
    processors that it may use  sched_getaffinity(2)          all that there are
    shut a notebook in          unshare(2): namespaces.py     limits alone, and the grade says so

`missing` says in a sentence what a person loses. The variable LAB_WITHOUT_LINUX hides all of it,
for tests.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

WITHOUT = "LAB_WITHOUT_LINUX"
IS_HERE = sys.platform == "linux" and not os.environ.get(WITHOUT)
PROC = Path("/proc" if IS_HERE else "/no-proc-here")


def missing() -> str:
    """What this system lacks, in a sentence; "" on Linux."""
    if IS_HERE:
        return ""
    return (
        f"{sys.platform} does not tell what a process waits for: a hang inside C++ is found at the "
        f"timeout and not within seconds, and graded notebooks are not shut off from files and "
        "network."
    )


class Thread(NamedTuple):
    ran: float  # seconds on a processor
    waited: float  # seconds ready and waiting for one
    state: str  # "R": runs or is ready, "D": waits for a disk, "S": sleeps


def threads(pid: int) -> dict[str, Thread]:
    """{number: Thread} of a process."""
    found = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(PROC / f"{pid}/task"):
            with contextlib.suppress(OSError):  # it has ended
                ran, waited, _ = map(int, _read(f"{pid}/task/{number}/schedstat").split())
                found[number] = Thread(ran / 1e9, waited / 1e9, _state(f"{pid}/task/{number}/stat"))
    return found


def counts_waiting() -> bool:
    """Does the system count how long threads wait for a processor?"""
    return (PROC / "self/schedstat").exists()


def state(pid: int) -> str:
    """Of a process: "R" runs or is ready, "S" sleeps, "D" waits for a disk, "T" is stopped, ""
    cannot be known."""
    with contextlib.suppress(OSError):
        return _state(f"{pid}/stat")
    return ""


def parents() -> dict[int, int]:
    """{process: its parent} of all that can be seen."""
    found = {}
    with contextlib.suppress(OSError):
        for pid in filter(str.isdigit, os.listdir(PROC)):
            with contextlib.suppress(OSError):  # gone meanwhile
                found[int(pid)] = int(_read(f"{pid}/stat").rpartition(")")[2].split()[1])
    return found


def held(pid: int) -> int:
    """Bytes of memory that a process has for itself, without files'; 0 if that
    cannot be known. Quick."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = map(int, _read(f"{pid}/statm").split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE")
    return 0


def held_with_share(pid: int) -> int:
    """The same, with its part of what it shares: Pss in smaps_rollup. Slow: a walk of its pages."""
    with contextlib.suppress(OSError, ValueError):
        (pss,) = (
            line for line in _read(f"{pid}/smaps_rollup").splitlines() if line.startswith("Pss:")
        )
        return 1024 * int(pss.split()[1])
    return 0


def processors() -> list[int]:
    """The numbers of the processors that this process may use."""
    return sorted(os.sched_getaffinity(0)) if IS_HERE else list(range(os.cpu_count() or 1))


def free() -> float:
    """Bytes of memory that are free, for this machine and for the control group of this process;
    inf if not known."""
    found = float("inf")
    with contextlib.suppress(OSError, StopIteration):
        available = (
            line.split()[1]
            for line in _read("meminfo").splitlines()
            if line.startswith("MemAvailable:")
        )
        found = 1024 * int(next(available))
    if IS_HERE:
        with contextlib.suppress(OSError, ValueError):
            most, used = (
                int(Path(f"/sys/fs/cgroup/memory.{which}").read_text())
                for which in ("max", "current")
            )
            found = min(found, most - used)
    return found


def die_with_the_parent() -> None:
    """End this process when its parent ends, whatever ends that."""
    if IS_HERE:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if not multiprocessing.parent_process().is_alive():  # it went before this
            os._exit(1)
        return
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lib.launch.parent").start()


def has_children() -> bool:
    """Has this process started another one that runs, or that it has not waited for?"""
    if not IS_HERE:
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _state(path):
    return _read(path).rpartition(")")[2].split()[0]


def _read(path):
    """A file of /proc, which is short. Not by `open`, which takes twice as long: ranks are looked
    at all the time."""
    file = os.open(f"{PROC}/{path}", os.O_RDONLY)
    try:
        return os.read(file, 1 << 16).decode()
    finally:
        os.close(file)
