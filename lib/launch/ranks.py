"""One set of ranks that stay: its processes, what each says of itself, and whether it can
be used again."""

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

sets: list["Ranks"] = []  # all there are; the one that was used last is the last
kept: list["Ranks"] = []  # those of sessions, which are in no other list
leaving = threading.Event()  # this process is about to end


class Ranks:
    """One set: its processes, its folder, and a pipe to each rank that tells it to go."""

    def __init__(self, choice: Choice, nproc: int, server: Server):
        self.choice, self.nproc, self.server = choice, nproc, server
        self.runs, self.used, self.pipes, self.agent = 0, time.monotonic(), [], None
        self.busy = True  # with a run, or with being made
        self.answers: list[int] = []  # to each rank, for its debugger: pipes made when asked for
        self.stays = False  # from run to run as it is, for a session
        self.joined = 0  # how often its ranks have joined anew
        self.ended = False
        self.folder = tempfile.mkdtemp(prefix="launch-")
        sets.append(self)  # from here on it will be ended, whatever comes
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
            # for both, so as not to wait for the rank
            pipes.append(os.open(f"{self.folder}/{name}{rank}", os.O_RDWR))

    @property
    def kind(self) -> tuple:
        return kind_of(self.choice, self.nproc)

    def begin(self) -> str:
        """The folder of the next run, in which its payload and logs are to be laid before `go`."""
        folder = f"{self.folder}/run{self.runs}"
        os.mkdir(folder)
        return folder

    def can_answer(self) -> None:
        """Make a pipe to each rank for what a person answers its debugger."""
        if not self.answers:
            self._make_pipes("answers", self.answers)

    def go(self) -> None:
        self._tell(b"%d\n" % self.runs)
        signal_to(self.agent.pids(), signal.SIGCONT)
        self.runs += 1
        self.agent.watch(True)

    def rest(self) -> None:
        """The run is over for all of them: put back what it changed."""
        self.agent.watch(False)
        self._tell(worker.REST)
        self.clear()

    def clear(self) -> None:
        """Remove the files of the runs so far, which all ranks have left."""
        for folder in glob.glob(f"{self.folder}/run*"):
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self) -> None:
        """From now on a run leaves the ranks as they are, and can be interrupted: a second pipe
        to each rank asks for that."""
        self._make_pipes("stop", self.pipes)
        self.stays = True
        sets.remove(self)
        kept.append(self)

    def interrupt(self, ranks: list[int]) -> None:
        """Ask these ranks to leave the last run, whatever they wait for there."""
        for rank in ranks:
            os.write(self.pipes[self.nproc + rank], b"%d\n" % (self.runs - 1))

    def in_a_cell(self) -> list[int]:
        """The ranks that have not left the last cell."""
        return [rank for rank, (word, *_) in enumerate(self.states()) if word != worker.KEPT]

    def have_left(self, seconds: float) -> bool:
        """Have all ranks left the last cell, or joined anew? Waits so long for them."""
        return self._all_say(worker.KEPT, seconds)

    def are_even(self) -> bool:
        """Have all ranks called as many collectives and made as many groups, and are their
        connections as they were?"""
        _, calls, groups = zip(*self.states(), strict=True)
        return len(set(calls)) == len(set(groups)) == 1 and worker.CUT not in calls

    def join_anew(self, seconds: float) -> bool:
        """Let all ranks leave their groups, and join a new one; False if they do not
        in so many seconds."""
        self.joined += 1
        with open(f"{self.folder}/state", "wb") as file:
            file.write(worker.STATE.pack(worker.STARTING, 0, 0) * self.nproc)
        self._tell(b"join%d\n" % self.joined)
        return self.have_left(seconds)

    def _all_say(self, wanted, seconds):
        """Do all ranks say this of themselves, within so many seconds?"""
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
        """Stop those that rest, so that gloo's threads do not wake either."""
        if linux.IS_HERE and self.choice.name == "gloo" and self.is_as_new(0):
            signal_to(self.agent.pids(), signal.SIGSTOP)

    def _tell(self, word):
        for pipe in self.pipes[: self.nproc]:
            os.write(pipe, word)

    def states(self) -> list[tuple[int, int, int]]:
        """[(what the rank says of itself, how many collectives it has called,
        groups it has made), ...]"""
        with open(f"{self.folder}/state", "rb") as file:
            return list(worker.STATE.iter_unpack(file.read()))

    def is_as_new(self, seconds: float) -> bool:
        """Do all ranks rest, as they were before their first run? Waits so long for
        them to do so."""
        return self._all_say(worker.RESTED, seconds) and self.are_even()

    def is_outdated(self) -> bool:
        """Has a file of lib changed since a rank has imported it?"""
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
        # A rank whose server was killed has ended, too, but in some containers this goes unnoticed.
        return all(linux.state(pid) != "Z" for pid in self.agent.pids())

    def left(self) -> str:
        """What the last run left, in words."""
        for rank in range(self.nproc):
            with contextlib.suppress(OSError), open(f"{self.folder}/left{rank}") as file:
                if what := file.read():  # a rank may be about to write it
                    return f"rank {rank}: {what}"
        return "collectives or groups that not all ranks called, or a rank that did not rest"

    def end(self) -> None:
        """End its processes now. Can be called again, as after an interrupt."""
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
    """When a file was changed last, in nanoseconds since 1970; -1 when it is gone."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1
