"""Gives a measurement the machine to itself. While it runs, no other program of this course runs
ranks, because they would compete for the processors and distort the times.

There are two locks, called the gate and the room. Each is a file in the temporary folder that is
locked with flock. The system releases the locks of a process when it ends for whatever reason.

    a run of ranks  takes the gate and the room, both shared, and releases the gate at once
    a measurement   takes the gate exclusively, so that new runs wait there, and then the room
                    exclusively, once earlier runs have left it

    gate  run run |= = = measurement = = =| run
    room  = = = = |  = = = = = = = = = = =| = = =

We need two locks, because with a single one, runs that overlap could keep a measurement waiting
forever. A run or a measurement that has waited for a lock for `PATIENCE` seconds starts without it,
at the same time as the others. The runs that a measurement starts itself do not wait.
"""

import contextlib
import fcntl
import os
import tempfile
import time

PATIENCE = 60.0  # seconds for each of the two locks
GATE, ROOM = "distributed-training-gate", "distributed-training-room"
_measuring = 0  # how many measurements are in progress in this process, one inside another


@contextlib.contextmanager
def among_others():
    """For a run of ranks: inside the block, no other process measures, unless the run or the
    measurement has given up waiting after `PATIENCE` seconds."""
    if _measuring:
        yield
        return
    with contextlib.ExitStack() as held:
        with _locked(GATE, fcntl.LOCK_SH):
            held.enter_context(_locked(ROOM, fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def alone():
    """For a measurement: inside the block, only this process runs ranks, unless this process or
    another has given up waiting after `PATIENCE` seconds. Such blocks can be nested."""
    global _measuring
    with contextlib.ExitStack() as held:
        if not _measuring:
            held.enter_context(_locked(GATE, fcntl.LOCK_EX))
            held.enter_context(_locked(ROOM, fcntl.LOCK_EX))
        _measuring += 1
        try:
            yield
        finally:
            _measuring -= 1


@contextlib.contextmanager
def _locked(name, how):
    """Hold the lock inside the block. Continue without it after `PATIENCE` seconds, or if the file
    cannot be opened or locked."""
    file = _open(os.path.join(tempfile.gettempdir(), name))
    try:
        deadline, pause = time.monotonic() + PATIENCE, 0.0005
        while file is not None and not _try(file, how) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(0.02, 1.5 * pause)
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                # closing is not enough, because a process forked meanwhile may have it open, too
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _open(path):
    """Open a file that every user of the machine can lock; None if that is not possible."""
    # first without O_CREAT, because with it Linux may refuse to open another user's file in /tmp
    for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT):
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
    return None


def _try(file, how):
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True
