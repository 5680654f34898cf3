"""Manages one set of ranks that are kept alive between runs: it gives them orders, and finds out
whether they can be used again.

    folder of the set   written by   read by
    go0, stop0, ...     the parent   the ranks: pipes for "begin run 3", "rest", or an interrupt
    state               the ranks    the parent: what each rank is doing, and how many collectives
                                     and groups it has counted
    run3/               both         both: payload, logs and results of the fourth run

warm.py decides which set a run gets; worker.py is the other end of the pipes.
"""

import contextlib
import glob
import os
import shutil
import signal
import tempfile
import threading
import time

from lib import linux
from lib.backend import Choice
from lib.launch import worker
from lib.launch.agent import Agent, signal_to
from lib.launch.server import Server

sets: list["Ranks"] = []  # all sets but those of sessions, the most recently used last
kept: list["Ranks"] = []  # the sets of sessions
leaving = threading.Event()  # set when this process is about to end


class Ranks:
    """One set of ranks: its processes, its folder, and a pipe to each rank for orders."""

    def __init__(self, choice: Choice, nproc: int, server: Server):
        self.choice, self.nproc, self.server = choice, nproc, server
        self.runs, self.used, self.pipes, self.agent = 0, time.monotonic(), [], None
        self.busy = True  # a run uses it, or it is being started
        self.answers: list[int] = []  # pipes for the answers to the ranks' debuggers, once needed
        self.stays = False  # it belongs to a session, so nothing is restored after a run
        self.joined = 0  # how often its ranks have joined a new process group
        self.ended = False
        self.folder = tempfile.mkdtemp(prefix="launch-")
        sets.append(self)  # before the rest, so that the set is ended whatever fails below
        self._make_pipes("go", self.pipes)
        with open(f"{self.folder}/state", "wb") as file:
            file.write(worker.STATE.pack(worker.STARTING, 0, 0) * nproc)
        self.agent = Agent(
            worker.main, (self.folder, choice, time.time_ns()), nproc, self.folder, server
        )
        self.agent.start()
        self.busy = False

    def _make_pipes(self, name, pipes):
        for rank in range(self.nproc):
            os.mkfifo(f"{self.folder}/{name}{rank}")
            # for reading too, because opening it for writing only would wait for the rank
            pipes.append(os.open(f"{self.folder}/{name}{rank}", os.O_RDWR))

    @property
    def kind(self) -> tuple:
        return kind_of(self.choice, self.nproc)

    def begin(self) -> str:
        """Make the folder of the next run. Its payload and logs have to be in it before `go`."""
        folder = f"{self.folder}/run{self.runs}"
        os.mkdir(folder)
        return folder

    def can_answer(self) -> None:
        """Make a pipe to each rank, once, for what a person types at its debugger's prompt."""
        if not self.answers:
            self._make_pipes("answers", self.answers)

    def go(self) -> None:
        self._tell(b"%d\n" % self.runs)
        signal_to(self.agent.pids(), signal.SIGCONT)
        self.runs += 1
        self.agent.watch(True)

    def rest(self) -> None:
        """Tell the ranks, which have all returned, to undo what the run changed. Does not wait
        until they have."""
        self.agent.watch(False)
        self._tell(worker.REST)
        self.clear()

    def clear(self) -> None:
        """Remove the folders of all runs so far. No rank may still be inside one of them."""
        for folder in glob.glob(f"{self.folder}/run*"):
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self) -> None:
        """Make this the set of a session. From now on nothing is restored after a run, and each
        rank has another pipe, through which it can be interrupted."""
        self._make_pipes("stop", self.pipes)
        self.stays = True
        sets.remove(self)
        kept.append(self)

    def interrupt(self, ranks: list[int]) -> None:
        """Interrupt the last run on these ranks, even where they wait for another rank."""
        for rank in ranks:
            os.write(self.pipes[self.nproc + rank], b"%d\n" % (self.runs - 1))

    def in_a_cell(self) -> list[int]:
        """The ranks that have not left the last cell."""
        return [rank for rank, (word, *_) in enumerate(self.states()) if word != worker.KEPT]

    def have_left(self, seconds: float) -> bool:
        """Have all ranks left the last cell, or joined a new group? Waits up to `seconds` for
        them."""
        return self._all_say(worker.KEPT, seconds)

    def are_even(self) -> bool:
        """Have all ranks called the same number of collectives and made the same number of groups,
        and are their connections still open? If not, their next collectives would not match."""
        _, calls, groups = zip(*self.states(), strict=True)
        return len(set(calls)) == len(set(groups)) == 1 and worker.CUT not in calls

    def join_anew(self, seconds: float) -> bool:
        """Make all ranks leave their groups and join a new one. Returns False if they have not done
        so within `seconds`."""
        self.joined += 1
        with open(f"{self.folder}/state", "wb") as file:
            file.write(worker.STATE.pack(worker.STARTING, 0, 0) * self.nproc)
        self._tell(b"join%d\n" % self.joined)
        return self.have_left(seconds)

    def _all_say(self, wanted, seconds):
        """Wait until all ranks are in the state `wanted`. Returns False after `seconds`, or as soon
        as a rank has died or cannot be used again."""
        deadline, pause = time.monotonic() + seconds, 0.0005
        while True:
            words = {word for word, *_ in self.states()}
            if worker.USED in words or not self.is_alive():
                return False
            if words == {wanted}:
                return True
            if leaving.is_set() or time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(0.01, 1.5 * pause)

    def sleep(self) -> None:
        """Stop the processes of a resting set on gloo (SIGSTOP, only on Linux), because gloo's
        threads would otherwise wake a hundred times a second. `go` lets them continue."""
        if linux.IS_HERE and self.choice.name == "gloo" and self.is_as_new(0):
            signal_to(self.agent.pids(), signal.SIGSTOP)

    def _tell(self, word):
        for pipe in self.pipes[: self.nproc]:
            os.write(pipe, word)

    def states(self) -> list[tuple[int, int, int]]:
        """[(state, number of collectives called, number of groups made), ...] in rank order, as the
        ranks last reported them."""
        with open(f"{self.folder}/state", "rb") as file:
            return list(worker.STATE.iter_unpack(file.read()))

    def is_as_new(self, seconds: float) -> bool:
        """Are all ranks at rest, and as they were before their first run? Waits up to `seconds` for
        them to undo what the last run changed."""
        return self._all_say(worker.RESTED, seconds) and self.are_even()

    def is_outdated(self) -> bool:
        """Has a file of lib been edited since a rank imported it?"""
        lines = set()
        for path in glob.glob(f"{self.folder}/imported*"):
            with open(path) as file:
                lines.update(file.read().splitlines())
        return any(
            _changed(path) != int(when) for when, path in (line.split(" ", 1) for line in lines)
        )

    def is_alive(self) -> bool:
        if self.agent.has_ended or not all(map(self.agent.alive, range(self.nproc))):
            return False
        # When a server is killed, its ranks end too, but in some containers they remain as zombies.
        return all(linux.state(pid) != "Z" for pid in self.agent.pids())

    def left(self) -> str:
        """What the last run left behind that cannot be undone, and on which rank, as text: for
        example "rank 1: the thread Thread-3"."""
        for rank in range(self.nproc):
            with contextlib.suppress(OSError), open(f"{self.folder}/left{rank}") as file:
                if what := file.read():  # a rank may be about to write it
                    return f"rank {rank}: {what}"
        return "collectives or groups that not all ranks called, or a rank that did not rest"

    def end(self) -> None:
        """Kill its processes and remove its folder. Can be called again, for example if an
        interrupt came during the first call."""
        if self.agent is not None:
            self.agent.kill()
        for pipes in (self.pipes, self.answers):
            while pipes:
                os.close(pipes.pop())
        shutil.rmtree(self.folder, ignore_errors=True)
        self.ended = True
        for there in (sets, kept):
            if self in there:
                there.remove(self)


def kind_of(choice, nproc):
    return choice.name, choice.ranks_per_gpu, nproc


def _changed(path):
    """When a file was last changed, in nanoseconds since 1970; -1 if it no longer exists."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1
