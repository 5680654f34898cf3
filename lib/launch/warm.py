"""Ranks that stay: a set of processes that have joined a group does run after run, asleep in
between.

    taken   the set for this backend and this many ranks: one that rests, or a new one. After a run
            that ended well it rests again; else it is ended
    keeper  a thread; when no run goes on it ends sets that their run left changed, and has one
            ready of the kind that was used last

    kept    the set of a session (sessions.py): no other run uses it or ends it, but it ends after
            `IDLE` seconds without a cell

Sets end, too, when memory gets short (the oldest first), after `IDLE` seconds, when a file of lib
has changed, and with this process. On GPUs there is one set at a time, beside those of sessions.
"""

import atexit
import collections
import contextlib
import os
import signal
import threading
import time

from lib import linux
from lib.backend import Choice
from lib.launch import leftovers
from lib.launch import server as servers
from lib.launch.agent import signal_to

# where graded, each exercise has ranks of its own, and nothing is made ahead
from lib.launch.errors import GRADED, short
from lib.launch.ranks import Ranks, kind_of, leaving
from lib.launch.ranks import kept as _kept
from lib.launch.ranks import sets as _sets
from lib.launch.server import Server

IDLE = 1800.0  # seconds that a set may rest
IDLE_ON_GPU = 300.0  # the same, where it keeps memory of GPUs
SETTLE = 10.0  # seconds that ranks may take to put back what a run has changed
# seconds without a run before the second server is made: a program that soon ends does without
QUIET = 2.0
COME = 120.0  # seconds that a set made ahead of a run may take to join
PER_RANK = 100 << 20  # bytes that a rank takes, until one has been measured
SHARE = 0.5  # of the memory that is free, a new set may take at most so much
# a notebook is run from top to bottom, to be stored or compared
UNATTENDED = os.environ.get("LAB_STATIC") == "1"

one_at_a_time = threading.RLock()  # a run, or a change to the sets
reasons: collections.deque = collections.deque(maxlen=100)  # why sets were not used again
_servers: list[Server] = []  # the last one that has loaded is the one to fork from
_retired: list[Server] = []  # earlier ones, from which a session still has its ranks
_last: tuple[Choice, int] | None = None  # what ran last: a set for the like is kept ready


@contextlib.contextmanager
def taken(choice: Choice, nproc: int, fresh: bool = False, slow_import: bool = False):
    """A set for one run. If the run fails, or is interrupted, the set is ended. fresh: a new one,
    ended in any case.

    slow_import: the run is likely to import what the second server has imported; ranks then come
    from that one.
    """
    global _last
    with one_at_a_time:
        try:
            if slow_import and not _keeper.given_up:
                _load_now()
            ranks = _take(choice, nproc, fresh)
            yield ranks
            ranks.rest()
            ranks.busy, ranks.used = fresh, time.monotonic()
        finally:
            end_interrupted()
            _last = choice, nproc
            _pause(signal.SIGCONT)
            _keeper.wake()


def keep(choice: Choice, nproc: int) -> Ranks:
    """A set for a session, which alone uses it. Raises MemoryError where it has no room."""
    with one_at_a_time:
        if not any(ranks.kind == kind_of(choice, nproc) for ranks in _sets):
            needed, free = _make_room(choice, nproc), linux.free()
            if needed > SHARE * free:
                raise short(MemoryError(
                    f"a session of {nproc} ranks needs about {needed / 1e9:.2f} GB of memory. Only "
                    f"{free / 1e9:.2f} GB are free, and a session may use at most half of that. "
                    "Use fewer ranks, or end another session by calling its end()"
                ))  # fmt: skip
        try:
            ranks = _take(choice, nproc, fresh=False)
            ranks.keep()
            ranks.busy = False
            return ranks
        finally:
            end_interrupted()
            _pause(signal.SIGCONT)
            _keeper.wake()


