"""Checkpoints written in the background: training stands still while its state is copied, not while
it is written.

    save           train | snapshot | write, fsync, rename | train                  stall: all of it
    in background  train | snapshot | train        train | wait?| snapshot | train  stall: the copy
                                    | write, fsync, rename |

The snapshot is a copy, or training would change what is being written. It takes as much memory
again, so at most one write is in flight: the next save waits for it. A name is given by an atomic
rename when every byte is on disk, so a crash at any moment leaves the last complete checkpoint
(folder.py).

It is a thread, not a process: a thread needs no second copy of the state in another process's
memory, and forking is not safe once CUDA or threads are in use. While it writes and while it waits
for the disk it does not hold Python's lock. The price is that it dies with its process, and then
only the checkpoint before counts.

On ranks: training's messages must not mix with a background thread's, so that thread sends none. A
rank's files get their names when they are on disk; rank 0 sees them all there, and publishes.

Source: CheckFreq (Mohan et al. 2021) cuts a save into snapshot and persist in this way.
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

KEEP = 2  # files
LOOK = 0.002  # seconds, of a moment
FAILED = ".failed"  # a rank's mark that it could not write


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
        """What the checkpoint of a step is called once it is complete."""
        return self.folder / f"step_{step:08d}.pt"

    def begin(self, step, model, optimizer, position):
        """Copy the state of now, and begin to write it: returns as soon as it is copied.

        position: how far training is in its data; a number, or a dict of numbers.
        Waits for the write before, and raises what that raised.
        """
        self.wait()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        self.start(
            self.write, step, snapshot(state | {"random": random_state(), "position": position})
        )

    def start(self, fn, *args):
        """Run fn(*args) in the background; what it raises is kept for `wait`."""

        def run():
            time.sleep(LOOK)  # else it would take Python's lock before start() has returned
            try:
                fn(*args)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, name="checkpoint")
        self.thread.start()

    def write(self, step, state):
        """In the background: a file beside, to disk, then its name, then the last KEEP are kept."""
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
        """Return when nothing is being written: then the last one begun is complete. Raises
        what its write raised."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def resume(folder, model, optimizer):
    """Load the last complete file of an AsyncCheckpoint: (step, position), or (0, None) where
    there is none."""
    whole = sorted(Path(folder).glob("step_*.pt"))
    if not whole:
        return 0, None
    state = torch.load(whole[-1], map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    set_random_state(state["random"])  # last: whatever runs before it may draw numbers
    return int(whole[-1].stem.removeprefix("step_")), state["position"]


class BackgroundSave(AsyncCheckpoint):
    """`checkpoint.save` on ranks, that returns once the state is copied; read by `checkpoint.load`,
    as all.

        background = BackgroundSave()
        zero.save_shards(folder, step, flats, optimizer, save=background.save)
        background.wait()

    All ranks call `save` and `wait`, in one order.
    """

    def __init__(self, open=open):
        super().__init__("", open)
        self.saving = None  # folder, step, group of what is being written

    def save(self, folder, step, shared, own=None, group=None):
        """Begin the checkpoint of `step`: what is given, sent and raised is as in
        `checkpoint.save`.

        Waits for the save before. Sends, besides: an all-reduce of one number, where there was one.
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
        """In the background: this rank's files; then rank 0 waits for the others' and publishes.
        Sends nothing."""
        beside, own = unfinished(folder, step), f"rank_{rank}.pt"
        try:
            write(
                folder, step, {f"{name}.part": state for name, state in states.items()}, self.open
            )
            # its own last: it says that all are there
            for name in sorted(states, key=lambda name: name == own):
                os.replace(beside / f"{name}.part", beside / name)
        except BaseException:
            (beside / f"rank_{rank}{FAILED}").touch()
            raise
        if rank == 0:
            while not all((beside / f"rank_{r}.pt").exists() for r in range(N)):
                if any(beside.glob(f"*{FAILED}")):
                    return  # that rank tells why
                time.sleep(LOOK)
            sync_folder(beside)
            publish(folder, step)

    def wait(self):
        """Return when the last save is complete, on every rank. Sends: an all-reduce of one number,
        if there was one.

        Raises, on every rank, what the write raised here, or RuntimeError where it was another
        rank's.
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
    """`state` with every tensor copied to the CPU's memory, and every dict, list and tuple of it
    new.

    As copy.deepcopy, a few times as fast where there are hundreds of tensors. From a GPU, all
    copies are queued into pinned memory, which torch reuses for the next snapshot, and are waited
    for once.
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
