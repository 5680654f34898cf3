"""Finds out which line a rank is executing. On SIGUSR1, and when it crashes, Python's faulthandler
on the rank writes its stack into a file, which the parent reads.

The handler is written in C, so it works even while the main thread is inside a call that never
returns to Python, as in a deadlock.
"""

import contextlib
import os
import re
import signal
import time

import torch

from lib import linux
from lib.backend import peers
from lib.launch.cpu_time import now
from lib.ledger import source

ANSWER = 2.0  # seconds that a rank may take to answer, because the machine may be busy
TORCH = os.path.dirname(torch.__file__)
LIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# files of lib whose frames may be on the stack between a line of the user's and torch
BELOW = (LIB + "launch", LIB + "ledger", os.path.abspath(peers.__file__))
HEAD = "Current thread 0x"
GROUP = ("new_group", "init_process_group")  # torch's functions that make a process group
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
Frames = list[tuple[str, int, str]]  # (file, line, function), innermost first


def ask(folder: str, pids: dict[int, int]) -> dict[int, Frames]:
    """{rank: the current stack of its main thread}, which is empty for a rank that does not answer
    within ANSWER seconds. pids: {rank: process id} of the ranks to ask. We do not wait for a rank
    that a signal has stopped or that has ended, because it cannot answer."""
    starts = call(folder, pids)
    sizes, before, asked = dict(starts), None, now()
    while now() - asked < ANSWER and not (
        sizes == before
        and all(
            _frames(f"{folder}/stack{rank}", start) or linux.state(pids[rank]) in ("T", "Z")
            for rank, start in starts.items()
        )
    ):
        time.sleep(0.05)
        before, sizes = sizes, {rank: os.path.getsize(f"{folder}/stack{rank}") for rank in starts}
    return answers(folder, starts)


def call(folder: str, pids: dict[int, int]) -> dict[int, int]:
    """Ask each rank to write its stack, without waiting. Returns {rank: offset in its file at which
    the answer will begin}, the argument for `answers`."""
    paths = {rank: f"{folder}/stack{rank}" for rank in pids}
    starts = {rank: os.path.getsize(path) for rank, path in paths.items() if os.path.exists(path)}
    for rank in starts:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[rank], signal.SIGUSR1)
    return starts


def answers(folder: str, starts: dict[int, int]) -> dict[int, Frames]:
    """The stacks that the ranks have written since `call` returned `starts`."""
    return {rank: _frames(f"{folder}/stack{rank}", start) for rank, start in starts.items()}


def of_a_crash(folder: str, rank: int) -> Frames:
    """The stack that a rank wrote when a signal ended it; [] if it could not write one, as with
    SIGKILL."""
    with contextlib.suppress(FileNotFoundError):
        with open(f"{folder}/stack{rank}", errors="replace") as file:
            _, crashed, stack = file.read().rpartition("Fatal Python error")
        return _parse(stack) if crashed else []
    return []


def _frames(path, start):
    return _parse(_since(path, start)) if _has_begun(path, start) else []


def _has_begun(path, start):
    """Has an answer begun in the file after offset `start`? If the text there has no first line of
    a stack, it is the rest of an answer to an earlier call."""
    return HEAD in _since(path, start)


def _since(path, start):
    with open(path, errors="replace") as file:
        file.seek(start)
        return file.read()


def _parse(text):
    # Python 3.14 appends a stack of C functions
    main = text.split(HEAD)[-1].partition("Current thread's C stack")[0]
    return [(file, int(line), function) for file, line, function in FRAME.findall(main)]


def is_blocked(frames: Frames) -> bool:
    """Is the innermost frame, apart from those of Python's threading, in torch, lib.collectives or
    lib.ledger? Such a rank may wait for others, whereas a rank in the user's own code computes or
    sleeps."""
    inner = next((f for f in frames if not f[0].endswith("threading.py")), None)
    return inner is not None and inner[0].startswith((TORCH, LIB + "collectives", LIB + "ledger"))


def is_connecting(frames: Frames) -> bool:
    """Is the rank making a process group in torch? If so, it may be retrying a connection."""
    return any(file.startswith(TORCH) and function in GROUP for file, _, function in frames)


def user_line(frames: Frames) -> str | None:
    """The line of `user_frame`, in words; None if there is none."""
    found = user_frame(frames)
    return source.position(*found) if found else None


def user_frame(frames: Frames) -> tuple[str, int, str] | None:
    """The innermost frame of this stack that is the user's, or in a package of lib other than those
    in BELOW. None if there is none, because all are in torch, Python's library, or BELOW."""
    for file, line, function in frames:
        if not file.startswith((TORCH, *BELOW, "<frozen", "<string>")) and "python3" not in file:
            return file, line, function
    return None
