"""Checkpoints of a run on ranks: complete or absent, agreed on by all ranks, resumed bit for bit.

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
folder.py          a folder that a kill at any moment leaves intact
random_state.py    the state of the generators that a training step draws from
sharded.py         shards, saved on N ranks and loaded on M
background.py      the same while training goes on
slow_disk.py       a slow disk, emulated
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
