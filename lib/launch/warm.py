"""Keeps ranks alive between runs, because starting a rank takes much longer than most cells run.

A set consists of processes that have joined one process group. It is used by one run after another,
and in between its processes are stopped (with SIGSTOP, on gloo). Each combination of backend and
number of ranks has sets of its own:

    taken   gives a run its set: one that rests, or a new one. After a run that ended well the set
            rests again; after any other run it is ended
    keeper  a thread that works between the runs. It ends a set if the last run changed something
            that cannot be undone, and starts one in advance, of the kind that was used last
    kept    the sets of sessions (sessions.py), which no other run uses or ends

A set also ends when it has rested for `IDLE` seconds (`IDLE_ON_GPU` on GPUs), when a file of lib
has changed before the next run, when memory runs short (the least recently used set first), and
when this process ends. For sets of sessions only the first and the last of these apply. On GPUs
there is only one set at a time, in addition to those of sessions.
"""

import atexit
import collections
import contextlib
import os
import threading
import time

from lib import linux
from lib.backend import Choice
from lib.launch import leftovers
from lib.launch import server as servers
from lib.launch.agent import Pause

# when a notebook is graded, each exercise gets its own ranks, so none are started in advance
from lib.launch.errors import GRADED, short
from lib.launch.ranks import Ranks, kind_of, leaving
from lib.launch.ranks import kept as _kept
from lib.launch.ranks import sets as _sets
from lib.launch.server import Server

IDLE = 1800.0  # seconds that a set may rest before it is ended
IDLE_ON_GPU = 300.0  # the same on GPUs, where a resting set occupies memory that others may need
SETTLE = 10.0  # seconds that ranks may take to undo what a run has changed
# seconds without a run before the second server is started, which a short program never needs
QUIET = 2.0
COME = 120.0  # seconds that a set started in advance may take to join its process group
# bytes of memory that we assume for a rank, unless the resting ranks turn out to need more
PER_RANK = 100 << 20
SHARE = 0.5  # the fraction of the free memory that a new set may take
# is the notebook executed from top to bottom by a program that stores or compares its output?
UNATTENDED = os.environ.get("LAB_STATIC") == "1"

one_at_a_time = threading.RLock()  # held during a run, and during any change to the sets
reasons: collections.deque = collections.deque(maxlen=100)  # why sets were not used again
_servers: list[Server] = []  # ranks are forked from the last one that has loaded
_retired: list[Server] = []  # earlier ones, needed as long as a session has ranks from them
_paused = Pause()  # the second server and its ranks, during a run
_last: tuple[Choice, int] | None = None  # what ran last, for which the keeper keeps a set ready


