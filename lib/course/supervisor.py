"""Runs one command in a sandbox, limits it, and ends all that it has started. sandbox.py builds the
command line that starts this program, which uses only the standard library.

    grader  --starts-->  supervisor  --starts-->  init  --starts-->  pytest, kernel, ranks, anything
                         (waits)                  |<-- sealed: they see each other, no network -->|
                                                  reaps orphans, ends processes that use
                                                  too much memory

"Sealed" needs Linux, and namespaces that root makes, or an ordinary user in a user namespace. There
init is process 1 of a PID namespace, so the kernel itself ends all that is left when init ends. The
network has only loopback. Every file system is read-only except for bounded ones in memory, the
work folder and /dev/shm. The hidden folders (the home, the solutions, the others' submissions) are
empty except for what is needed. Under bubblewrap, all of this is in place when the supervisor
starts, and the supervisor itself is init. In "open", the supervisor does init's work as a "child
subreaper" (on Linux), and nothing is hidden. In all three, each process has limits. A grader that
is root runs the command as a user of its own wherever that works (Held.drop in sandbox.py).

See namespaces.py, pid_namespaces(7), prctl(2), getrlimit(2).
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time

from lib import linux
from lib.course import namespaces

# Root runs a command as user FIRST_USER + the grader's pid, who owns no file and no other process.
FIRST_USER = 1_000_000_000
BROKEN = 70  # exit code: the supervisor itself could not do its work


def main(task: dict) -> int:
    """Run task["command"] and return its exit code, or 128 + n if signal n ended it. For the keys
    of task, see sandbox.wrap."""
    if linux.IS_HERE:
        namespaces.call("prctl", namespaces.SUBREAPER, 1, 0, 0, 0)
        # if the grader dies, we are told to stop, and then end all that we have started
        namespaces.call("prctl", namespaces.DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
        if task["parent"] not in (None, os.getppid()):  # it died before this call
            return BROKEN
    if not task["sealed"]:
        return _tend(task)
    namespaces.unshare()
    init = os.fork()
    if init == 0:
        namespaces.call("prctl", namespaces.DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        namespaces.close(task)
        os._exit(_tend(task))
    try:
        return _exit_code(os.waitpid(init, 0)[1])
    except SystemExit:  # we were told to stop
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)
        raise


def _tend(task: dict) -> int:
    """Start the command, reap orphans, and keep the memory of all processes within the limit. When
    the command has ended, end all that still runs."""
    if linux.IS_HERE:
        # so that the command, which may run as the same user, cannot look into this process
        namespaces.call("prctl", namespaces.DUMPABLE, 0, 0, 0, 0)
    os.chdir(task["work"])
    with open(task["name"], "w", encoding="utf-8") as copy:
        copy.write(task["text"])
    os.chmod(task["name"], 0o644)
    for path in task["own"] if task["user"] else []:
        os.chown(path, task["user"], task["user"])
    first = os.fork()
    if first == 0:
        try:
            _confine(task["limits"], task["user"])
            os.execvpe(task["command"][0], task["command"], task["env"])
        except OSError as error:
            print(f"supervisor: {error}", file=sys.stderr, flush=True)
        os._exit(BROKEN)
    looked = 0.0
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == first:
                return _exit_code(status)
            if pid == 0:
                time.sleep(0.02)
            if time.monotonic() - looked > 0.2:
                looked = time.monotonic()
                ours, most = _descendants(os.getpid()), task["limits"]["total"]
                if sum(map(linux.held, ours)) > most:
                    held = {pid: linux.held_with_share(pid) for pid in ours}
                    if sum(held.values()) > most:
                        _kill(max(held, key=held.get))
    finally:
        # if we are process 1, the kernel ends them with us
        while os.getpid() != 1 and (left := _descendants(os.getpid())):
            for pid in left:
                _kill(pid)
            while _reaped():
                pass


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reaped() -> bool:
    """Reap one dead child. Returns True if there was one."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _confine(limits: dict, user: int | None) -> None:
    """Called in the process that becomes the command: set its limits, and give up all
    privileges."""
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if linux.IS_HERE:
        namespaces.call("prctl", namespaces.NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        namespaces.call("prctl", namespaces.DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    for what, key in (
        ("CPU", "seconds"),
        ("DATA", "memory"),
        ("NPROC", "processes"),
        ("FSIZE", "files"),
        ("CORE", ""),
    ):
        which = getattr(resource, f"RLIMIT_{what}")
        most = resource.getrlimit(which)[1]
        wanted = int(limits[key]) if key else 0
        wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(which, (wanted, wanted))


def _descendants(root: int) -> list[int]:
    """The pids of all descendants of process `root`; [] if the system does not list them."""
    parents, below, new = linux.parents(), set(), {root}
    while new := {pid for pid, parent in parents.items() if parent in new} - below:
        below |= new
    return sorted(below)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main(json.loads(sys.stdin.read())))
    except OSError as error:
        sys.exit(print(f"supervisor: {error}", file=sys.stderr) or BROKEN)
