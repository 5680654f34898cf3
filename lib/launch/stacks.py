"""Where a rank is: its stack, which Python's faulthandler writes into a file, on SIGUSR1 and when
the rank crashes.

The handler is written in C, so it also works while the main thread is inside a call that never
returns to Python.
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

ANSWER = 2.0  # seconds to say where it is, for a rank that the machine lets wait
TORCH = os.path.dirname(torch.__file__)
LIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# between a call of the user's and torch's
BELOW = (LIB + "launch", LIB + "ledger", os.path.abspath(peers.__file__))
HEAD = "Current thread 0x"
GROUP = ("new_group", "init_process_group")  # torch's functions that make one
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
Frames = list[tuple[str, int, str]]  # (file, line, function), innermost first


def ask(folder: str, pids: dict[int, int]) -> dict[int, Frames]:
    """The stack of each rank's main thread, now. pids: of the ranks that run; one that does not
    answer has none. A rank that a signal has stopped cannot answer, and is not waited for."""
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
    """Ask each rank to write its stack, without waiting; returns where in its file the answer will
    begin, which is for `answers`."""
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
    """The stack that a rank left when a signal ended it; [] if it had no time, as with SIGKILL."""
    with contextlib.suppress(FileNotFoundError):
        with open(f"{folder}/stack{rank}", errors="replace") as file:
            _, crashed, stack = file.read().rpartition("Fatal Python error")
        return _parse(stack) if crashed else []
    return []


def _frames(path, start):
    return _parse(_since(path, start)) if _has_begun(path, start) else []


def _has_begun(path, start):
    """Does what was written there since have the head of a stack? Else it is the end of an answer
    to an earlier call."""
    return HEAD in _since(path, start)


def _since(path, start):
    with open(path, errors="replace") as file:
        file.seek(start)
        return file.read()


def _parse(text):
    # Python 3.14 adds that one
    main = text.split(HEAD)[-1].partition("Current thread's C stack")[0]
    return [(file, int(line), function) for file, line, function in FRAME.findall(main)]


def is_blocked(frames: Frames) -> bool:
    """Is the rank inside a torch call, or inside a wait of one of lib's collectives
    or of the ledger?"""
    inner = next((f for f in frames if not f[0].endswith("threading.py")), None)
    return inner is not None and inner[0].startswith((TORCH, LIB + "collectives", LIB + "ledger"))


def is_connecting(frames: Frames) -> bool:
    """Is the rank making a process group, in torch?"""
    return any(file.startswith(TORCH) and function in GROUP for file, _, function in frames)


def user_line(frames: Frames) -> str | None:
    """The user's line that led there, in words; None if none did."""
    found = user_frame(frames)
    return source.position(*found) if found else None


def user_frame(frames: Frames) -> tuple[str, int, str] | None:
    """The user's line that led there: file, line, function; None if none did."""
    for file, line, function in frames:
        if not file.startswith((TORCH, *BELOW, "<frozen", "<string>")) and "python3" not in file:
            return file, line, function
    return None
