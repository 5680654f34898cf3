"""Lab 4, section 15: AsyncCheckpoint, which writes in the background; what is on disk is looked at
after every call.

    begin(11)  threads and disk stand still until begin has returned and all that was given has
               changed; then they go on
    begin(13)  the disk stands still until a second file is open, or for a moment: at most one may
               be, and one copy of the state alive
    begin(14)  at every call, what would be left if the power failed then (disk.py)
    begin(15)  the disk is full: wait() tells it; the checkpoint before is complete; and begin(16)
               works again

It runs here, without ranks, in a folder where another run has left its checkpoints.
"""

import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib.check.causes import hints, of_name
from lib.check.exercise import Exercise
from lib.check.lab4.disk import PATIENCE, Disk, number, same
from lib.check.probes import is_probe
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.training.checkpoint import background
from lib.training.checkpoint.random_state import random_state

PARTS = ("model", "optimizer", "random", "position")
MOMENT = 0.15  # seconds: a wait that should be seen
OTHER = "best.pt"  # a file of somebody else's in the folder


class Training:
    """A small model in training, with dropout."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.position = {"epoch": 0, "sample": 0}

    def step(self):
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


def script(make, case, show):
    there, hook = threading.enumerate(), threading.excepthook
    threading.excepthook = lambda told: None  # what a thread of the answer raises is a claim
    try:
        with tempfile.TemporaryDirectory() as folder, Disk(folder).watched() as disk:
            for name in (OTHER, *(f"step_{step:08d}.pt" for step in range(1, 5))):
                disk.folder.joinpath(name).touch()
            saver = show.run(make, disk.folder, disk.open)
            saves = Saves(Training(), saver, disk, show)
            with show.made.aside():
                saves.training.step()
            for turn in (begins, one_at_a_time, commits, tells_errors):
                turn(saves, disk, show)
                if show.wrong(*(name for name in show.times if not is_probe(name))):
                    break
            disk.full = None
            disk.gate.set()
            for thread in set(threading.enumerate()) - set(there):
                thread.join(MOMENT)  # a pool's wait for more
    finally:
        threading.excepthook = hook


class Saves:
    """What is begun, by a Training; rights: {step: what its checkpoint has to hold}."""

    def __init__(self, training, saver, disk, show):
        self.training, self.saver, self.disk, self.show = training, saver, disk, show
        self.rights = {}

    def begin(self, step, run=None):
        """run: `show.refused`, where it may raise."""
        training, made = self.training, self.show.made
        with made.aside():
            self.rights[step] = training.state()
        args = training.model, training.optimizer, training.position
        (run or self.show.run)(self.saver.begin, step, *args)
        with made.aside():
            training.step()

    def wait(self, run=None):
        (run or self.show.run)(self.saver.wait)

    def look(self, step, name):
        """Show what the file of this step holds, part by part."""
        with self.show.made.aside():
            got, right, now = self.disk.state(step), self.rights[step], self.training.state()
        left = sorted(path.name for path in self.disk.folder.glob("step_*.pt"))
        there = self.disk.folder / f"step_{step:08d}.pt"
        lost = f"after wait(), {there.name} is not there, but {left}"
        self.show(f"{name} file", "" if there.exists() else lost)
        for part in PARTS:
            if not isinstance(got, dict) or part not in got:
                told = "nothing"
            elif same(got[part], right[part]):
                told = "that of when begin was called"
            else:
                told = "that of later" if same(got[part], now[part]) else "something else"
            self.show(f"{name} {part}", told)


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
    saves.training.step()
    disk.starts.set()
    disk.gate.set()
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
    saves.look(13, "the second")


def commits(saves, disk, show):
    """If the power fails at any call, what is left to resume from?"""
    saves.training.position = 26
    disk.calls, found = [], {}
    disk.all_synced()

    def look():
        for left in disk.crashed():
            if found:
                return
            whole = [step for step in (13, 14) if same(left.get(step), saves.rights[step])]
            what, *names = disk.calls[-1]
            if 14 in left and 14 not in whole:
                brought = ("fsync", names[0]) in disk.calls if what == "rename" else None
                found[HALF[brought]] = f"{left_at(disk)} step_00000014.pt, and not whole"
            elif not whole:
                found["all is lost"] = f"{left_at(disk)} no whole checkpoint"

    disk.look = look
    saves.begin(14)
    saves.wait()
    disk.look = lambda: None
    show("another folder", "" if not disk.outside else
         f"{disk.outside[0]} was opened outside the folder of the checkpoints")  # fmt: skip
    calls = "\nThe calls: " + ", ".join(" ".join(call) for call in disk.calls)
    for name in ("all is lost", *HALF.values()):
        show(name, f"{found[name]}{calls}" if name in found else "")
    source = next((c[1] for c in disk.calls if c[0] == "rename" and number(c[-1]) == 14), "")
    show("another open", "" if ("open", source) in disk.calls else
         f"{source} was not opened with self.open{calls}")  # fmt: skip
    show("the new name", "" if same(disk.crashed()[0].get(14), saves.rights[14]) else
         f"the new name was not brought to disk{calls}")  # fmt: skip
    show("the folder holds", " ".join(sorted(path.name for path in disk.folder.glob("*.pt"))))
    saves.look(14, "the last")


# by whether the file was brought to disk before its rename; None: it had its name before
HALF = {None: "its name at once", False: "renamed, not on disk", True: "renamed, half on disk"}


def left_at(disk):
    return f"if the power fails at {' '.join(disk.calls[-1])!r}, there is"


def tells_errors(saves, disk, show):
    """The disk is full for one save, a later one torch.save itself refuses; after each, the
    next is written."""
    with tempfile.TemporaryDirectory() as folder:
        other = show.run(type(saves.saver), Path(folder), disk.open)
        for step, error in (
            (15, OSError(28, "No space left on device")),
            (17, RuntimeError("unexpected pos 64 vs 0")),
        ):
            disk.full = error
            saves.begin(step, show.refused)
            show.refused(other.wait)
            saves.wait(show.refused)
            disk.full = None
            last = "" if same(disk.state(step - 1), saves.rights[step - 1]) else (
                f"step {step} was not written, and step {step - 1} is gone or changed"
            )  # fmt: skip
            show("the one before", last)
            saves.begin(step + 1, show.refused)
            saves.wait(show.refused)
            show("no more", "" if same(disk.state(step + 1), saves.rights[step + 1]) else
                 f"step {step} failed, and step {step + 1} is not written")  # fmt: skip


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
         "model, optimizer, random numbers, position; bit for bit",
         *(f"the saved {part}" for part in ("file", *PARTS))),
        ("one write at a time", 2, "the next waits, and none is left out",
         "files being written", "alive by the second", "left out",
         *(f"the second {part}" for part in ("file", *PARTS))),
        ("whole, or not there", 2, "fsync, rename, fsync; at every call the last one is there",
         "another folder", "all is lost", *HALF.values(), "another open", "the new name",
         "the folder holds",
         *(f"the last {part}" for part in ("file", *PARTS))),
        ("errors are told", 1, "a full disk; the one before stays, the next works"),
    ),
    hints=hints(
        "lab4", "AsyncCheckpoint",
        written_at_once=of_name("begin waits"),
        something_is_missing=lambda p: p.fact("got") == "nothing",
        nothing_saved=of_name("the saved file"),
        random_numbers_of_another_moment=of_name("the saved random"),
        not_copied=of_name("the saved", "the second"),
        two_at_a_time=of_name("files being written", "alive by the second"),
        one_is_left_out=of_name("left out"),
        another_folder=of_name("another folder"),
        nothing_left=of_name("all is lost", "the one before"),
        not_renamed=of_name("its name at once"),
        not_brought_to_disk=of_name("renamed, not"),
        fsync_too_early=of_name("renamed, half"),
        another_open=of_name("another open"),
        the_name_is_not_on_disk=of_name("the new name"),
        not_the_last_two=of_name("the folder holds"),
        no_more=of_name("no more"),
        silent=lambda p: of_name("the error raised")(p) and p.fact("got") == "[]",
        raised_again=of_name("the error raised"),
    ),
)  # fmt: skip
