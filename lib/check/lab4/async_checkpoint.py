"""Lab 4, section 15: AsyncCheckpoint, which writes in the background; what is on disk is looked at
after every call.

    begin(1)  threads and disk stand still until begin has returned and all that was given has
              changed; then they go on
    begin(2)  the disk stands still until a second file is open, or for a moment: at most one may be
    begin(3)  what the operating system is asked, in order; at each call the last whole checkpoint
              must still be there
    begin(4)  the disk is full: the next call is told so; the checkpoint before is complete;
              and begin(5) works again

It runs here, without ranks. The disk is a folder, and `open` gives files that wait and note.
"""

import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib.check import pure
from lib.check import symptoms as s
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab4.disk import PATIENCE, Disk, same
from lib.training.checkpoint import background
from lib.training.checkpoint.random_state import random_state, set_random_state

PARTS = ("model", "optimizer", "random", "position")
MOMENT = 0.15  # seconds: a wait that should be seen
BEGIN, BESIDE, TO_DISK = "begins", "one at a time", "commit"
OTHER = "best.pt"  # a file of somebody else's in the folder


class Run:
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
        self.position["sample"] += 2

    def state(self):
        """What a checkpoint of now has to hold."""
        parts = self.model.state_dict(), self.optimizer.state_dict(), random_state(), self.position
        return background.snapshot(dict(zip(PARTS, parts, strict=True)))


def _measure(fn):
    if fn is background.AsyncCheckpoint or background.AsyncCheckpoint in fn.__mro__:
        return {BEGIN: Problem("built-in", "the answer is lib's AsyncCheckpoint, or a child of it")}
    before, seen, hook, there = random_state(), {}, threading.excepthook, threading.enumerate()
    threading.excepthook = lambda told: None  # what a thread of the answer raises is a claim
    try:
        with tempfile.TemporaryDirectory() as folder, Disk(folder).watched() as disk:
            run, saver, rights = Run(), fn(Path(folder), disk.open), {}
            disk.folder.joinpath(OTHER).touch()
            run.step()
            for turn in (_begins, _one_at_a_time, _commits, _tells_errors):
                turn(run, saver, disk, rights, seen)
                if any(seen.values()):
                    break
            disk.full = None
            disk.gate.set()
            _quiet(there)
    finally:
        threading.excepthook = hook
        set_random_state(before)
    return seen


def _quiet(there):
    """Until the answer's threads have ended, or for a moment: a pool's wait for more."""
    for thread in set(threading.enumerate()) - set(there):
        thread.join(MOMENT)


def _begin(run, saver, step, rights):
    rights[step] = run.state()
    return saver.begin(step, run.model, run.optimizer, run.position)


def _begins(run, saver, disk, rights, seen):
    """Does begin return while the disk stands still, and is what is written what was there?"""
    saver.wait()  # nothing has begun
    disk.gate.clear()
    disk.starts.clear()
    began = time.monotonic()
    _begin(run, saver, 1, rights)
    if time.monotonic() - began >= PATIENCE:
        seen[BEGIN] = Problem(
            "stalls", "begin(1) has waited for the disk: training stands still meanwhile"
        )
        return
    for _ in range(3):
        run.step()
    disk.starts.set()
    disk.gate.set()
    saver.wait()
    whole = disk.whole()
    if 1 not in whole:
        left = sorted(path.name for path in disk.folder.iterdir())
        text = (
            f"after wait(), folder holds {left}: expected step_00000001.pt, as torch.save writes it"
        )
        seen[BEGIN] = Problem("not there", text, {"file": "step_00000001.pt" in left})
    else:
        seen["copy"] = _differs(whole[1], rights[1], run.state(), 1)


def _differs(got, right, now, step):
    """The Problem of the first part that is not what it was when begin was called."""
    for part in PARTS:
        if not isinstance(got, dict) or part not in got:
            return Problem("lacks", f"step {step}: what is saved has no {part!r}", {"part": part})
        if not same(got[part], right[part]):
            later = same(got[part], now[part])
            words = "as it is three steps later" if later else "something else"
            text = (
                f"step {step}: the saved {part} is {words}, expected that of when begin was called"
            )
            return Problem("another moment", text, {"part": part, "later": later}, [part, later])
    return None


