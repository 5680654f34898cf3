"""Lab 4, section 15: AsyncCheckpoint, which writes in the background. The check logs the operating
system's calls and looks at the files:

    begin(11)  new threads and the disk are blocked until begin has returned and training has
               changed everything that begin was given
    begin(13)  the disk is blocked while step 12 is written, until a second file is opened or for a
               moment; only one file may be open, and only one copy of the state alive
    begin(14)  the operating system's calls have to be made in the right order
    begin(15)  the disk is full: wait() raises the error, the checkpoint of step 14 is still
               complete, and begin(17) works again
    begin(18)  the write fails with a RuntimeError, like those of torch.save: begin(19) raises it,
               and begin(20) works again

The check needs no ranks. It uses a folder in which another run has left its checkpoints.
"""

import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib.check.causes import hints
from lib.check.lab4.disk import MOMENT, PATIENCE, Disk, same
from lib.check.probes import is_probe
from lib.check.side_by_side import SideBySide, here
from lib.training.checkpoint import background
from lib.training.checkpoint.random_state import random_state

PARTS = ("model", "optimizer", "random", "position")
SAVED, LAST = ([f"the {which} {part}" for part in ("file", *PARTS)] for which in ("saved", "last"))
FOLDER = ("fsync", "the folder")
RULES = {  # so that a power failure loses no checkpoint, and the log contains every write
    "renamed": "{} was not written under another name (no step_*.pt) and then renamed",
    "in the folder": "a file was opened outside the folder of the checkpoints",
    "its open": "the file that was renamed to {} was not opened with self.open",
    "on disk": "not all of the file was on disk when it was renamed to {}",
    "its name": "the new name {} was not brought to disk",
    "old ones": "old checkpoints were removed before {} was on disk",
}


def script(make, case, show):
    there, hook = threading.enumerate(), threading.excepthook
    threading.excepthook = lambda told: None  # a claim judges errors of the answer's threads
    try:
        with tempfile.TemporaryDirectory() as folder, Disk(folder).watched() as disk:
            for name in ("best.pt", *(f"step_{step:08d}.pt" for step in range(1, 5))):
                disk.folder.joinpath(name).touch()
            saver = show.run(make, disk.folder, disk.open)
            saves = Saves(saver, disk, show)
            with show.made.aside():
                saves.train()
            for turn in (begins, one_at_a_time, in_order, tells_errors):
                turn(saves, disk, show)
                if show.wrong(*(name for name in show.times if not is_probe(name))):
                    break
            disk.full = None
            disk.go_on()
            for thread in set(threading.enumerate()) - set(there):
                thread.join(MOMENT)  # a pool's threads wait for more work
    finally:
        threading.excepthook = hook


class Saves:
    """Trains a small model with dropout and begins checkpoints of it. rights: {step: the state that
    its checkpoint has to hold}."""

    def __init__(self, saver, disk, show):
        self.saver, self.disk, self.show, self.rights = saver, disk, show, {}
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.position = {"epoch": 0, "sample": 0}

    def train(self):
        x = torch.randn(2, 3) * random.random() * np.random.rand()
        self.model(x).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if isinstance(self.position, dict):
            self.position["sample"] += 2

    def state(self):
        """The state that a checkpoint has to hold if it is begun now."""
        parts = self.model.state_dict(), self.optimizer.state_dict(), random_state(), self.position
        return background.snapshot(dict(zip(PARTS, parts, strict=True)))

    def begin(self, step, run=None):
        """run: `show.refused` if begin may raise."""
        with self.show.made.aside():
            self.rights[step] = self.state()
        run = run or self.show.run
        run(self.saver.begin, step, self.model, self.optimizer, self.position)
        with self.show.made.aside():
            self.train()

    def wait(self):
        self.show.run(self.saver.wait)

    def is_whole(self, step):
        return same(self.disk.state(step), self.rights[step])

    def look(self, step, names):
        """Show whether the file of this step is there and what it holds, under these names."""
        with self.show.made.aside():
            got, right, now = self.disk.state(step), self.rights[step], self.state()
        left, file = sorted(p.name for p in self.disk.folder.glob("step_*.pt")), file_of(step)
        is_deleted = ("remove", file) in self.disk.calls
        self.show("the newest", f"{file} was deleted: {left}" if is_deleted else "")
        missing = f"after wait() there is no {file}: {left}"
        self.show(names[0], "" if file in left else missing)
        for name, part in zip(names[1:], PARTS, strict=True):
            if not isinstance(got, dict) or part not in got:
                told = "nothing"
            elif same(got[part], right[part]):
                told = "that of when begin was called"
            else:
                told = "that of later" if same(got[part], now[part]) else "something else"
            self.show(name, told)


def file_of(step):
    return f"step_{step:08d}.pt"


def is_step(name):
    """Would a run that resumes mistake a file of this name for a checkpoint?"""
    return Path(name).match("step_*.pt")


