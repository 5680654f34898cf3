"""A folder whose disk, and whose threads, stand still when told to; what is asked of the operating
system is noted.

    disk.gate.clear()    whoever opens a file or writes to it waits
    disk.starts.clear()  new threads wait
    disk.calls           [("open", "a.part"), ("fsync", "a.part"),
                          ("rename", "a.part", "a.pt"), ...]
    disk.crashed()       what is left if the power fails now

    open, write   what is buffered in Python is not even the operating system's
    flush         the operating system's, in memory
    fsync         of the file: as much as is flushed by then is on disk
    rename        the name may be on disk, or not
    fsync         of the folder: the name is on disk

What waits for what never comes goes on after PATIENCE.
"""

import contextlib
import functools
import io
import os
import sys
import threading
from pathlib import Path

import torch

CALLS = ("fsync", "rename", "replace", "remove", "unlink")  # of os
PATIENCE = 5.0  # seconds: what should not wait


class Disk:
    """A folder, what is asked of it, and a gate that every write waits at. calls: [(what,
    name or names)]."""

    def __init__(self, folder):
        self.folder, self.calls, self.gate = Path(folder), [], threading.Event()
        self.open_now, self.most, self.second = 0, 0, threading.Event()
        self.names, self.outside, self.look = {}, [], lambda: None
        # the names that are on disk, {name: inode}, and the contents, {inode: bytes}
        self.known, self.synced = {}, {}
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
            if Path(path).resolve().parent != self.folder.resolve():
                self.outside.append(Path(path).name)
            self.synced.pop(os.fstat(file.fileno()).st_ino, None)
            self.note("open", Path(path).name)
        return Noting(file, self)

    def stands_still(self):
        """Until the gates are open; but what waits for what never comes goes on after a while."""
        if not (self.starts.wait(PATIENCE) and self.gate.wait(PATIENCE)):
            self.starts.set()
            self.gate.set()

    def note(self, what, *names):
        self.calls.append((what, *names))
        there = self.there()
        self.known = {name: inode for name, inode in self.known.items() if name in there}
        self.synced = {i: data for i, data in self.synced.items() if i in there.values()}
        self.look()

    def there(self):
        return {path.name: path.stat().st_ino for path in self.folder.iterdir()}

    def all_synced(self):
        """From now on: what is there is on disk, and what comes is there once it is brought."""
        self.known = self.there()
        self.synced = {path.stat().st_ino: path.read_bytes() for path in self.folder.iterdir()}

    def bring(self, inode):
        """fsync of a file, as much of it as has been flushed, or of the folder."""
        if inode == self.folder.stat().st_ino:
            self.known = self.there()
        for path in self.folder.iterdir():
            if path.stat().st_ino == inode:
                self.synced[inode] = path.read_bytes()

    def crashed(self):
        """[{step: its state, or None where that is not whole}] if the power fails now: with the
        names that have been brought to disk, and with those of now."""
        return [
            {
                number(name): loaded(self.synced.get(inode, b""))
                for name, inode in names.items()
                if number(name) is not None
            }
            for names in (self.known, self.there())
        ]

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
                inode = os.fstat(args[0]).st_ino if name == "fsync" else None
                if inode is None:
                    told = [Path(arg).name for arg in args[:2] if isinstance(arg, (str, Path))]
                elif inode == self.folder.stat().st_ino:
                    told = ["the folder"]
                else:
                    told = [self.names.get(inode, "a file")]
                found = before[name](*args, **kwargs)
                if inode is not None:
                    self.bring(inode)
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

    def state(self, step):
        """What a run that resumes now would load of this step; None if there is nothing whole."""
        path = self.folder / f"step_{step:08d}.pt"
        return loaded(path.read_bytes()) if path.exists() else None


def number(name):
    """The step of a checkpoint's file; None of another file."""
    return int(name[5:-3]) if Path(name).match(f"step_{'[0-9]' * 8}.pt") else None


@functools.lru_cache
def loaded(data):
    """The state in a file's bytes; None if it is not whole."""
    with contextlib.suppress(Exception):
        return torch.load(io.BytesIO(data), weights_only=True)
    return None


class Noting:
    """A file that waits at the disk's gate, and keeps all that is written until it is told to
    flush, or closed. torch.save ends with a flush of its own, which no documentation promises."""

    def __init__(self, file, disk):
        self.file, self.disk, self.buffer = file, disk, []

    def write(self, data):
        self.disk.stands_still()
        if self.disk.full:
            raise self.disk.full
        if not self.disk.calls or self.disk.calls[-1] != ("write", Path(self.file.name).name):
            self.disk.note("write", Path(self.file.name).name)
        self.buffer.append(bytes(data))
        return len(self.buffer[-1])

    def flush(self):
        if sys._getframe(1).f_code.co_filename != torch.serialization.__file__:
            self.file.write(b"".join(self.buffer))
            self.file.flush()
            self.buffer.clear()

    def close(self):
        if not self.file.closed:
            self.flush()
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
