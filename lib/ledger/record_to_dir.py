"""A book under plain torchrun: with LEDGER_DIR set, each rank keeps one there; without it, nothing happens.

    LEDGER_DIR=/shared/run7 torchrun --nproc-per-node 4 train.py
    python -m lib.ledger /shared/run7            while it runs, after it ended, or after it died

On several nodes give a folder that all share, or copy the books together before you judge them.
"""

import contextlib
import os

import torch.distributed as dist

from lib.ledger.book import EXITED, RAISED, RETURNED, BookWriter
from lib.ledger.record import finish, install, uninstall


@contextlib.contextmanager
def record_to_dir(folder: str | None = None):
    """Keep this rank's book in `folder` (default: $LEDGER_DIR; unset means no book) for the length of the block."""
    folder = folder or os.environ.get("LEDGER_DIR")
    if not folder:
        yield
        return
    os.makedirs(folder, exist_ok=True)
    rank = dist.get_rank()
    for stale in (f"{folder}/book{rank}", f"{folder}/names{rank}"):  # of an earlier job in the same folder
        with contextlib.suppress(FileNotFoundError):
            os.unlink(stale)
    writer = BookWriter(folder, rank, dist.get_world_size())
    writer.begin()
    install(writer)
    state = EXITED
    try:
        yield
        finish()
        state = RETURNED
    except Exception:
        state = RAISED
        raise
    finally:
        uninstall()
        writer.close(state)
