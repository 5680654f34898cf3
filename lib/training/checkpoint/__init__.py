"""Checkpoints of a run on ranks: each is complete or absent, all ranks load the same one, and a
resumed run continues bit for bit.

    checkpoint.save(
        folder,
        step,
        shared={"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        own={"random": checkpoint.random_state()},
    )

    shared, own, facts = checkpoint.load(folder)    # the last complete one
    model.load_state_dict(shared["model"])
    optimizer.load_state_dict(shared["optimizer"])
    checkpoint.set_random_state(own["random"])      # last: whatever runs before it may draw numbers

file               what it is
-----------------  -----------------------------------------------------------------
ranks.py           save and load: who writes and who reads what
folder.py          a folder of checkpoints that stays intact when a run is killed
random_state.py    the state of the random generators that a training step draws from
sharded.py         shards, saved on N ranks and loaded on M
background.py      saves that are written while training goes on
slow_disk.py       files that are written as slowly as on a slow disk
"""

from lib.training.checkpoint.background import AsyncCheckpoint, BackgroundSave, resume, snapshot
from lib.training.checkpoint.folder import latest, sync_folder
from lib.training.checkpoint.random_state import random_state, set_random_state
from lib.training.checkpoint.ranks import Facts, load, save
from lib.training.checkpoint.sharded import load_sharded, save_sharded
from lib.training.checkpoint.slow_disk import slow_disk

__all__ = [
    "AsyncCheckpoint", "BackgroundSave", "Facts", "latest", "load", "load_sharded", "random_state",
    "resume", "save",
    "save_sharded", "set_random_state", "slow_disk", "snapshot", "sync_folder",
]  # fmt: skip
