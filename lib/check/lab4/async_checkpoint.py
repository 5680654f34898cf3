"""Lab 4, section 15: AsyncCheckpoint, which writes in the background; what is on disk is looked at
after every call.

    begin(11)  threads and disk stand still until begin has returned and all that was given has
               changed; then they go on
    begin(13)  the disk stands still until a second file is open, or for a moment: at most one may
               be, and one copy of the state alive
    begin(14)  in which order the disk is asked for what
    begin(15)  the disk is full: wait() tells it; the checkpoint before is complete, and begin(17)
               works again
    begin(18)  torch.save itself refuses: begin(19) tells it, and begin(20) works again

It runs here, without ranks, in a folder where another run has left its checkpoints.
"""

import random
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib.check import symptoms as s
from lib.check.causes import hints, of_name
from lib.check.exercise import Exercise
from lib.check.lab4.disk import MOMENT, PATIENCE, Disk, same
from lib.check.probes import is_probe
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.training.checkpoint import background
from lib.training.checkpoint.random_state import random_state

PARTS = ("model", "optimizer", "random", "position")
OTHER = "best.pt"  # a file of somebody else's in the folder
NOW, LATER = "that of when begin was called", "that of later"
FOLDER = ("fsync", "the folder")


def script(make, case, show):
    there, hook = threading.enumerate(), threading.excepthook
    threading.excepthook = lambda told: None  # what a thread of the answer raises is a claim
    try:
        with tempfile.TemporaryDirectory() as folder, Disk(folder).watched() as disk:
            for name in (OTHER, *(f"step_{step:08d}.pt" for step in range(1, 5))):
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
                thread.join(MOMENT)  # a pool's wait for more
    finally:
        threading.excepthook = hook


class Saves:
    """A small model in training, with dropout, of which checkpoints are begun. rights: {step: what
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
        """What a checkpoint of now has to hold."""
        parts = self.model.state_dict(), self.optimizer.state_dict(), random_state(), self.position
        return background.snapshot(dict(zip(PARTS, parts, strict=True)))

    def begin(self, step, run=None):
        """run: `show.refused`, where it may raise."""
        with self.show.made.aside():
            self.rights[step] = self.state()
        run = run or self.show.run
        run(self.saver.begin, step, self.model, self.optimizer, self.position)
        with self.show.made.aside():
            self.train()

    def wait(self, run=None):
        (run or self.show.run)(self.saver.wait)

    def is_whole(self, step):
        return same(self.disk.state(step), self.rights[step])

    def look(self, step, name):
        """Show what the file of this step holds, part by part."""
        with self.show.made.aside():
            got, right, now = self.disk.state(step), self.rights[step], self.state()
        left = sorted(path.name for path in self.disk.folder.glob("step_*.pt"))
        there = self.disk.folder / f"step_{step:08d}.pt"
        told = {"file": "" if there.exists() else f"after wait() there is no {there.name}: {left}"}
        for part in PARTS:
            if not isinstance(got, dict) or part not in got:
                told[part] = "nothing"
            elif same(got[part], right[part]):
                told[part] = NOW
            else:
                told[part] = LATER if same(got[part], now[part]) else "something else"
        self.show(name, told)


def begins(saves, disk, show):
    """Does begin return while the disk stands still, and is what is written what was there?"""
    saves.wait()  # nothing has begun
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
    saves.look(11, "the saved")


def one_at_a_time(saves, disk, show):
    """Two saves, one close behind the other, on a disk that stands still for a while."""
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
        there = disk.state(step) or f"step_{step:08d}.pt" in named
        show("left out", "" if there else f"step {step} was begun, and is not there after wait()")


def in_order(saves, disk, show):
    """open, write, fsync, rename, fsync of the folder, remove: what comes too early, or not at
    all, is lost if the power fails."""
    saves.position = 26
    disk.calls.clear()
    saves.begin(14)
    saves.wait()
    name, calls = "step_00000014.pt", disk.calls
    source = next((call[1] for call in calls if call[0] == "rename" and call[-1] == name), "")
    renamed = calls.index(("rename", source, name)) if source else len(calls)
    before, after = calls[:renamed], calls[renamed:]
    synced = after.index(FOLDER) if FOLDER in after else len(after)
    written = max((i for i, call in enumerate(before) if call == ("write", source)), default=0)
    first = before + after[:synced]  # before the new name was on disk
    away = [call for call in first if call[0] in ("remove", "rename") and is_step(call[1])]
    rules = {
        "renamed": (not source or is_step(source),
                    f"{name} was not written under another name (no step_*.pt) and then renamed"),
        "in the folder": (disk.outside, "a file was opened outside the folder of the checkpoints"),
        "its open": (("open", source) not in before, f"{source} was not opened with self.open"),
        "on disk": (("fsync", source) not in before[written:],
                    f"not all of {source} was on disk when it was renamed"),
        "its name": (FOLDER not in after, f"the new name {name} was not brought to disk"),
        "old ones": (away, f"old checkpoints were removed before {name} was on disk"),
    }  # fmt: skip
    told = "\nThe calls: " + ", ".join(" ".join(call) for call in calls)
    show("order", {rule: f"{text}{told}" if is_broken else ""
                   for rule, (is_broken, text) in rules.items()})  # fmt: skip
    show("the folder holds", " ".join(sorted(path.name for path in disk.folder.glob("*.pt"))))
    saves.look(14, "the last")


def is_step(name):
    """Would a run that resumes take it for a checkpoint?"""
    return Path(name).match("step_*.pt")


def tells_errors(saves, disk, show):
    """After a write that failed, wait() raises, or else the next begin(); and it is once. Another
    object's wait() does not, and the next is written."""
    with tempfile.TemporaryDirectory() as folder:
        other = show.run(type(saves.saver), Path(folder), disk.open)
    for step, error, tells in (
        (15, OSError(28, "No space left on device"), saves.wait),
        (18, RuntimeError("unexpected pos 64 vs 0"), partial(saves.begin, 19)),
    ):
        disk.full = error
        saves.begin(step, show.refused)
        show.refused(other.wait)
        tells(show.refused)
        disk.full = None
        saves.wait(show.refused)
        before = step - 1
        show("the one before", "" if saves.is_whole(before) else
             f"step {step} was not written, and step {before} is gone or changed")  # fmt: skip
        saves.begin(step + 2, show.refused)
        saves.wait(show.refused)
        show("no more", "" if saves.is_whole(step + 2) else
             f"step {step} failed, and step {step + 2} is not written")  # fmt: skip


