"""Answers to Lab 4's AsyncCheckpoint: wrong ones, each with the hint that it must
get, and right ones."""

import contextlib
import copy
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from as_an_answer import as_an_answer

from lib.training import checkpoint
from lib.training.checkpoint import background


def to_disk(saver, path, state):
    with saver.open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


class AsInTheNotebook:
    """Right. The wrong ones below replace a method of it."""

    def __init__(self, folder, open=open):
        self.folder, self.open, self.thread, self.error = Path(folder), open, None, None

    def path(self, step):
        return self.folder / f"step_{step:08d}.pt"

    def begin(self, step, model, optimizer, position):
        self.wait()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "position": position,
        }
        state = copy.deepcopy(state | {"random": checkpoint.random_state()})
        self.thread = threading.Thread(target=self.write, args=(step, state), name="checkpoint")
        self.thread.start()

    def write(self, step, state):
        try:
            part = self.path(step).with_suffix(".part")
            to_disk(self, part, state)
            os.replace(part, self.path(step))
            checkpoint.sync_folder(self.folder)
            for old in sorted(self.folder.glob("step_*.pt"))[:-2]:
                old.unlink()
        except Exception as error:
            self.error = error

    def wait(self):
        if self.thread:
            self.thread.join()
        if self.error:
            error, self.error = self.error, None
            raise error


class WithAPool(AsInTheNotebook):
    """Right: a future keeps what was raised; pathlib renames; the copy goes through bytes."""

    def __init__(self, folder, open=open):
        super().__init__(folder, open)
        self.pool, self.future = ThreadPoolExecutor(1, thread_name_prefix="checkpoint"), None

    def begin(self, step, model, optimizer, position):
        self.wait()
        import pickle

        parts = (model.state_dict(), optimizer.state_dict(), checkpoint.random_state(), position)
        state = dict(zip(("model", "optimizer", "random", "position"), parts, strict=True))
        self.future = self.pool.submit(self.put, step, pickle.loads(pickle.dumps(state)))

    def put(self, step, state):
        beside = self.folder / "new"
        to_disk(self, beside, state)
        beside.rename(self.path(step))
        checkpoint.sync_folder(self.folder)
        for old in sorted(self.folder.glob("step_*.pt"))[:-2]:
            old.unlink()

    def wait(self):
        future, self.future = self.future, None
        if future:
            future.result()


class Inherits(background.AsyncCheckpoint):
    pass


class WritesAtOnce(AsInTheNotebook):
    def begin(self, step, model, optimizer, position):
        super().begin(step, model, optimizer, position)
        self.wait()


class SecondThread(AsInTheNotebook):
    """What is copied is copied in the background."""

    def begin(self, step, model, optimizer, position):
        self.wait()
        parts = (model.state_dict(), optimizer.state_dict(), checkpoint.random_state(), position)
        state = dict(zip(("model", "optimizer", "random", "position"), parts, strict=True))
        self.thread = threading.Thread(
            target=lambda: self.write(step, copy.deepcopy(state)), name="checkpoint"
        )
        self.thread.start()


class OpensItsName(AsInTheNotebook):
    def write(self, step, state):
        to_disk(self, self.path(step), state)
        checkpoint.sync_folder(self.folder)


class Forgets(AsInTheNotebook):
    def write(self, step, state):
        pass


class NoPosition(AsInTheNotebook):
    def write(self, step, state):
        super().write(step, {key: value for key, value in state.items() if key != "position"})


class NoRandom(AsInTheNotebook):
    def write(self, step, state):
        super().write(step, {key: value for key, value in state.items() if key != "random"})


class RandomLater(AsInTheNotebook):
    def write(self, step, state):
        super().write(step, state | {"random": checkpoint.random_state()})


class ByReference(AsInTheNotebook):
    def begin(self, step, model, optimizer, position):
        self.wait()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "position": position,
        }
        state |= {"random": checkpoint.random_state()}
        self.thread = threading.Thread(target=self.write, args=(step, state), name="checkpoint")
        self.thread.start()


class OnlyTheModel(AsInTheNotebook):
    """The optimizer's moments stay the caller's."""

    def begin(self, step, model, optimizer, position):
        self.wait()
        state = copy.deepcopy({"model": model.state_dict(), "position": position})
        state |= {"random": checkpoint.random_state(), "optimizer": optimizer.state_dict()}
        self.thread = threading.Thread(target=self.write, args=(step, state), name="checkpoint")
        self.thread.start()


