"""Writes the logs of a job that plain torchrun has started. If LEDGER_DIR is set, each rank writes
its log there; otherwise nothing happens.

    LEDGER_DIR=/shared/run7 torchrun --nproc-per-node 4 train.py
    python -m lib.ledger /shared/run7            while it runs, after it ended, or after it died

On several nodes, give a folder that all of them share, or copy the logs into one folder before you
run the second command.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator

import torch.distributed as dist

from lib.ledger.caller import site_of
from lib.ledger.log import EXITED, KILLED, RAISED, RETURNED, RUNNING, Head, LogWriter
from lib.ledger.record import finish, install, uninstall

KINDS = ("log", "names", "groups", "splits", "error", "alive")  # files of one rank


@contextlib.contextmanager
def record_to_dir(folder: str | None = None) -> Iterator[None]:
    """Write this rank's log to `folder` for the duration of the block. If `folder` is None, use
    $LEDGER_DIR; if that is not set either, write no log.

    An Exception that leaves the block is recorded with its line, and raised again. During the
    block the rank's process holds a lock on a file in the folder, so that a reader can distinguish
    a rank that was killed from one that is still running.
    """
    folder = folder or os.environ.get("LEDGER_DIR")
    if not folder:
        yield
        return
    os.makedirs(folder, exist_ok=True)
    rank = dist.get_rank()
    for kind in KINDS:  # remove those of an earlier job in the same folder
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{kind}{rank}")
    alive = open(f"{folder}/alive{rank}", "w")  # noqa: SIM115  open until the block ends
    with contextlib.suppress(OSError):  # if the file system has no locks, a kill goes unnoticed
        fcntl.lockf(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    writer = LogWriter(folder, rank, dist.get_world_size())
    writer.begin()
    install(writer)
    state = EXITED
    try:
        yield
        finish()
        state = RETURNED
    except Exception as error:
        state = RAISED
        with open(f"{folder}/error{rank}", "w") as file:
            json.dump(
                {
                    "type": type(error).__name__,
                    "text": str(error),
                    "site": site_of(error.__traceback__),
                },
                file,
            )
        raise
    finally:
        uninstall()
        writer.close(state)


def state_of(folder: str, head: Head) -> int:
    """A rank's state: the one in its log, or KILLED if that is RUNNING but its process is gone.

    Whether it is gone shows in its lock, which the operating system releases when the process ends.
    This works from another node, too, if both share the file system and it supports locks.
    """
    if head.state != RUNNING:
        return head.state
    with contextlib.suppress(OSError), open(f"{folder}/alive{head.rank}", "rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return KILLED
    return RUNNING


def error_of(folder: str, rank: int) -> dict | None:
    """{"type", "text", "site"} of the exception with which a rank left its block; None if it left
    without one."""
    with (
        contextlib.suppress(FileNotFoundError, json.JSONDecodeError),
        open(f"{folder}/error{rank}") as file,
    ):
        return json.load(file)
    return None
