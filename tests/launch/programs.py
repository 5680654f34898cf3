"""To wait for a program (the fixture `program` starts one), and for what becomes of its processes."""

import time


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