class PositionByReference(AsInTheNotebook):
    def begin(self, step, model, optimizer, position):
        self.wait()
        state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        state |= {"random": checkpoint.random_state(), "position": position}
        self.thread = threading.Thread(target=self.write, args=(step, state), name="checkpoint")
        self.thread.start()


class InFloat16(AsInTheNotebook):
    def write(self, step, state):
        super().write(
            step, state | {"model": {name: x.half() for name, x in state["model"].items()}}
        )


class DoesNotWait(AsInTheNotebook):
    def begin(self, step, model, optimizer, position):
        self.threads = [*getattr(self, "threads", []), self.thread]
        self.thread = None
        super().begin(step, model, optimizer, position)

    def wait(self):
        super().wait()
        if self.thread:
            for thread in filter(None, self.threads):
                thread.join()


class LeavesOut(AsInTheNotebook):
    def begin(self, step, model, optimizer, position):
        if self.thread is None or not self.thread.is_alive():
            super().begin(step, model, optimizer, position)


class RemovesFirst(AsInTheNotebook):
    """The only whole one goes before the new one is there."""

    def write(self, step, state):
        for old in self.folder.glob("step_*.pt"):
            old.unlink()
        super().write(step, state)


class OverTheLastOne(AsInTheNotebook):
    """One file, written again and again, and linked to its name."""

    def write(self, step, state):
        for old in self.folder.glob("step_*.pt"):
            os.rename(old, self.folder / "beside.part")
        super().write(step, state)


class CopiesIntoPlace(AsInTheNotebook):
    def write(self, step, state):
        part = self.folder / "new.part"
        to_disk(self, part, state)
        shutil.copyfile(part, self.path(step))
        checkpoint.sync_folder(self.folder)


class InAnotherFolder(AsInTheNotebook):
    """A rename from one file system to another is a copy."""

    def write(self, step, state):
        import tempfile

        part = Path(tempfile.gettempdir(), f"of_{os.getpid()}.part")
        to_disk(self, part, state)
        os.replace(part, self.path(step))
        checkpoint.sync_folder(self.folder)
        for old in sorted(self.folder.glob("step_*.pt"))[:-2]:
            old.unlink()


class NoFsync(AsInTheNotebook):
    def write(self, step, state):
        part = self.path(step).with_suffix(".part")
        with self.open(part, "wb") as file:
            torch.save(state, file)
        os.replace(part, self.path(step))
        checkpoint.sync_folder(self.folder)


class RenamesFirst(AsInTheNotebook):
    def write(self, step, state):
        part = self.path(step).with_suffix(".part")
        with self.open(part, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.replace(part, self.path(step))
            os.fsync(file.fileno())
        checkpoint.sync_folder(self.folder)


class FsyncFirst(AsInTheNotebook):
    def write(self, step, state):
        part = self.path(step).with_suffix(".part")
        with self.open(part, "wb") as file:
            os.fsync(file.fileno())
            torch.save(state, file)
        os.replace(part, self.path(step))
        checkpoint.sync_folder(self.folder)


class NoFolder(AsInTheNotebook):
    def write(self, step, state):
        part = self.path(step).with_suffix(".part")
        to_disk(self, part, state)
        os.replace(part, self.path(step))


class KeepsAll(AsInTheNotebook):
    def write(self, step, state):
        part = self.path(step).with_suffix(".part")
        to_disk(self, part, state)
        os.replace(part, self.path(step))
        checkpoint.sync_folder(self.folder)


class Silent(AsInTheNotebook):
    def wait(self):
        if self.thread:
            self.thread.join()


class TellsForEver(AsInTheNotebook):
    def wait(self):
        if self.thread:
            self.thread.join()
        if self.error:
            raise self.error


class BeginForgets(AsInTheNotebook):
    """wait() raises, and begin only joins."""

    def begin(self, step, model, optimizer, position):
        if self.thread:
            self.thread.join()
        self.error = None
        super().begin(step, model, optimizer, position)


class WaitsASecond(AsInTheNotebook):
    def wait(self):
        if self.thread:
            self.thread.join(timeout=1.0)
        self.thread = None
        super().wait()


class WritesAStep(AsInTheNotebook):
    """A run that resumes would take the unfinished file for a checkpoint."""

    def write(self, step, state):
        part = self.path(step).with_suffix(".part.pt")
        to_disk(self, part, state)
        os.replace(part, self.path(step))
        checkpoint.sync_folder(self.folder)
        for old in sorted(self.folder.glob("step_*.pt"))[:-2]:
            old.unlink()


class GivesUp(AsInTheNotebook):
    """After an error it writes no more."""

    failed = False

    def write(self, step, state):
        if not self.failed:
            super().write(step, state)
            self.failed = self.error is not None


class TellsFullDisksOnly(AsInTheNotebook):
    def wait(self):
        with contextlib.suppress(RuntimeError):
            super().wait()


class RemovesWhatIsNotIts(AsInTheNotebook):
    def wait(self):
        super().wait()
        for old in sorted(self.folder.iterdir())[:-2]:
            old.unlink()


class OpensItself(AsInTheNotebook):
    def __init__(self, folder, open=open):
        super().__init__(folder)


class NoFlush(AsInTheNotebook):
    """Part of it is still buffered in Python at the fsync."""

    def before(self, file):
        pass

    def write(self, step, state):
        part = self.path(step).with_suffix(".part")
        with self.open(part, "wb") as file:
            self.before(file)
            torch.save(state, file)
            os.fsync(file.fileno())
        os.replace(part, self.path(step))
        checkpoint.sync_folder(self.folder)
        for old in sorted(self.folder.glob("step_*.pt"))[:-2]:
            old.unlink()


class FlushedTooEarly(NoFlush):
    def before(self, file):
        file.flush()


class DictsOnly(AsInTheNotebook):
    """position may be a number."""

    def begin(self, step, model, optimizer, position):
        super().begin(step, model, optimizer, dict(position))


class CopiesBeforeItWaits(AsInTheNotebook):
    """Two copies of the state are alive while it waits."""

    def begin(self, step, model, optimizer, position):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"random": checkpoint.random_state(), "position": position}
        state = copy.deepcopy(state)
        self.wait()
        self.thread = threading.Thread(target=self.write, args=(step, state), name="checkpoint")
        self.thread.start()


