"""The processes that a test has started, wherever they went. A test may look at no others.

A machine runs other programs under any name and with any arguments; a second checkout of this
repository may run the same test at the same moment. So a test recognizes its own processes by
something that no other program can have:

    running(mark)  a mark that was drawn at random is in the environment or on the command line.
                   Children, orphans and new sessions inherit the environment; only a process that
                   empties it needs a word of its own
    known(pids)    numbers that its own ranks or programs reported, remembered together with their
                   start times, so that a process that gets one of these numbers later is not
                   mistaken for them

and by psutil's `children`, below a process that it has started. A path below `tmp_path` is such a
mark, too.
"""

import contextlib
import os
import socket
import time
import uuid

import psutil

MARK = "LAB_TEST_MARK"  # a variable for marks; a mark is found in any other one, too
# characters; an empty mark would be found in every process that has an empty argument
SHORTEST = 10


def new_mark() -> str:
    return uuid.uuid4().hex


def long_sleep() -> str:
    """So many seconds that no other program sleeps for: a word for the command line of `sleep`."""
    return f"600.{uuid.uuid4().int}"


def running(mark: str) -> list[psutil.Process]:
    """The processes that carry `mark`, except for this one. A zombie does not, for its
    environment is gone."""
    if len(mark) < SHORTEST:
        raise ValueError(
            f"the mark {mark!r} is too short to be nobody else's: use new_mark() or a path of your "
            f"own"
        )
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):  # None where we may not look
        words = [*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()]
        if any(mark in word for word in words) and process.pid != os.getpid():
            found.append(process)
    return found


def left(mark: str, seconds: float = 100) -> list[psutil.Process]:
    """What carries `mark` still after so many seconds at most; returns as soon as
    there is nothing."""
    deadline = time.monotonic() + seconds
    while (found := running(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def known(pids) -> list[psutil.Process]:
    """These processes; those that have ended already are left out. Ask `is_running()` of
    them, not `pid_exists`."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def any_is_running(processes) -> bool:
    return any(process.is_running() for process in processes)


@contextlib.contextmanager
def own_port(host: str = "127.0.0.1"):
    """A port of this machine at which a program that is told its number can listen, while no other
    program gets it.

    Closing the socket first, as is often done, gives the port back: another program may get it
    before ours asks. Here it stays bound, and a server that sets SO_REUSEADDR, as torch's store
    does, can listen beside a socket that does not listen itself.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]