@contextlib.contextmanager
def cell_on(ranks: Ranks):
    """Inside, the ranks of a session run, and no others of this process are made."""
    with one_at_a_time:
        end_interrupted()
        _pause(signal.SIGSTOP)
        ranks.busy = True
        try:
            yield
        finally:
            ranks.busy, ranks.used = False, time.monotonic()
            ranks.clear()
            _pause(signal.SIGCONT)
            _keeper.wake()


def prepare(on_gpus: bool) -> None:
    """Let the first server begin to import before a run waits for it. Not where graded: nothing is
    made ahead there."""
    with one_at_a_time:
        if not _servers and not GRADED:
            _first(on_gpus)
            _servers[0].start()


def _take(choice, nproc, fresh):
    end_interrupted()
    _pause(signal.SIGSTOP)
    _end(ranks for ranks in _sets if ranks.is_outdated())
    kind = kind_of(choice, nproc)
    found = next(
        (r for r in _sets if r.kind == kind and r.server.loaded and not (fresh and r.runs)), None
    )
    if found is not None and not (found.is_as_new(SETTLE) if found.runs else found.is_alive()):
        _give_up(found)
        found = None
    if found is None:
        _make_room(choice, nproc)
        found = Ranks(choice, nproc, _server(choice))
    found.busy = True
    _sets.remove(found)
    _sets.append(found)
    return found


def end_interrupted() -> None:
    """End the sets that are busy though no run goes on: one failed or was interrupted."""
    _end(ranks for ranks in _sets if ranks.busy)


def end_all() -> None:
    """End all ranks of this process, where what comes must not meet what was."""
    global _last
    with one_at_a_time:
        _last = None
        _end(_sets)


def resting() -> set[int]:
    """The process ids of the ranks that rest, or are made ready for a run. Other ranks of this
    process must not be."""
    return {pid for ranks in [*_sets, *_kept] if not ranks.busy for pid in ranks.agent.pids()}


def server_pids() -> list[int]:
    """The processes that the ranks of this one come from."""
    return [server.pid for server in [*_servers, *_retired] if server.pid is not None]


def _give_up(ranks):
    why = ranks.left()
    reasons.append(why)
    ranks.end()
    if why.endswith(leftovers.SLOW_IMPORT):
        _load_now()


def _lack_later():
    return len(_servers) == 1 and _servers[0].modules == servers.PRELOAD


def _load_now():
    """Runs need what the second server imports: from now on ranks come from it, though the first
    wait until it has."""
    if not _servers or _lack_later():
        _servers.append(Server([*servers.PRELOAD, *servers.LATER]))
    if not _servers[-1].loaded:
        _pause(signal.SIGCONT)
        _take_over(_servers[-1])


def _take_over(server):
    """From now on ranks come from this server, the last one made."""
    server.loaded = True
    _end(ranks for ranks in _sets if ranks.server is not server)
    while _servers[0] is not server:
        _retired.append(_servers.pop(0))
    _end_retired()


def _end_retired():
    """End the earlier servers that no session needs: their ranks would end with them."""
    for server in [s for s in _retired if all(ranks.server is not s for ranks in _kept)]:
        _retired.remove(server)
        server.end()


def _end(which):
    for ranks in list(which):
        ranks.end()


def idle(ranks: Ranks) -> float:
    """Seconds that it may rest."""
    return IDLE_ON_GPU if ranks.choice.ranks_per_gpu else IDLE


def _make_room(choice, nproc):
    """End sets, the oldest first, until a new one has room; returns the bytes that it needs."""
    resting = [ranks for ranks in _sets if not ranks.busy]
    if choice.ranks_per_gpu:
        _end(ranks for ranks in resting if ranks.choice.ranks_per_gpu)
    measured = [linux.held(pid) for ranks in resting for pid in ranks.agent.pids()]
    needed = nproc * max([PER_RANK, *measured])
    while resting and needed > SHARE * linux.free():
        resting.pop(0).end()
    return needed


def _server(choice):
    """The server to fork from; the first is made here."""
    if not any(server.loaded for server in _servers):
        _first(choice.ranks_per_gpu)
    return [server for server in _servers if server.loaded][-1]


