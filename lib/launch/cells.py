"""A cell of a session, on one rank: its variables stay, and it can be interrupted.

    the parent                          the rank
    "12" in the pipe go      -------->  runs the cell in `names`, and prints its last expression
    "12" in the pipe stop    -------->  a thread raises Interrupted in the main thread. If that
                                        waits in C++ for another rank, its connections are shut
                                        down, and gloo raises there
    "join3" in the pipe go   -------->  leaves its groups, and joins a new one

An interrupt from outside is no signal that Jupyter sends: the stop button reaches the kernel alone,
which then asks all ranks.
"""

import ast
import contextlib
import difflib
import linecache
import os
import signal
import socket
import stat
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from lib import backend
from lib.backend import peers

FOR_EVER = 30 * 86_400.0  # seconds that a collective may wait: the parent's watch speaks first
AGAIN = 0.2  # seconds until a rank that has not left its cell is interrupted in another way
names: dict[str, Any] = {}  # the variables of the session on this rank
_given: set[str] = set()  # those of them that every session has
is_cut = False  # have the connections of this rank's groups been shut down?
_interrupter: "_Interrupter | None" = None


class Interrupted(KeyboardInterrupt):
    """The cell was interrupted on this rank, because a person pressed stop or another rank
    failed."""


def remember(number: int, source: str) -> str:
    """Let errors and verdicts of this process quote the lines of the session's cell `number`.
    Returns the name under which it is compiled, here and in the notebook."""
    name = f"<ipython-input-ranks-{number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return name


def run(number: int, source: str, ranks: tuple[int, ...]) -> list[str]:
    """Run a cell on this rank, if it is among `ranks`, and print its last expression. Returns the
    names of the variables that the session now has here."""
    _begin()
    if dist.get_rank() in ranks:
        file = remember(number, source)
        body, last = ast.parse(source, file).body, []
        if body and isinstance(body[-1], ast.Expr):
            last = [body[-1].value]
            body = body[:-1]
        exec(compile(ast.Module(body, []), file, "exec"), names)
        for expression in last:
            value = eval(compile(ast.Expression(expression), file, "eval"), names)
            if value is not None:
                print(repr(value))
    return variables()


def variables() -> list[str]:
    """The names of the variables that cells made on this rank, without modules."""
    _begin()
    return sorted(
        name
        for name, value in names.items()
        if not (name in _given or name.startswith("_") or isinstance(value, types.ModuleType))
    )


def fetch(name: str) -> tuple[bool, Any]:
    """(Is there a variable of this name? its value, or names that are like it)"""
    _begin()
    if name in names:
        return True, names[name]
    return False, difflib.get_close_matches(name, variables(), 1)


def put(values: dict[str, Any]) -> list[str]:
    """Set variables on this rank; returns as `run`."""
    _begin()
    names.update(values)
    return variables()


def _begin():
    if not names:
        names.update(
            __name__="__main__", __builtins__=__builtins__, torch=torch, dist=dist,
            rank=dist.get_rank(), world_size=dist.get_world_size(),
        )  # fmt: skip
        _given.update(names)


def interruptible(number: int, pipe: str, call: Callable[[], Any]) -> Any:
    """call() in run `number`, which the parent can interrupt with this number in `pipe`."""
    global _interrupter
    if _interrupter is None:
        _interrupter = _Interrupter(pipe)
        signal.signal(signal.SIGUSR2, _interrupter.raise_inside)
        _interrupter.start()
    try:
        _interrupter.inside = number
        _interrupter.begun = number
        return call()
    finally:
        _interrupter.inside = None


class _Interrupter(threading.Thread):
    """Waits for the parent's word while the main thread runs a cell."""

    def __init__(self, pipe):
        super().__init__(daemon=True, name="lib.launch.interrupter")  # no thread of the user's
        self.pipe, self.begun = pipe, -1  # the number of the last run that has begun
        self.inside: int | None = None  # of the one that goes on

    def run(self):
        with open(self.pipe) as pipe:
            for line in iter(pipe.readline, ""):
                self._end(int(line))

    def _end(self, number):
        """Interrupt that run, and not the next, which may begin while this thread sleeps."""
        while self.begun < number:  # this rank comes to it later
            time.sleep(0.01)
        while self.inside == number:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
            time.sleep(AGAIN)
            if self.inside == number and dist.get_backend() == "gloo":
                cut_connections()

    def raise_inside(self, *_):
        if self.inside is not None:
            raise Interrupted("the cell was interrupted")


def cut_connections() -> None:
    """Shut down this process's connections to others of this machine: gloo then raises in every
    thread that waits for one."""
    global is_cut
    is_cut = True
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6):
                        here, there = one.getsockname(), one.getpeername()
                        if here[0] == there[0]:
                            one.shutdown(socket.SHUT_RDWR)


def join_anew(choice: backend.Choice, store: dist.Store) -> None:
    """Leave all groups, whatever was under way in them, and join a new one of all ranks."""
    global is_cut
    if choice.name == "gloo":
        cut_connections()  # else a thread of gloo may wait for ever, and the group for that thread
    dist.destroy_process_group()
    peers.forget_messages()
    backend.join(choice, store, FOR_EVER)
    is_cut = False