def _in_part(part):
    return lambda p: p.fact("key", ("", 0, ""))[2] == part


NO_TENSORS = dict.fromkeys(("strided", "float32", "bfloat16"), "no tensors are given")
MEASURE = SideBySide(
    script, background.AsyncCheckpoint, here("a folder with older checkpoints"),
    (background.__name__,), groups=None,
    excused=NO_TENSORS | {"two at once": "the disk is watched for one; a second object is made",
                          "once more": "nothing is returned",
                          "alive at the end": "a pool's thread lets go of the last copy later"},
)  # fmt: skip
EXERCISE = Exercise(
    name="AsyncCheckpoint", reference=background.AsyncCheckpoint, measure=MEASURE, worlds=(),
    bonus=True,
    leaves_out={
        "under way": "at most one is: that is a claim",
        **dict.fromkeys(("empty rank", "alone"), "there are no ranks"),
        "generators": "the notebook gives none",
        "returned": "nothing is returned: the files hold the result",
        "attributes": "later cells call begin and wait",
    },
    claims=claims(
        MEASURE,
        ("training goes on", 2, "begin returns while the disk stands still",
         "begin waits for the disk"),
        ("the state of that moment", 3,
         "model, optimizer, random numbers, position; bit for bit", "the saved"),
        ("one write at a time", 2, "the next waits, and none is left out",
         "files being written", "alive by the second", "left out"),
        ("whole, or not there", 2, "fsync, rename, fsync; only then are old ones removed",
         "order", "the folder holds", "the last"),
        ("errors are told", 1, "by wait, or by the next begin; the one before stays"),
    ),
    hints=hints(
        "lab4", "AsyncCheckpoint",
        nothing_saved=_in_part("file"),
        random_numbers_of_another_moment=_in_part("random"),
        not_renamed=_in_part("renamed"),
        another_folder=_in_part("in the folder"),
        another_open=_in_part("its open"),
        not_brought_to_disk=_in_part("on disk"),
        the_name_is_not_on_disk=_in_part("its name"),
        nothing_left=s.either(_in_part("old ones"), of_name("the one before")),
    ),
)  # fmt: skip
