"""Everything that the course needs of Linux and that other systems do not offer. Elsewhere, such as
on macOS, a function returns a value that stands for "not known", so nothing fails.

The table lists what the course asks, where Linux answers it, and what is returned elsewhere, with
the consequence for the course.

    question                       Linux                         elsewhere
    when threads ran or waited     /proc/<pid>/task/*/schedstat  {}      no rank is found idle
    state and parent of a process  /proc/<pid>/stat              "", {}  no resting rank is paused
    memory of a process; free      /proc, the control group      0, inf  sets of ranks: no limit
    end with the parent            prctl(2)                      a thread asks 5 times a second
    does it have children?         waitid(2), WNOWAIT            False   a set of ranks is reused
    processors that it may use     sched_getaffinity(2)          all of the machine's
    isolate a graded notebook      unshare(2): namespaces.py     limits only; the grade says so

`missing` says in a sentence what a student loses. For tests, the variable LAB_WITHOUT_LINUX makes
Linux look like another system.
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
    """A sentence that says what does not work on this system; "" on Linux."""
    if IS_HERE:
        return ""
    return (
        f"{sys.platform} does not tell what a process waits for: a hang inside C++ is found at the "
        f"timeout and not within seconds, and graded notebooks are not shut off from files and "
        "network."
    )


class Thread(NamedTuple):
    ran: float  # seconds for which it ran on a processor
    waited: float  # seconds for which it was ready to run and waited for a processor
    state: str  # "R": runs or is ready, "D": waits for a disk, "S": sleeps


def threads(pid: int) -> dict[str, Thread]:
    """{thread id: Thread} of a process; {} if this is not known."""
    found = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(PROC / f"{pid}/task"):
            with contextlib.suppress(OSError):  # it has ended
                ran, waited, _ = map(int, _read(f"{pid}/task/{number}/schedstat").split())
                found[number] = Thread(ran / 1e9, waited / 1e9, _state(f"{pid}/task/{number}/stat"))
    return found


def counts_waiting() -> bool:
    """Does the kernel record how long threads wait for a processor?"""
    return (PROC / "self/schedstat").exists()


def state(pid: int) -> str:
    """The state of a process: "R" if it runs or is ready, "S" if it sleeps, "D" if it waits for a
    disk, "T" if it is stopped, "Z" if it has ended and was not reaped; "" if this is not known."""
    with contextlib.suppress(OSError):
        return _state(f"{pid}/stat")
    return ""


def parents() -> dict[int, int]:
    """{pid: pid of its parent} of all processes that this one can see."""
    found = {}
    with contextlib.suppress(OSError):
        for pid in filter(str.isdigit, os.listdir(PROC)):
            with contextlib.suppress(OSError):  # it has ended
                found[int(pid)] = int(_read(f"{pid}/stat").rpartition(")")[2].split()[1])
    return found


def held(pid: int) -> int:
    """Bytes of resident memory of a process, without mapped files and shared memory; 0 if this is
    not known. The number is quick to read."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = map(int, _read(f"{pid}/statm").split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE")
    return 0


def held_with_share(pid: int) -> int:
    """Bytes of memory of a process, including its proportional share of the pages that it shares
    with others (Pss); 0 if this is not known. The number is slow to read, because the kernel walks
    all of the process's pages."""
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
    """Bytes of memory that are available on this machine, or in the control group of this process
    if that has less; inf if neither is known."""
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
    """Make sure that this process ends when its parent does, even if the parent is killed."""
    if IS_HERE:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if not multiprocessing.parent_process().is_alive():  # it ended before the call
            os._exit(1)
        return
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lib.launch.parent").start()


def has_children() -> bool:
    """Does this process have a child, either running or ended and not yet reaped? Always False on
    other systems than Linux."""
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
    """The text of a short file in /proc. Python's `open` would take twice as long, and these files
    are read continually while ranks run."""
    file = os.open(f"{PROC}/{path}", os.O_RDONLY)
    try:
        return os.read(file, 1 << 16).decode()
    finally:
        os.close(file)