def begins(saves, disk, show):
    """Does begin return while the disk is blocked, and does the file hold the state at the time of
    the call?"""
    saves.wait()  # no save has begun yet
    disk.gate.clear()
    disk.starts.clear()
    began = time.monotonic()
    saves.begin(11)
    stalls = time.monotonic() - began >= PATIENCE
    show("begin waits for the disk", "begin(11) has waited for the disk: training stands still "
         "meanwhile" if stalls else "")  # fmt: skip
    saves.train()
    disk.go_on()
    saves.wait()
    saves.look(11, SAVED)


def one_at_a_time(saves, disk, show):
    """Two saves, one shortly after the other, on a disk that is blocked for a while."""
    disk.gate.clear()
    disk.most = 0
    saves.begin(12)
    alive = []

    def goes_on():
        disk.second.wait(MOMENT)
        time.sleep(0.02)
        try:
            alive.append(show.made.alive())
        finally:
            disk.gate.set()

    clock = threading.Timer(0, goes_on)
    clock.start()
    saves.begin(13)
    clock.join()
    saves.wait()
    show("files being written", disk.most, at_most=True)
    show("alive by the second", *alive, at_most=True)
    named = {call[-1] for call in disk.calls}
    for step in (12, 13):
        is_there = disk.state(step) or file_of(step) in named
        missing = f"step {step} was begun, and is not there after wait()"
        show("left out", "" if is_there else missing)


def in_order(saves, disk, show):
    """The right order is open, write, fsync, rename, fsync of the folder, remove. Show which of
    these calls was made too early, or not at all."""
    saves.position = 26
    disk.calls.clear()
    saves.begin(14)
    saves.wait()
    name, calls = file_of(14), disk.calls
    source = next((call[1] for call in calls if call[0] == "rename" and call[-1] == name), "")
    renamed = calls.index(("rename", source, name)) if source else len(calls)
    before, after = calls[:renamed], calls[renamed:]
    synced = after.index(FOLDER) if FOLDER in after else len(after)
    written = max((i for i, call in enumerate(before) if call == ("write", source)), default=0)
    unsafe = before + after[:synced]  # calls made before the new name was on disk
    broken = {
        "renamed": not source or is_step(source),
        "in the folder": disk.outside,
        "its open": ("open", source) not in before,
        "on disk": ("fsync", source) not in before[written:],
        "its name": FOLDER not in after,
        "old ones": any(call[0] in ("remove", "rename") and is_step(call[1]) for call in unsafe),
    }
    told = "The calls: " + ", ".join(" ".join(call) for call in calls)
    for rule, text in RULES.items():
        show(rule, text.format(name) if broken[rule] else "", beside=told)
    show("the folder holds", " ".join(sorted(path.name for path in disk.folder.glob("*.pt"))))
    saves.look(14, LAST)


def tells_errors(saves, disk, show):
    """After a write that failed, the next call raises its error, once, whether it is wait() or
    begin(). Another object's wait() does not raise, and the next checkpoint is written."""
    with tempfile.TemporaryDirectory() as folder:
        other = show.run(type(saves.saver), Path(folder), disk.open)
    for step, error in (15, OSError(28, "No space left")), (18, RuntimeError("pos 64 vs 0")):
        disk.full = error
        saves.begin(step, show.refused)
        show.refused(other.wait)
        if step == 15:
            show.refused(saves.saver.wait)
        else:
            saves.begin(step + 1, show.refused)
        disk.full = None
        show.refused(saves.saver.wait)
        before = step - 1
        show("the one before", "" if saves.is_whole(before) else
             f"step {step} was not written, and step {before} is gone or changed")  # fmt: skip
        saves.begin(step + 2, show.refused)
        show.refused(saves.saver.wait)
        show("no more", "" if saves.is_whole(step + 2) else
             f"step {step} failed, and step {step + 2} is not written")  # fmt: skip


NO_TENSORS = dict.fromkeys(("strided", "float32", "bfloat16"), "no tensors are given")
MEASURE = SideBySide(
    script, background.AsyncCheckpoint, here("a folder with older checkpoints"),
    (background.__name__,), groups=None,
    excused=NO_TENSORS | {"two at once": "the disk is watched for one; a second object is made",
                          "once more": "nothing is returned",
                          "alive at the end": "a pool's thread lets go of the last copy later"},
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("training goes on", 2, "begin returns while the disk stands still",
     "begin waits for the disk"),
    ("the state of that moment", 3,
     "model, optimizer, random numbers, position; bit for bit", "the newest", *SAVED),
    ("one write at a time", 2, "the next waits, and none is left out",
     "files being written", "alive by the second", "left out"),
    ("whole, or not there", 2, "fsync, rename, fsync; only then are old ones removed",
     *RULES, "the folder holds", *LAST),
    ("errors are told", 1, "by wait, or by the next begin; the one before stays"),
    hints=hints("lab4", "AsyncCheckpoint"), bonus=True,
    leaves_out={
        "under way": "at most one is: that is a claim",
        **dict.fromkeys(("empty rank", "alone"), "there are no ranks"),
        "generators": "the notebook gives none",
        "returned": "nothing is returned: the files hold the result",
        "attributes": "later cells call begin and wait",
    },
)  # fmt: skip