@contextlib.contextmanager
def taken(choice: Choice, nproc: int, fresh: bool = False, slow_import: bool = False):
    """A context in which one run has a set to itself. If the run fails or is interrupted, the set
    is ended. fresh: take a set that no run has used, and end it even if the run succeeds.

    slow_import: the run will probably import what the second server has imported (server.py), so
    its ranks are forked from that server, even if we have to wait for the server.
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
            _paused.end()
            _keeper.wake()


def keep(choice: Choice, nproc: int) -> Ranks:
    """A set for a session, which no other run uses. Raises MemoryError if a set has to be started
    for it and would take more than `SHARE` of the free memory."""
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
            _paused.end()
            _keeper.wake()


@contextlib.contextmanager
def cell_on(ranks: Ranks):
    """A context in which the ranks of a session run a cell. Sets that are being started in advance
    are paused, so that they take no processor time from it."""
    with one_at_a_time:
        end_interrupted()
        _pause()
        ranks.busy = True
        try:
            yield
        finally:
            ranks.busy, ranks.used = False, time.monotonic()
            ranks.clear()
            _paused.end()
            _keeper.wake()


def prepare(on_gpus: bool) -> None:
    """Start the first server, so that it has imported torch by the time of the first run. This does
    nothing if there is a server, or when a notebook is graded, because then nothing is started in
    advance."""
    with one_at_a_time:
        if not _servers and not GRADED:
            _first(on_gpus)
            _servers[0].start()


def _take(choice, nproc, fresh):
    end_interrupted()
    _pause()
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
    """End the sets that are still marked busy although no run is in progress, because their run
    failed or was interrupted."""
    _end(ranks for ranks in _sets if ranks.busy)


def end_all() -> None:
    """End all sets except those of sessions, so that earlier runs cannot affect later ones."""
    global _last
    with one_at_a_time:
        _last = None
        _end(_sets)


def resting() -> set[int]:
    """The process ids of the ranks that rest or are being started in advance. While no run is in
    progress, this process should have no other ranks: tests check that none is left behind."""
    return {pid for ranks in [*_sets, *_kept] if not ranks.busy for pid in ranks.agent.pids()}


def server_pids() -> list[int]:
    """The process ids of the servers that ranks of this process are forked from."""
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
    """From now on fork ranks from the second server, because a run needs what this server imports.
    The next ranks wait until it has finished importing."""
    if not _servers or _lack_later():
        _servers.append(Server([*servers.PRELOAD, *servers.LATER]))
    if not _servers[-1].loaded:
        _paused.end()
        _take_over(_servers[-1])


def _take_over(server):
    """From now on fork ranks from this server, which was made last. End the sets from earlier
    servers, and also these servers unless a session still needs them."""
    server.loaded = True
    _end(ranks for ranks in _sets if ranks.server is not server)
    while _servers[0] is not server:
        _retired.append(_servers.pop(0))
    _end_retired()


def _end_retired():
    """End the earlier servers from which no session has its ranks. The others have to stay, because
    ranks end with the server that forked them."""
    for server in [s for s in _retired if all(ranks.server is not s for ranks in _kept)]:
        _retired.remove(server)
        server.end()


def _end(which):
    for ranks in list(which):
        ranks.end()


def idle(ranks: Ranks) -> float:
    """Seconds that this set may rest before it is ended."""
    return IDLE_ON_GPU if ranks.choice.ranks_per_gpu else IDLE


def _make_room(choice, nproc):
    """End resting sets, the least recently used first, until a new one fits into `SHARE` of the
    free memory. Returns the bytes that the new set needs."""
    resting = [ranks for ranks in _sets if not ranks.busy]
    if choice.ranks_per_gpu:
        _end(ranks for ranks in resting if ranks.choice.ranks_per_gpu)
    measured = [linux.held(pid) for ranks in resting for pid in ranks.agent.pids()]
    needed = nproc * max([PER_RANK, *measured])
    while resting and needed > SHARE * linux.free():
        resting.pop(0).end()
    return needed


def _server(choice):
    """The server to fork from. If there is none yet, the first one is made here."""
    if not any(server.loaded for server in _servers):
        _first(choice.ranks_per_gpu)
    return [server for server in _servers if server.loaded][-1]


def _first(on_gpus):
    # One server that imports everything is enough if no person waits for the first cells
    # (UNATTENDED), if nothing is started in advance (GRADED), and on GPUs, where a second set's
    # CUDA contexts would cost more than the set saves.
    at_once = servers.AT_ONCE or UNATTENDED or GRADED or on_gpus
    _servers.append(Server([*servers.PRELOAD, *(servers.LATER if at_once else [])], loaded=True))


def _pause():
    """Until `_paused.end()`, stop the second server and its ranks while they are being started in
    advance, because they would distort the times of a run."""
    for ranks in [ranks for ranks in _sets if not ranks.server.loaded]:
        pids = (ranks.server.pid, *ranks.agent.pids())
        if started := [pid for pid in pids if pid is not None]:
            _paused.add(started)


class _Keeper(threading.Thread):
    """The thread that, between runs, ends sets that will not be used again and starts one in
    advance for the next run."""

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
                    except Exception as error:  # such as a full disk, which the next run reports
                        reasons.append(f"{type(error).__name__}: {error}")
                        _last = None

    def seconds_to_wait(self):
        """How long the thread sleeps unless a run wakes it earlier; None: until a run wakes it."""
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
        """Start the second server, and a set of ranks from it. Once that set rests, it replaces the
        sets from the first server. If its ranks die, we continue with the first server."""
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
    """In a process that was forked from this one, forget all ranks and servers without ending them,
    because they belong to the parent."""
    global one_at_a_time, _keeper, _last
    one_at_a_time, _keeper, _last = threading.RLock(), _Keeper(), None
    _paused.forget()
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
    one_at_a_time.acquire(timeout=5.0)  # so that the keeper can finish what it is doing
    _end([*_sets, *_kept])
    for server in [*_servers, *_retired]:
        server.end()


_keeper = _Keeper()
atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)
