"""Lab 4's checkpoints that are written in the background, on an emulated slow disk. We measure how
much time they save, and test that a run survives if its ranks exit while one is being written.

stalls              seconds until training continues, for a save that training waits for, one in
                    the background, and torch's async_save
kill_and_continue   four ranks exit during a save, and continue from the checkpoint before it
"""

import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from lib import launch, zero
from lib.demo.sharded import SHAPE, adamw, batch, mean_over_ranks
from lib.training import checkpoint
from lib.training.model import GPT

WAYS = ("at once", "background", "async_save")


class _Stalls:
    """A GPT after one step, and three ways to save it to the same slow disk."""

    def __init__(self, AsyncCheckpoint, folder):
        self.model, self.folder = GPT(SHAPE), folder
        self.optimizer = adamw(self.model.parameters())
        self.model.loss(*batch()).backward()
        self.optimizer.step()
        self.slow = checkpoint.slow_disk(40e6)
        self.saver = AsyncCheckpoint(folder, self.slow)

    def save(self, way, number):
        """Save once, and return the seconds until training could continue. The method returns only
        after the write has finished, so that it does not slow the next save."""
        began = time.perf_counter()
        if way == "async_save":
            writer = dcp.FileSystemWriter(f"{self.folder}/dcp", sync_files=True)
            writer.fs.create_stream = self.slow
            wait = dcp.async_save(
                {
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "position": number,
                },
                storage_writer=writer,
                no_dist=True,
            ).result
        else:
            self.saver.begin(number, self.model, self.optimizer, number)
            wait = self.saver.wait
        if way == "at once":
            wait()
        seconds = time.perf_counter() - began
        wait()
        return seconds


def stalls(AsyncCheckpoint, n: int = 9) -> dict:
    """{way: (n,) seconds until training continues}. Each round saves in all three ways, and every
    other round in reverse order; the first round is not counted."""
    # torch warns that it runs in a single process
    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
    with tempfile.TemporaryDirectory() as folder:
        run, seconds = _Stalls(AsyncCheckpoint, folder), {way: [] for way in WAYS}
        for i in range(n + 1):
            for way in WAYS if i % 2 else reversed(WAYS):
                seconds[way].append(run.save(way, i))
    return {way: np.array(times[1:]) for way, times in seconds.items()}


def _train(folder, last, dies=False):
    """On each rank: continue from the folder's last checkpoint up to step `last`, saving after
    every second step in the background. Returns the losses. dies: exit during the last save."""
    model, rank, world_size, losses = GPT(SHAPE), dist.get_rank(), dist.get_world_size(), []
    fsdp = zero.PrefetchingFSDP(model, model.blocks)
    saver = checkpoint.BackgroundSave(checkpoint.slow_disk(3e6))
    optimizer, first = adamw(fsdp.groups), 0
    if checkpoint.latest(folder) is not None:
        first = zero.load_shards(folder, fsdp.flats, optimizer)[2].step
    for step in range(first, last):
        loss = model.loss(*batch(step, rank, world_size))
        loss.backward()
        fsdp.average_gradients()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean_over_ranks(loss))
        if step % 2 == 1:
            zero.save_shards(folder, step + 1, fsdp.flats, optimizer, save=saver.save)
    if dies:
        os._exit(9)  # while the last checkpoint is being written
    saver.wait()
    return losses


def kill_and_continue() -> tuple[int, bool]:
    """Four ranks save after steps 2 and 4, exit while they write the checkpoint of step 6, and are
    started again. Returns (step of the last complete checkpoint, whether the losses after it are
    bit for bit those of an uninterrupted run)."""
    run = lambda *given: launch.run(_train, *given, nproc=4, ledger=False)[0]
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, killed = Path(folder, "undisturbed"), Path(folder, "killed")
        losses = run(str(undisturbed), 8)
        try:
            run(str(killed), 6, True)
        except Exception as error:
            if "exit code 9" not in str(error):
                raise
        found = checkpoint.latest(str(killed))
        return found, losses[found:] == run(str(killed), 8)
