"""Runs a cell of a session on one rank. The variables stay on the rank for later cells. Therefore a
cell has to be interrupted without ending its rank, which would lose them.

The parent writes into two pipes of the rank, here in run 12:

    the parent                          the rank
    "12" in the pipe go      -------->  runs the cell in `names`, and prints its last expression
    "12" in the pipe stop    -------->  a thread raises Interrupted in the main thread. If the main
                                        thread waits in C++ for another rank, its connections are
                                        shut down, so that gloo raises there
    "join3" in the pipe go   -------->  leaves its groups, and joins a new one

The stop button alone interrupts no rank, because ranks ignore Jupyter's SIGINT (worker.py). The
kernel receives the signal, and interrupts the ranks that have not finished the cell.
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

# seconds that a collective may wait; in practice the parent's watch ends it much earlier
FOR_EVER = 30 * 86_400.0
AGAIN = 0.2  # seconds after which a rank that has not left its cell loses its connections
names: dict[str, Any] = {}  # the variables of the session on this rank
_given: set[str] = set()  # the names that every session has from the start, such as torch
is_cut = False  # have the connections of this rank's groups been shut down?
_interrupter: "_Interrupter | None" = None


class Interrupted(KeyboardInterrupt):
    """Raised in a cell that is interrupted because a person pressed stop or another rank failed."""


def remember(number: int, source: str) -> str:
    """Store the source of the session's cell `number`, so that errors and verdicts of this process
    can quote its lines. Returns the file name under which the ranks and the notebook compile it."""
    name = f"<ipython-input-ranks-{number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return name


def run(number: int, source: str, ranks: tuple[int, ...]) -> list[str]:
    """Run a cell on this rank if it is among `ranks`, and print the value of its last expression
    unless that is None. Returns what `variables` returns afterwards."""
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
    """The sorted names of the variables that the session has created on this rank, without modules
    and without names that begin with an underscore."""
    _begin()
    return sorted(
        name
        for name, value in names.items()
        if not (name in _given or name.startswith("_") or isinstance(value, types.ModuleType))
    )


def fetch(name: str) -> tuple[bool, Any]:
    """(True, the value of this variable), or, if there is no such variable, (False, a list with at
    most one name that is spelled similarly)."""
    _begin()
    if name in names:
        return True, names[name]
    return False, difflib.get_close_matches(name, variables(), 1)


def put(values: dict[str, Any]) -> list[str]:
    """Set these variables on this rank. Returns what `variables` returns afterwards."""
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
    """Return call(). The parent can interrupt it by writing the number of the run, `number`, into
    `pipe`."""
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
    """A thread that waits for a request to interrupt, while the main thread runs a cell."""

    def __init__(self, pipe):
        # leftovers.py recognises by this name that the thread is not the user's
        super().__init__(daemon=True, name="lib.launch.interrupter")
        self.pipe, self.begun = pipe, -1  # begun: the number of the last run that has begun
        self.inside: int | None = None  # the number of the run in progress

    def run(self):
        with open(self.pipe) as pipe:
            for line in iter(pipe.readline, ""):
                self._end(int(line))

    def _end(self, number):
        """Interrupt run `number`, and never the next one, which may begin while this thread
        sleeps."""
        while self.begun < number:  # this rank has not begun it yet
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
    """Shut down this process's connections to other processes of this machine, so that gloo raises
    in every thread that waits for one of them."""
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
    """Leave all groups, even if communication is still in flight in them, and join a new group of
    all ranks. This repairs a session whose ranks have called different collectives."""
    global is_cut
    if choice.name == "gloo":
        # otherwise a thread of gloo might wait forever, and destroying its group would hang, too
        cut_connections()
    dist.destroy_process_group()
    peers.forget_messages()
    backend.join(choice, store, FOR_EVER)
    is_cut = False