def _one_at_a_time(run, saver, disk, rights, seen):
    """Two saves, one close behind the other, on a disk that stands still for a while."""
    disk.gate.clear()
    disk.most = 0
    _begin(run, saver, 2, rights)
    run.step()

    def goes_on():
        disk.second.wait(MOMENT)
        time.sleep(0.02)
        disk.gate.set()

    clock = threading.Timer(0, goes_on)
    clock.start()
    _begin(run, saver, 3, rights)
    clock.join()
    saver.wait()
    whole, named = disk.whole(), {call[-1] for call in disk.calls}
    missing = [step for step in (3, 2) if step not in whole and f"step_{step:08d}.pt" not in named]
    if disk.most > 1:
        seen[BESIDE] = Problem(
            "two writes", "begin(3): step 3 is being written while step 2 still is"
        )
    elif missing:
        seen[BESIDE] = Problem(
            "left out", f"step {missing[0]} was begun, and is not there after wait()"
        )
    elif 3 not in whole:
        seen[BESIDE] = Problem(
            "kept", f"step 3 was written, and removed: there are {sorted(whole)}"
        )
    else:
        seen[BESIDE] = _differs(whole[3], rights[3], run.state(), 3)


def _commits(run, saver, disk, rights, seen):
    """What is asked of the disk, in order; and is there something to resume from at each call?"""
    disk.calls, gone = [], []

    def look(what):
        whole = disk.whole()
        if not any(same(whole.get(step), rights[step]) for step in (3, 6)):
            gone.append(what)

    disk.look = look
    _begin(run, saver, 6, rights)
    saver.wait()
    disk.look = lambda what: None
    calls, final = [*disk.calls], "step_00000006.pt"
    names = [call for call in calls if call[0] == "rename" and call[-1] == final]
    told = "\nThe calls: " + ", ".join(" ".join(call) for call in calls)
    if gone:
        text = (
            f"at {gone[0]!r} of step 6 no whole checkpoint was left: a crash then loses "
            f"everything{told}"
        )
        seen[TO_DISK] = Problem("all lost", text)
    elif not names:
        text = f"{final} was never renamed: it had its name before it was whole"
        seen[TO_DISK] = Problem("no rename", text + told)
    elif Path(source := names[0][1]).match("step_*.pt"):
        seen[TO_DISK] = Problem(
            "no rename", f"{source} looks like a checkpoint before it is whole{told}"
        )
    else:
        place = calls.index(names[0])
        writes = [i for i, call in enumerate(calls) if call == ("write", source)]
        syncs = [i for i, call in enumerate(calls) if call == ("fsync", source)]
        folder = [i for i, call in enumerate(calls) if call == ("fsync", "the folder")]
        early = [
            call[1]
            for call in calls[:place]
            if call[0] == "remove" and Path(call[1]).match("step_*.pt")
        ]
        left = sorted(path.name for path in disk.folder.iterdir())
        if early:
            seen[TO_DISK] = Problem(
                "all lost", f"{early[0]} was removed before {final} had its name{told}"
            )
        elif ("open", source) not in calls:
            seen[TO_DISK] = Problem("another open", f"{source} was not opened with self.open{told}")
        elif not syncs:
            seen[TO_DISK] = Problem(
                "no fsync", f"{source} was renamed, and never brought to disk{told}"
            )
        elif syncs[0] > place:
            seen[TO_DISK] = Problem(
                "late fsync", f"{source} was renamed before it was brought to disk{told}"
            )
        elif writes and syncs[-1] < writes[-1]:
            seen[TO_DISK] = Problem("early fsync", f"{source} was written to after its fsync{told}")
        elif not folder or folder[-1] < place:
            seen[TO_DISK] = Problem("no folder", f"the new name was not brought to disk{told}")
        elif len(disk.whole()) != 2 or OTHER not in left:
            seen[TO_DISK] = Problem(
                "kept", f"the folder holds {left}, expected the last two, and {OTHER}, as before"
            )


def _tells_errors(run, saver, disk, rights, seen):
    """The disk is full for one save, a later one torch.save itself refuses; after each, the
    next is written."""

    def told(step):
        """What saving raises."""
        try:
            _begin(run, saver, step, rights)
            saver.wait()
        except (OSError, RuntimeError) as error:
            return error

    for step, error in (
        (7, OSError(28, "No space left on device")),
        (9, RuntimeError("unexpected pos 64 vs 0")),
    ):
        disk.full, last, after = error, step - 1, step + 1
        silent = told(step) is None
        disk.full, whole, text = None, disk.whole(), f"step {step} failed, and was told; "
        if silent:
            seen["errors"] = Problem(
                "silent", f"step {step}: writing raised {error!r}, and wait() has raised nothing"
            )
        elif step in whole or not same(whole.get(last), rights[last]):
            seen["errors"] = Problem(
                "all lost", f"step {step} was not written, and step {last} is gone or changed"
            )
        elif told(after):
            seen["errors"] = Problem("again", f"{text}begin({after}) or its wait() raises it again")
        elif not same(disk.whole().get(after), rights[after]):
            seen["errors"] = Problem("no more", f"{text}step {after} is not written any more")
        if seen.get("errors"):
            return


