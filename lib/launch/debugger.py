"""breakpoint() on a rank opens pdb on that rank. Its commands are typed in the notebook, because a
rank is a process without a keyboard.

    rank 2  stops, writes what pdb shows into the file `asks`, and reads its pipe  ------->
    parent  shows that, and asks for a line with the prompt "(rank 2) "
            n, p x, ll, c, ...  is sent to rank 2  <------
            rank 0              the next commands are for rank 0, if it has stopped as well
            q                   ends the run; launch.run also ends its ranks, a session keeps them

One rank is asked at a time. Time at a prompt counts towards no timeout, so the other ranks can wait
for as long as you type. Where no person can answer, for example where a notebook is graded,
breakpoint() raises an error that says so.
"""

import contextlib
import io
import json
import linecache
import os
import pdb
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from lib.backend import keyboard
from lib.launch import stacks
from lib.launch.cpu_time import now
from lib.ledger.log import RUNNING
from lib.ledger.source import is_cell, position
from lib.ledger.verdict import find_waits
from lib.ledger.words import ranks_text, say

BACK = 0.4  # seconds that we wait for a rank to stop (again) before we turn to another one
QUIT = ("q", "quit", "exit")
_channel: tuple[str, str, int] | None = None  # the file of questions, the pipe of answers, the rank


def install() -> None:
    """On a rank: from now on breakpoint() and pdb.set_trace() open our pdb, or raise where no
    person can answer."""
    keyboard.refuse_debuggers()
    sys.breakpointhook = pdb.set_trace = _stop  # type: ignore[assignment]
    dist.breakpoint = _stop_one  # type: ignore[attr-defined]


def listen(asks: str, answers: str, rank: int, there: bool) -> None:
    """On a rank, when a run begins: prepare for a debugger in this run.

    asks: the file for what pdb shows. answers: the pipe for commands. there: can a person answer?
    """
    global _channel
    _channel = (asks, answers, rank) if there else None


def call(fn: Callable, args: tuple) -> Any:
    """Return fn(*args). A debugger that fn opens does not trace what runs afterwards."""
    try:
        return fn(*args)
    finally:
        sys.settrace(None)


def _stop(*_: Any, **__: Any) -> None:
    _open(sys._getframe(1))


def _stop_one(rank: int = 0, *_: Any, **__: Any) -> None:
    """Stands in for torch's `dist.breakpoint(rank)`: only `rank` stops. The others continue until
    they need it, and wait for it there."""
    if rank == dist.get_rank():
        _open(sys._getframe(1))


def _open(frame):
    if _channel is None:
        keyboard.refuse()
    _OnRank(*_channel).stop_after(frame)


class _OnRank(pdb.Pdb):
    """A pdb that shows its output, and reads its commands, in the parent."""

    def __init__(self, asks, answers, rank):
        self.shown, self.rank, self.asks = io.StringIO(), rank, asks
        self.answers = os.open(answers, os.O_RDONLY)
        skip = ["lib.launch.*", "lib.ledger.*", "torch", "torch.*", "threading", "contextlib"]
        super().__init__(stdin=self, stdout=self.shown, skip=skip, nosigint=True, readrc=False)
        self.use_rawinput, self.prompt = 0, ""

    def stop_after(self, frame):
        """Stop at the next line of `frame`. We cannot use pdb's own `set_trace`, because since
        Python 3.13 it stops at the line of breakpoint() itself."""
        self.reset()
        while frame:
            frame.f_trace, self.botframe = self.trace_dispatch, frame
            frame = frame.f_back
        self.set_step()
        sys.settrace(self.trace_dispatch)

    def readline(self) -> str:
        """Send the parent what pdb has shown since the last command, and return the next one."""
        text = self.shown.getvalue()
        self.shown.seek(0)
        self.shown.truncate()
        return self._ask(text=text)

    def _ask(self, **question):
        with open(self.asks, "a") as file:
            file.write(json.dumps({"rank": self.rank, **question}) + "\n")
        read = b""
        while not read.endswith(b"\n"):
            read += os.read(self.answers, 65536)
        return read.decode()

    def _cmdloop(self):
        self.cmdloop()  # pdb's own version would catch an interrupt and continue

    def interaction(self, frame, *given):
        """Before pdb shows the frame, fetch the source of the cells that are on the stack, because
        only the notebook has it."""
        files, at = set(), frame
        while at is not None:
            files.add(at.f_code.co_filename)
            at = at.f_back
        if files := [f for f in files if is_cell(f) and f not in linecache.cache]:
            for name, text in json.loads(self._ask(files=files)).items():
                lines = text.splitlines(keepends=True)
                linecache.cache[name] = (len(text), None, lines, name)
        super().interaction(frame, *given)

    def get_stack(self, *given):
        """The frames of the user's program, without those of the launcher that called it."""
        frames, at = super().get_stack(*given)
        ours = [
            i for i, (f, _) in enumerate(frames) if f.f_code.co_filename.startswith(stacks.BELOW)
        ]
        above = ours[-1] + 1 if ours and ours[-1] < at else 0
        return frames[above:], at - above

    def format_stack_entry(self, frame_lineno, lprefix=": "):
        """A position in the same form as in error messages. If the function is about to return, the
        value that it returns is added."""
        frame, line = frame_lineno
        text = position(frame.f_code.co_filename, line, frame.f_code.co_name)
        if "__return__" in frame.f_locals:
            text += f"  -> returns {frame.f_locals['__return__']!r}"
        return text


