"""To wait for a program (the fixture `program` starts one), and for what becomes of
its processes."""

import contextlib
import time

import psutil

from lib.launch import warm


def finish(process, timeout=300):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def eventually(condition, seconds=120):
    """On a busy machine: a server that still imports when its kernel dies ends only after that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def no_rank_is_left():
    """Of those of this process (children of a server, so grandchildren of it), some may
    rest until the next run."""

    def family():
        found = set()
        for child in psutil.Process().children():
            # a server that was replaced has just ended
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {rank.pid for rank in child.children()}
        return found

    # one that is being made is not known by its number yet
    return eventually(lambda: family() <= warm.resting())
