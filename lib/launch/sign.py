"""A sign of life for a person who waits: after 3 s, one line below the cell says what the ranks are
doing. It is rewritten in place once per second (every five seconds after the first 20), and
disappears when the run ends.

    8 s: ranks 0 and 1 compute at line 6; stop shows where

When a program executes, compares or grades a notebook, the line is never shown (lib/frontend.py).
At each look every running rank is asked for its stack, which it writes without stopping its work.
Without a ledger no rank is asked, because the run is then probably a measurement.
"""

from collections.abc import Iterable
from typing import Any

from lib import frontend
from lib.launch import stacks
from lib.launch.cpu_time import now
from lib.ledger.log import RETURNED, RUNNING, Head
from lib.ledger.read import Logs
from lib.ledger.source import is_cell
from lib.ledger.verdict import Wait, find_waits
from lib.ledger.words import ranks_text

FIRST = 3.0  # seconds until the line is shown
EVERY = 1.0  # seconds between two looks
LONG = 20.0  # seconds after which one look every five seconds is enough


class Sign:
    """The line of one run. The watch calls `look` every few milliseconds, and most calls do
    nothing."""

    def __init__(self, folder: str, logs: Logs, ledger: bool):
        self.folder, self.logs, self.ledger = folder, logs, ledger
        self.began, self.next = now(), FIRST - EVERY
        self.line, self.attended = frontend.Line(), frontend.attended()
        self.asked: dict[int, int] = {}  # rank -> where in its file its answer begins

    def __enter__(self) -> "Sign":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.line.text:
            self.line.write("")

    def look(self) -> None:
        """Rewrite the line if a person sees the notebook and it is time to do so."""
        elapsed = now() - self.began
        if not self.attended or elapsed < self.next:
            return
        self.next = elapsed + (EVERY if elapsed < LONG else 5 * EVERY)
        heads = self.logs.heads()
        if elapsed >= FIRST:
            found = stacks.answers(self.folder, self.asked)
            self.line.write(f"{elapsed:.0f} s: {doing(heads, self._waits(heads), found)}")
        running = {head.rank: head.pid for head in heads if head.state == RUNNING}
        self.asked = stacks.call(self.folder, running) if self.ledger else {}

    def _waits(self, heads):
        if not self.ledger or any(head.state == 0 for head in heads):
            return {}
        return find_waits(self.logs.read(), heads)


def doing(heads: list[Head], waits: dict[int, Wait], found: dict[int, stacks.Frames]) -> str:
    """One line that says what the ranks are doing. waits: {rank: its Wait}. found: the stacks of
    the ranks that have answered."""
    if late := [rank for rank, head in enumerate(heads) if head.state == 0]:
        begun = len(heads) - len(late)
        return f"{begun} of {len(heads)} ranks have begun, and the others are being started"
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, head in enumerate(heads):
        alike.setdefault(_one(rank, head, waits, found), []).append(rank)
    told = [
        f"{ranks_text(ranks)} {one if len(ranks) == 1 else many}"
        for (one, many), ranks in alike.items()
    ]
    return "; ".join([*told, "stop shows who waits for whom" if waits else "stop shows where"])


def _one(rank, head, waits, found):
    """What one rank is doing, as the words that follow "rank 0" and those that follow "ranks 0 and
    1"."""
    if head.state >= RETURNED:
        return "has returned", "have returned"
    if rank in waits:
        entry = waits[rank].entry
        at = f" in {entry.op}{_line([(entry.file, entry.line, entry.function)])}"
        return f"waits{at}", f"wait{at}"
    at = _line(found.get(rank, []))
    return f"computes{at}", f"compute{at}"


def _line(frames: Iterable[tuple[str, int, str]]) -> str:
    """The innermost line that is in a cell of the notebook, as " at line 6"; "" if none is."""
    line = next((line for file, line, _ in frames if is_cell(file)), 0)
    return f" at line {line}" if line else ""