class Prompt:
    """The parent's side, for one run. The watch calls `look` every few milliseconds."""

    def __init__(self, ranks, folder: str, logs, output):
        """ranks: a lib.launch.ranks.Ranks, of which each rank has a pipe for answers."""
        self.ranks, self.path, self.logs, self.output = ranks, f"{folder}/asks", logs, output
        self.at, self.stopped, self.current = 0, {}, -1  # stopped: {rank: what it shows}
        self.left = False  # was the debugger left with q?

    def look(self) -> float:
        """Ask for commands while any rank is stopped. Returns the seconds that this took. Raises
        KeyboardInterrupt if the person types q or presses the stop button."""
        if not self._hear():
            return 0.0
        began = now()
        while self.stopped:
            if self.current not in self.stopped:
                self.current = next(iter(self.stopped))
            self._turn(self.current)
        return now() - began

    def _hear(self):
        """Read what ranks have written since the last call. Returns whether any is stopped."""
        with contextlib.suppress(FileNotFoundError), open(self.path) as file:
            file.seek(self.at)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self.at += len(line.encode())
                question = json.loads(line)
                if "files" in question:
                    texts = {name: "".join(linecache.getlines(name)) for name in question["files"]}
                    self._tell(question["rank"], json.dumps(texts))
                else:
                    self.stopped[question["rank"]] = question["text"]
        return bool(self.stopped)

    def _tell(self, rank, line):
        os.write(self.ranks.answers[rank], f"{line}\n".encode())

    def _turn(self, rank):
        """Show what a stopped rank has written, ask for one command, and carry it out or send it to
        the rank."""
        self.output.pump(final=True)
        for line in self.stopped[rank].splitlines():
            print(f"[rank {rank}] {line}")
        self.stopped[rank] = ""
        sys.stdout.flush()
        try:
            command = input(f"(rank {rank}) ").strip()
        except EOFError:
            command = QUIT[0]
        if command in QUIT:
            self.left = True
            raise KeyboardInterrupt
        if other := re.fullmatch(r"rank\s+(\d+)", command):
            self._switch(int(other[1]))
            return
        del self.stopped[rank]
        self._tell(rank, command)
        self._await(rank)

    def _await(self, rank):
        """Give a running rank a moment to stop, so that stepping stays on one rank."""
        began = now()
        while not (self._hear() and rank in self.stopped) and now() - began < BACK:
            time.sleep(0.005)
            if self.logs.heads()[rank].state != RUNNING:
                break
        self._hear()

    def _switch(self, rank):
        if rank not in self.stopped and rank < self.ranks.nproc:
            self._await(rank)  # it may be about to reach its breakpoint
        if rank in self.stopped:
            self.current = rank
            self.stopped[rank] = self.stopped[rank] or "is asked now"
        elif rank < self.ranks.nproc:
            print(f"rank {rank} is not at a breakpoint: it {self._does(rank)}")
        else:
            print(f"there is no rank {rank} among {ranks_text(range(self.ranks.nproc))}")

    def _does(self, rank):
        heads = self.logs.heads()
        if heads[rank].state != RUNNING:
            return "has returned"
        if wait := find_waits(self.logs.read(), heads).get(rank):
            return f"is waiting in {say(wait.entry)}"
        line = stacks.user_line(
            stacks.ask(self.ranks.folder, {rank: heads[rank].pid}).get(rank, [])
        )
        return f"is at {line}" if line else "runs"