def _first(on_gpus):
    # No one waits for a notebook's first cells; where graded nothing is made ahead; a GPU's context
    # costs more.
    at_once = servers.AT_ONCE or UNATTENDED or GRADED or on_gpus
    _servers.append(Server([*servers.PRELOAD, *(servers.LATER if at_once else [])], loaded=True))


def _pause(number):
    """Stop or continue what is being made ahead: it must not run during a measurement."""
    for ranks in [ranks for ranks in _sets if not ranks.server.loaded]:
        signal_to(
            [pid for pid in (ranks.server.pid, *ranks.agent.pids()) if pid is not None], number
        )


class _Keeper(threading.Thread):
    """Between the runs: ends what is not to be used again, and makes what will be."""

    def __init__(self):
        super().__init__(daemon=True, name="lib.launch.keeper")
        self.asked, self.given_up = threading.Event(), False

    def wake(self):
        self.asked.set()
        if self.ident is None:
            self.start()

    def run(self):
        global _last
        while not leaving.is_set():
            self.asked.wait(self.seconds_to_wait())
            self.asked.clear()
            with one_at_a_time:
                if not leaving.is_set():
                    try:
                        self.look()
                    except Exception as error:  # as when the disk is full: the next run will say so
                        reasons.append(f"{type(error).__name__}: {error}")
                        _last = None

    def seconds_to_wait(self):
        """Until it looks again, unless a run wakes it; None: only then."""
        if any(not ranks.server.loaded for ranks in _sets):
            return 0.1
        if _sets and self.lacks_later():
            return QUIET
        return 30.0 if _sets or _kept else None

    def look(self):
        global _last
        now = time.monotonic()
        for ranks in list(_sets):
            if ranks not in _sets or ranks.busy or not ranks.server.loaded:
                continue
            if now - ranks.used > idle(ranks):
                _last = None
                ranks.end()
            elif ranks.runs and not ranks.is_as_new(SETTLE):
                _give_up(ranks)
        for ranks in list(_kept):
            if not ranks.busy and now - ranks.used > idle(ranks):
                ranks.end()
        _end_retired()
        self.load_later()
        if _last is not None and not GRADED and not any(r.kind == kind_of(*_last) for r in _sets):
            _make_room(*_last)
            if not Ranks(*_last, _server(_last[0])).is_as_new(COME):
                _sets[-1].end()
        for ranks in _sets:
            if not ranks.busy and ranks.server.loaded:
                ranks.sleep()

    def lacks_later(self):
        return _lack_later() and not self.given_up

    def load_later(self):
        """Make the second server, and a set from it; once that rests, what came from the
        first is replaced."""
        quiet = all(time.monotonic() - ranks.used > QUIET for ranks in _sets)
        if self.lacks_later() and quiet:
            _servers.append(Server([*servers.PRELOAD, *servers.LATER]))
        for server in [server for server in _servers if not server.loaded]:
            coming = next((ranks for ranks in _sets if ranks.server is server), None)
            if coming is None and _last is not None:
                Ranks(*_last, server)
            elif coming is not None and coming.is_as_new(0):
                _take_over(server)
            elif coming is not None and coming.agent.has_ended:
                coming.end()
                _servers.pop().end()
                self.given_up = True


def _forget():
    """In a process that was forked from this one: the ranks are its parent's."""
    global one_at_a_time, _keeper, _last
    one_at_a_time, _keeper, _last = threading.RLock(), _Keeper(), None
    for server in [*_servers, *_retired]:
        server.forget()
    for ranks in [*_sets, *_kept]:
        for pipes in (ranks.pipes, ranks.answers):
            while pipes:
                os.close(pipes.pop())
    for all_of_them in (_sets, _kept, _servers, _retired):
        all_of_them.clear()


def _leave():
    leaving.set()
    one_at_a_time.acquire(timeout=5.0)  # until the keeper has put down what it does
    _end([*_sets, *_kept])
    for server in [*_servers, *_retired]:
        server.end()


_keeper = _Keeper()
atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)
