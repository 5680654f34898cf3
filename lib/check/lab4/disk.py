"""A folder whose disk, and whose threads, stand still when told to; what is asked of the operating
system is noted.

    disk.gate.clear()    whoever opens a file or writes to it waits
    disk.starts.clear()  new threads wait
    disk.calls           [("open", "a.part"), ("fsync", "a.part"),
                          ("rename", "a.part", "a.pt"), ...]

What waits for what never comes goes on after PATIENCE.
"""

import contextlib
import os
import threading
from pathlib import Path

import torch

CALLS = ("fsync", "rename", "replace", "remove", "unlink")  # of os
PATIENCE = 5.0  # seconds: what should not wait


class Disk:
    """A folder, what is asked of it, and a gate that every write waits at. calls: [(what,
    name or names)]."""

    def __init__(self, folder):
        self.folder, self.calls, self.gate, self.open_now, self.most = (
            Path(folder),
            [],
            threading.Event(),
            0,
            0,
        )
        self.second, self.names, self.look = threading.Event(), {}, lambda what: None
        self.full = None  # what every write raises
        self.lock = threading.Lock()
        self.gate.set()
        self.starts = threading.Event()  # threads wait at this one before they do anything
        self.starts.set()

    def open(self, path, mode="wb"):
        """For `AsyncCheckpoint`'s open."""
        if "w" in mode:
            with self.lock:
                self.open_now += 1
                self.most = max(self.most, self.open_now)
            if self.open_now > 1:
                self.second.set()
            self.stands_still()
        file = open(path, mode)  # noqa: SIM115
        if "w" in mode:
            self.names[os.fstat(file.fileno()).st_ino] = Path(path).name
            self.note("open", Path(path).name)
        return Noting(file, self)

    def stands_still(self):
        """Until the gates are open; but what waits for what never comes goes on after a while."""
        if not (self.starts.wait(PATIENCE) and self.gate.wait(PATIENCE)):
            self.starts.set()
            self.gate.set()

    def note(self, what, *names):
        self.calls.append((what, *names))
        self.look(what)

    @contextlib.contextmanager
    def watched(self):
        """os.fsync, os.replace and the like are noted."""
        before, start = {name: getattr(os, name) for name in CALLS}, threading.Thread.start
        main = threading.current_thread()

        def starts(thread):
            if not thread.daemon or threading.current_thread() is main:
                run = thread.run
                thread.run = lambda: (self.starts.wait(PATIENCE) or self.stands_still(), run())
            start(thread)

        def noted(name):
            def call(*args, **kwargs):
                if name == "fsync":
                    at = os.fstat(args[0]).st_ino
                    known = (
                        "the folder"
                        if at == self.folder.stat().st_ino
                        else self.names.get(at, "a file")
                    )
                    told = (known,)
                else:
                    told = tuple(Path(arg).name for arg in args[:2] if isinstance(arg, (str, Path)))
                found = before[name](*args, **kwargs)
                self.note(
                    "rename" if name == "replace" else "remove" if name == "unlink" else name, *told
                )
                return found

            return call

        for name in CALLS:
            setattr(os, name, noted(name))
        threading.Thread.start = starts
        try:
            yield self
        finally:
            threading.Thread.start = start
            for name, call in before.items():
                setattr(os, name, call)
            self.gate.set()
            self.starts.set()

    def whole(self):
        """{step: state} of what a run that resumes now could load."""
        found = {}
        for path in sorted(self.folder.glob(f"step_{'[0-9]' * 8}.pt")):
            with contextlib.suppress(Exception):
                found[int(path.stem[5:])] = torch.load(path, weights_only=True)
        return found


class Noting:
    """A file that waits at the disk's gate."""

    def __init__(self, file, disk):
        self.file, self.disk = file, disk

    def write(self, data):
        self.disk.stands_still()
        if self.disk.full:
            raise self.disk.full
        if not self.disk.calls or self.disk.calls[-1] != ("write", Path(self.file.name).name):
            self.disk.note("write", Path(self.file.name).name)
        return self.file.write(data)

    def close(self):
        if not self.file.closed:
            with self.disk.lock:
                self.disk.open_now -= 1
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def same(a, b):
    """Are two states alike, bit for bit?"""
    if torch.is_tensor(a) and torch.is_tensor(b):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b
