"""Checkpoints written in the background, so that training stops only while its state is copied, and
not while the copy is written.

    save           train | snapshot | write, fsync, rename | train                  stall: all of it
    in background  train | snapshot | train        train | wait?| snapshot | train  stall: the copy
                                    | write, fsync, rename |

What is written is a copy of the state, the snapshot, because training would otherwise change the
tensors during the write. A snapshot takes as much memory as the state itself, so at most one write
is in flight, and the next save waits for it. A checkpoint gets its name by an atomic rename when
every byte is on disk. A crash at any moment therefore leaves the last complete one (folder.py).

The write runs in a thread and not in a process, because a process would need another copy of the
state in its own memory, and forking is not safe once CUDA or threads are in use. Training goes on
meanwhile, because Python's lock (the GIL) is released while bytes are written and while the thread
waits for the disk. The price is that a killed process takes the thread with it, and the checkpoint
in flight is lost.

On ranks the background thread sends no messages, because they could mix with those of training. The
ranks coordinate through the folder instead: each one gives its files their names when they are on
disk, and rank 0 publishes the checkpoint when it sees the files of all ranks.

Source: CheckFreq (Mohan et al. 2021), which splits a save into snapshot and persist in this way.
"""

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.training.checkpoint.folder import publish, sync_folder, unfinished
from lib.training.checkpoint.random_state import random_state, set_random_state
from lib.training.checkpoint.ranks import prepare, write

KEEP = 2  # checkpoint files; older ones are removed
LOOK = 0.002  # seconds before the thread begins, and between two checks for the other ranks' files
FAILED = ".failed"  # the suffix of the file by which a rank reports that it could not write


# exercise: lab4.AsyncCheckpoint
class AsyncCheckpoint:
    """Checkpoints of one process, each a file folder/step_00000042.pt, written while training goes
    on.

        saver = AsyncCheckpoint(folder)
        saver.begin(step, model, optimizer, position)       # now and then
        saver.wait()                                        # before the process ends

    open(path, "wb") opens a file: Python's own, or that of a slow disk.
    """

    def __init__(self, folder, open=open):
        self.folder, self.open, self.thread, self.error = Path(folder), open, None, None

    def path(self, step):
        """The file of this step's checkpoint, once it is complete."""
        return self.folder / f"step_{step:08d}.pt"

    def begin(self, step, model, optimizer, position):
        """Copy the current state and begin to write the copy. Returns as soon as the copy is made.

        position: how far training is in its data; a number, or a dict of numbers.
        Waits first for the previous write, and raises what that one raised.
        """
        self.wait()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        self.start(
            self.write, step, snapshot(state | {"random": random_state(), "position": position})
        )

    def start(self, fn, *args):
        """Run fn(*args) in the background. An exception is kept, and `wait` raises it."""

        def run():
            time.sleep(LOOK)  # otherwise it could take Python's lock before start() has returned
            try:
                fn(*args)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, name="checkpoint")
        self.thread.start()

    def write(self, step, state):
        """Runs in the background: write under another name, sync to disk, rename, and remove all
        but the last KEEP files."""
        beside = self.path(step).with_suffix(".part")
        with self.open(beside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path(step))
        sync_folder(self.folder)
        for old in sorted(self.folder.glob("step_*.pt"))[:-KEEP]:
            old.unlink()

    def wait(self):
        """Return when nothing is being written any more, so that the last checkpoint that was begun
        is complete. Raises what its write raised."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def resume(folder, model, optimizer):
    """Load the last complete file of an AsyncCheckpoint into `model`, `optimizer` and the random
    generators. Returns (step, position), or (0, None) if there is no file."""
    whole = sorted(Path(folder).glob("step_*.pt"))
    if not whole:
        return 0, None
    state = torch.load(whole[-1], map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    set_random_state(state["random"])  # last: whatever runs before it may draw numbers
    return int(whole[-1].stem.removeprefix("step_")), state["position"]


class BackgroundSave(AsyncCheckpoint):
    """A `checkpoint.save` that returns as soon as every rank's state is copied. `checkpoint.load`
    reads the result like any other checkpoint.

        background = BackgroundSave()
        zero.save_shards(folder, step, flats, optimizer, save=background.save)
        background.wait()

    All ranks call `save` and `wait` in the same order.
    """

    def __init__(self, open=open):
        super().__init__("", open)
        self.saving = None  # folder, step, group of what is being written

    def save(self, folder, step, shared, own=None, group=None):
        """Begin the checkpoint of `step`, after waiting for the save before it. The arguments are
        those of `checkpoint.save`. It raises the same errors, and those of `wait`.

        Sends: a broadcast of 2 int64, and the all-reduce of `wait` if an earlier save has not been
        waited for.
        """
        self.wait()
        states = prepare(folder, step, shared, own, group)
        self.saving = folder, step, group
        self.start(
            self.write_all,
            Path(folder),
            step,
            snapshot(states),
            dist.get_rank(group),
            dist.get_world_size(group),
        )

    def write_all(self, folder, step, states, rank, N):
        """Runs in the background: write this rank's files. Rank 0 then waits until the files of all
        ranks are there, and publishes the checkpoint. Sends nothing."""
        beside, own = unfinished(folder, step), f"rank_{rank}.pt"
        try:
            write(
                folder, step, {f"{name}.part": state for name, state in states.items()}, self.open
            )
            # rank_r.pt is renamed last, because it tells rank 0 that all of this rank's files exist
            for name in sorted(states, key=lambda name: name == own):
                os.replace(beside / f"{name}.part", beside / name)
        except BaseException:
            (beside / f"rank_{rank}{FAILED}").touch()
            raise
        if rank == 0:
            while not all((beside / f"rank_{r}.pt").exists() for r in range(N)):
                if any(beside.glob(f"*{FAILED}")):
                    return  # the rank that failed raises the reason in its `wait`
                time.sleep(LOOK)
            sync_folder(beside)
            publish(folder, step)

    def wait(self):
        """Return when the last save is complete on every rank. Sends: an all-reduce of one number,
        if a save has begun since the last call.

        If a write failed, every rank raises: a rank whose own write failed raises that error, the
        others a RuntimeError.
        """
        if self.saving is None:
            return
        (folder, step, group), self.saving = self.saving, None
        self.thread.join()
        error, self.error, self.thread = self.error, None, None
        failed = torch.tensor([float(error is not None)], device=backend.device())
        collectives.all_reduce(failed, group)
        if error is not None:
            raise error
        if failed.item():
            raise RuntimeError(
                f"the checkpoint of step {step} in {folder} was not written: {failed.item():.0f} "
                f"of the other ranks failed and say why. The one before is whole"
            )


def snapshot(state):
    """A copy of `state`: every tensor is copied to the CPU's memory, and every dict, list and tuple
    is a new one.

    For hundreds of tensors this is several times faster than copy.deepcopy. From a GPU all copies
    go to pinned memory, which torch reuses for the next snapshot. All of them are queued before we
    wait, once, for the last.
    """
    copied = _copied(state)
    backend.synchronize_stream()
    return copied


def _copied(state):
    if isinstance(state, torch.Tensor):
        if not state.is_cuda:
            return state.detach().to("cpu", copy=True)
        pinned = torch.empty(state.shape, dtype=state.dtype, device="cpu", pin_memory=True)
        return pinned.copy_(state.detach(), non_blocking=True)
    if isinstance(state, dict):
        return {key: _copied(one) for key, one in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_copied(one) for one in state)
    return state
