"""How long a checkpoint in the background stops training, against torch's async_save and waiting.

    background  AsyncCheckpoint.begin: the copy
    at once     begin and wait: copy, write, fsync, rename
    theirs      torch.distributed.checkpoint.async_save, on a thread: staging, and what comes before
                it returns

One process, the same state and an emulated slow disk for all; every write ends in fsync. What is
under way ends before the next call, so no call waits for a write before.
"""

import tempfile
import time
import warnings

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from lib import plots
from lib.training.checkpoint import AsyncCheckpoint, resume, slow_disk
from lib.training.model import GPT, Shape
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.ratios import ratios

SHAPE = Shape(vocab_size=104, seq_len=32, n_layers=4, hidden=64, n_heads=4)
RATE = 20e6  # bytes per second
AT_ONCE = Bar(0.2, "A copy in memory beside a write to a disk.")
NOT_LONGER = Bar(None, "The same copy.")


class SlowWriter(dcp.FileSystemWriter):
    """torch's writer on a disk of `rate` bytes per second."""

    def __init__(self, path, rate):
        super().__init__(path, sync_files=True)
        self.fs.create_stream = slow_disk(rate)


def run(quick):
    times, size = measured(SHAPE, RATE, 5 if quick else ROUNDS)
    rows = [
        report.Row(f"background / {theirs}", 1, size,
                   compare(times["background"], times[theirs], times[again]), bar)
        for theirs, again, bar in (
            ("at once", "at once, again", AT_ONCE), ("async_save", "async_save, again", NOT_LONGER),
        )
    ]  # fmt: skip
    notes = [f"An emulated disk of {RATE / 1e6:g} MB/s. Seconds are those until the call returns."]
    return report.Outcome("one process", draw(rows), rows, notes=notes, data={1: times})


def measured(shape, rate, rounds):
    """({side: (rounds,) seconds until the call returns}, the state's size in words). Both are
    loaded again first."""
    model = GPT(shape)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model.loss(*torch.zeros(2, 1, 4, dtype=torch.int64)).backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs in one process
        saver, count = AsyncCheckpoint(folder, slow_disk(rate)), 0

        def begin():
            nonlocal count
            count += 1
            saver.begin(count, model, optimizer, count)
            return saver.wait

        def at_once():
            begin()()
            return lambda: None

        def theirs():
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "position": count,
            }
            return dcp.async_save(
                state, storage_writer=SlowWriter(f"{folder}/dcp", rate), no_dist=True
            ).result

        sides = {"background": begin, "at once": at_once, "at once, again": at_once,
                 "async_save": theirs,
                 "async_save, again": theirs}  # fmt: skip
        for side in sides.values():
            side()()
        check_equal(folder, model, count)
        seconds = {name: [] for name in sides}
        for i in range(rounds):
            for name in sides if i % 2 == 0 else reversed(sides):
                began = time.perf_counter()
                wait = sides[name]()
                seconds[name].append(time.perf_counter() - began)
                wait()
        size = next(saver.folder.glob("*.pt")).stat().st_size
    return {name: np.array(times) for name, times in seconds.items()}, f"{size / 1e6:.2f} MB"


def check_equal(folder, model, step):
    """Both sides have saved this model, or nothing is timed."""
    other = GPT(model.shape, seed=1)
    found, _ = resume(folder, other, torch.optim.AdamW(other.parameters()))
    theirs = {"model": GPT(model.shape, seed=2).state_dict()}
    dcp.load(theirs, checkpoint_id=f"{folder}/dcp", no_dist=True)
    want = model.state_dict()
    if found != step or not all(
        torch.equal(p, want[n])
        for state in (other.state_dict(), theirs["model"])
        for n, p in state.items()
    ):
        raise RuntimeError("what was saved is not the model: nothing to time")


@plots.styled
def draw(rows):
    """A lane per comparison: the ratio with its interval, the control's in grey below it."""
    figure = ratios(rows, 2.6, "{} process")
    return plots.finish(
        figure,
        f"A checkpoint in the background keeps training for {rows[0].comparison.ratio.median:.3f} "
        f"of a save",
        "Below 1 lib's stall is shorter. Lines: 95 % of the median of paired ratios; grey: the "
        "control.",
        "Ratio of the time for which training stands still. "
        + " ".join(f"{row.what}: {report.within(row.comparison.ratio)}." for row in rows),
    )