class ErrorOfAll(AsInTheNotebook):
    """Another object's wait() raises what this one's write raised."""

    errors = ()

    def write(self, step, state):
        super().write(step, state)
        if self.error:
            type(self).errors, self.error = (self.error,), None

    def wait(self):
        if self.thread:
            self.thread.join()
        if self.errors:
            (error,), type(self).errors = self.errors, ()
            raise error


class CountsPosition(AsInTheNotebook):
    """What it is given belongs to the caller."""

    def begin(self, step, model, optimizer, position):
        super().begin(step, model, optimizer, position)
        if isinstance(position, dict):
            position["saved"] = step


class KeepsItsOwnOnly(AsInTheNotebook):
    """What another run has left stays."""

    steps = ()

    def write(self, step, state):
        part = self.path(step).with_suffix(".part")
        try:
            to_disk(self, part, state)
        except Exception as error:
            self.error = error
            return
        os.replace(part, self.path(step))
        checkpoint.sync_folder(self.folder)
        self.steps = (*self.steps, step)
        for old in self.steps[:-2]:
            self.path(old).unlink()
        self.steps = self.steps[-2:]


RIGHT = [AsInTheNotebook, WithAPool, as_an_answer(background.AsyncCheckpoint)]
WRONG = {
    Inherits: "called what it builds",
    WritesAtOnce: "written at once",
    SecondThread: "not copied",
    OpensItsName: "not renamed",
    Forgets: "nothing saved",
    NoPosition: "something is missing",
    NoRandom: "something is missing",
    RandomLater: "random numbers of another moment",
    ByReference: "not copied",
    OnlyTheModel: "not copied",
    PositionByReference: "not copied",
    InFloat16: "changed on the way",
    DoesNotWait: "two at a time",
    LeavesOut: "one is left out",
    RemovesFirst: "nothing left",
    OverTheLastOne: "nothing left",
    CopiesIntoPlace: "not renamed",
    InAnotherFolder: "another folder",
    NoFsync: "not brought to disk",
    RenamesFirst: "not brought to disk",
    FsyncFirst: "not brought to disk",
    NoFolder: "the name is not on disk",
    KeepsAll: "not the last two",
    Silent: "silent",
    TellsForEver: "raised again",
    BeginForgets: "silent",
    WaitsASecond: "two at a time",
    WritesAStep: "not renamed",
    GivesUp: "no more",
    OpensItself: "another open",
    TellsFullDisksOnly: "silent",
    RemovesWhatIsNotIts: "not the last two",
    NoFlush: "not brought to disk",
    FlushedTooEarly: "not brought to disk",
    DictsOnly: "an error in one case",
    CopiesBeforeItWaits: "two at a time",
    ErrorOfAll: "shared by two objects",
    CountsPosition: "arguments changed",
    KeepsItsOwnOnly: "not the last two",
}