def _found(*keys):
    @without_ranks
    def judge(seen):
        return next((seen[key] for key in keys if seen.get(key)), None)

    return judge


def _part(name):
    return s.kind("another moment", part=name)


EXERCISE = Exercise(
    name="AsyncCheckpoint", reference=background.AsyncCheckpoint, measure=_measure, worlds=(),
    bonus=True,
    leaves_out={
        "precise": "bits are compared, of every dtype that is there",
        "under way": "at most one is: that is a claim",
        **dict.fromkeys(("empty rank", "alone"), "there are no ranks"),
        "generators": "the notebook gives none",
        "returned": "nothing is returned: the files hold the result",
        "memory": "a copy of the state is what it is about; at most one is alive, as at most one "
                  "write is",
        "attributes": "later cells call begin and wait",
    },
    claims=(
        claim("training goes on", 2, "begin returns while the disk stands still", _found(BEGIN)),
        claim("the state of that moment", 3,
              "model, optimizer, random numbers, position; bit for bit", _found("copy")),
        claim("one write at a time", 2, "the next waits, and none is left out", _found(BESIDE)),
        claim("whole, or not there", 2, "fsync, rename, fsync; at every call the last one is there",
              _found(TO_DISK)),
        claim("errors are told", 1, "a full disk; the one before stays, the next works",
              _found("errors")),
    ),
    hints=(
        s.CALLED_LIB.saying("write begin, write and wait yourself."),
        Hint("written at once", s.kind("stalls"),
             "begin only copies, and starts a thread: Thread(target=self.write, args=(step, "
             "state)).start()."),
        Hint("something is missing", s.either(s.kind("lacks"), s.kind("not there", file=True)),
             "a run that resumes needs all four, as tensors, numbers and dicts: {'model': "
             "model.state_dict(), 'optimizer': ..., 'random': checkpoint.random_state(), "
             "'position': position}."),
        Hint("nothing saved", s.kind("not there"),
             "wait() joins the thread, which has written the file self.path(step) by then."),
        Hint("random numbers of another moment", _part("random"),
             "ask for checkpoint.random_state() in begin, not in the background: training draws on "
             "meanwhile."),
        Hint("not copied", s.kind("another moment"),
             "state_dict() gives the very tensors that training changes, and a dict stays the "
             "caller's. Copy it all, with what is inside, before begin returns: "
             "checkpoint.snapshot, or copy.deepcopy."),
        Hint("two at a time", s.kind("two writes"),
             "each write holds a copy of the state, and they share the disk: begin waits for the "
             "write before."),
        Hint("one is left out", s.kind("left out"),
             "while a write is under way, begin waits for it, and then begins its own: no "
             "checkpoint is skipped."),
        Hint("nothing left", s.kind("all lost"),
             "write beside the old ones, under another name, and remove old ones only when the new "
             "one has its name."),
        Hint("not renamed", s.kind("no rename"),
             "a crash in the middle of a write leaves half a file. Only a rename is all or "
             "nothing: os.replace, from a name that no step_*.pt has to self.path(step)."),
        Hint("another open", s.kind("another open"),
             "whoever makes the object chooses what opens a file: self.open."),
        Hint("not brought to disk", s.kind("no fsync"),
             "written is not yet on disk: file.flush(), os.fsync(file.fileno()), and then the "
             "rename."),
        Hint("renamed first", s.kind("late fsync"),
             "if the power goes between the two, the name is there and its contents are not: fsync "
             "first."),
        Hint("fsync too early", s.kind("early fsync"),
             "first write all, then flush(), then fsync, then rename."),
        Hint("the name is not on disk", s.kind("no folder"),
             "a name belongs to the folder, and has a fsync of its own: "
             "checkpoint.sync_folder(self.folder)."),
        Hint("not the last two", s.kind("kept"),
             "a disk is finite: keep the last two step_*.pt, no fewer and no more; other files are "
             "not yours."),
        Hint("silent", s.kind("silent"),
             "an exception in a thread is printed, and lost. Keep it, whatever its type, "
             "self.error = error, and let wait() raise it."),
        Hint("raised again", s.kind("again"), "once it is told, forget it: self.error = None."),
        Hint("no more", s.kind("no more"),
             "after an error the next begin starts a new thread, as always."),
        pure.NOTHING, *s.ANYWHERE,
    ),
)  # fmt: skip
