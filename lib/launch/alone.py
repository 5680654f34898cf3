"""A measurement has the machine to itself: no ranks of another program of this course run
meanwhile.

    a run of ranks  takes the gate and the room, both shared, and gives back the gate at once
    a measurement   takes the gate alone, then the room alone: new runs wait at the gate, earlier
                    ones end first

    gate  run run |= = = measurement = = =| run      two files in the temporary folder, locked with
    room  = = = = |  = = = = = = = = = = =| = = =    flock: whatever becomes of a process, its
                                                     locks go with it

No launch waits longer than `PATIENCE`: after that it runs at the same time as the others. What a
measurement starts itself does not wait.
"""

import contextlib
import fcntl
import os
import tempfile
import time

PATIENCE = 60.0  # seconds
GATE, ROOM = "distributed-training-gate", "distributed-training-room"
_measuring = 0  # measurements that this process is in


@contextlib.contextmanager
def among_others():
    """Inside, ranks run: no other process measures meanwhile."""
    if _measuring:
        yield
        return
    with contextlib.ExitStack() as held:
        with _locked(GATE, fcntl.LOCK_SH):
            held.enter_context(_locked(ROOM, fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def alone():
    """Inside, ranks of this process run, and of no other one that is asked to wait.
    Can be nested."""
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
    """Holds the lock inside; goes on without it after `PATIENCE`, or where there can be none."""
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
                # a process that was forked meanwhile may still have the file open
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _open(path):
    """A file that every user of the machine can lock; None where none can be opened."""
    # another user's may be opened, but not made anew
    for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT):
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
    return None


def _try(file, how):
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system
        return True
    return True
