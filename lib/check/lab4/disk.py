"""A folder whose disk can be blocked, as can new threads. Opens, writes, fsyncs, renames and
removals of files are logged; successive writes to one file are logged once.

    disk.gate.clear()    every open and every write waits
    disk.starts.clear()  new threads wait before they run, and so does every open and write
    disk.calls           [("open", "a.part"), ("write", "a.part"), ("fsync", "a.part"),
                          ("rename", "a.part", "a.pt"), ("fsync", "the folder"), ...]

An fsync counts only if everything that was written to the file has been flushed. If a wait would
never end, everything is unblocked after PATIENCE. The timeout of a join is at most half a MOMENT,
so that an answer that does not wait long enough is detected quickly.
"""

import contextlib
import io
import os
import sys
import threading
from functools import partial
from pathlib import Path
from unittest import mock

import torch

PATIENCE = 5.0  # seconds after which a blocked call continues
MOMENT = 0.15  # seconds: long enough for a wrong answer to continue too early
SYNONYMS = {"replace": "rename", "unlink": "remove"}  # of functions of os


class Disk:
    """A folder, the log of the calls on its files, and a gate at which every open and write waits.
    full: the error that every write raises, or None; most: the largest number of files open at
    once; outside: whether a file was opened in another folder."""

    def __init__(self, folder):
        self.folder, self.calls, self.full = Path(folder), [], None
        self.files, self.outside = {}, False  # {inode: Noting}
        self.open_now, self.most, self.second = 0, 0, threading.Event()
        self.lock, self.gate, self.starts = threading.Lock(), threading.Event(), threading.Event()
        self.go_on()

    def go_on(self):
        self.starts.set()
        self.gate.set()

    def stands_still(self):
        """Wait until both events are set. If one of them takes longer than PATIENCE, set both."""
        if not (self.starts.wait(PATIENCE) and self.gate.wait(PATIENCE)):
            self.go_on()

    def open(self, path, mode="wb"):
        """Passed to `AsyncCheckpoint` as its `open`."""
        with self.lock:
            self.open_now += 1
            self.most = max(self.most, self.open_now)
        if self.open_now > 1:
            self.second.set()
        self.stands_still()
        file = Noting(open(path, mode), self)  # noqa: SIM115
        self.files[os.fstat(file.fileno()).st_ino] = file
        self.outside |= Path(path).resolve().parent != self.folder.resolve()
        self.calls.append(("open", file.called))
        return file

    @contextlib.contextmanager
    def watched(self):
        """Within this context os.fsync, os.replace and the like are logged, and new threads wait
        for `starts`, except daemon threads that are not started from this one."""
        start, join = threading.Thread.start, threading.Thread.join
        main = threading.current_thread()

        def starts(thread):
            if not thread.daemon or threading.current_thread() is main:
                run = thread.run
                thread.run = lambda: (self.starts.wait(PATIENCE) or self.go_on(), run())
            start(thread)

        def joins(thread, timeout=None):
            join(thread, None if timeout is None else min(timeout, MOMENT / 2))

        noted = {
            name: partial(self.noted, getattr(os, name), SYNONYMS.get(name, name))
            for name in ("fsync", "rename", "remove", *SYNONYMS)
        }
        with (
            mock.patch.multiple(os, **noted),
            mock.patch.multiple(threading.Thread, start=starts, join=joins),
        ):
            try:
                yield self
            finally:
                self.go_on()

    def noted(self, plain, what, *args, **named):
        """Call `plain`, a function of os, and log it under the name `what`, with its files."""
        names = [Path(arg).name for arg in args[:2] if isinstance(arg, (str, Path))]
        out = plain(*args, **named)
        self.calls.append((what, *(names or [self.on_disk(args[0])])))
        return out

    def on_disk(self, file):
        """What an fsync of this file, or of its descriptor, has brought to disk."""
        inode = os.fstat(file if isinstance(file, int) else file.fileno()).st_ino
        if inode == self.folder.stat().st_ino:
            return "the folder"
        noting = self.files.get(inode)
        return "half a file" if noting is None or noting.buffer else noting.called

    def state(self, step):
        """The state that a run resuming from this step would load now; None if there is no complete
        file."""
        with contextlib.suppress(Exception):
            data = (self.folder / f"step_{step:08d}.pt").read_bytes()
            return torch.load(io.BytesIO(data), weights_only=True)
        return None


class Noting:
    """A file whose writes wait at the disk's gate, and that buffers everything until it is flushed
    or closed. The flush at the end of torch.save is ignored, because no documentation promises
    it."""

    def __init__(self, file, disk):
        self.file, self.disk, self.buffer, self.called = file, disk, [], Path(file.name).name

    def write(self, data):
        self.disk.stands_still()
        if self.disk.full:
            raise self.disk.full
        if self.disk.calls[-1:] != [("write", self.called)]:
            self.disk.calls.append(("write", self.called))
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
    """Are two states equal, bit for bit?"""
    if torch.is_tensor(a) and torch.is_tensor(b):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b
