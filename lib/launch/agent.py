"""Starts ranks with torch's elastic agent, the part of torchrun that starts processes on a node
and notices when one of them ends.

    kernel --(thread)--> LocalElasticAgent --> server (torch imported once) --> rank 0, rank 1, ...

The agent runs in a thread of its own, because in the main thread elastic would install its own
handler of SIGINT, and the stop button would no longer raise KeyboardInterrupt. Between runs the
agent sleeps and does not look at its ranks.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from lib import linux
from lib.launch.server import Server, processes_from

LOGGERS = [
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.distributed.run",
    "torch.multiprocessing",
]


class OneNode(RendezvousHandler):
    """A rendezvous normally lets agents find each other. This one is for a single agent, which has
    nothing to negotiate.

    torch's own handler would open a port, sleep for a random time of up to 0.3 s, and look up
    addresses. We need none of that, because the ranks find each other through a file (worker.py).
    """

    def __init__(self, run_id: str):
        self.run_id = run_id

    use_agent_store = property(lambda self: True)

    def get_backend(self):
        return "one-node"

    def next_rendezvous(self):
        return RendezvousInfo(dist.HashStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 0))

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return self.run_id

    def shutdown(self):
        return True


class _Sleeper(LocalElasticAgent):
    """An elastic agent that polls its ranks only while they are `watched`."""

    watched: threading.Event

    def _monitor_workers(self, worker_group):
        self.watched.wait()
        return super()._monitor_workers(worker_group)


class Agent:
    """Starts `nproc` processes that each call `entrypoint(*args)`. What they print is written to
    files under `folder`."""

    def __init__(self, entrypoint, args: tuple, nproc: int, folder: str, server: Server):
        self.folder, self.nproc, self.server, self.error = folder, nproc, server, None
        spec = WorkerSpec(
            role="rank", local_world_size=nproc, entrypoint=entrypoint, args=args, max_restarts=0,
            monitor_interval=0.02, rdzv_handler=OneNode(os.path.basename(folder)),
        )  # fmt: skip
        logs = DefaultLogsSpecs(log_dir=f"{folder}/log", redirects=Std.ALL)
        self.elastic = _Sleeper(spec, logs, start_method="forkserver")
        self.elastic.watched = threading.Event()
        # We poll this flag, because the alternatives do not survive the stop button. An interrupt
        # inside thread.join can mark the thread as ended while it still runs. Inside Event.wait it
        # can arrive just after the event's lock was taken and before the code that releases it, and
        # the next wait would hang.
        self.has_ended = False
        self.thread = threading.Thread(target=self._run, daemon=True, name="lib.launch.agent")

    def start(self):
        self.thread.start()

    def watch(self, on: bool) -> None:
        """Start or stop polling the ranks."""
        (self.elastic.watched.set if on else self.elastic.watched.clear)()

    def _run(self):
        try:
            with _silent_loggers(), processes_from(self.server):
                self.server.start()
                self.elastic.run("rank")
        except BaseException as error:
            # The logs explain what went wrong on a rank, but not why a rank could not be started.
            self.error = error
        finally:  # this comes last, because the next launch may begin as soon as it is set
            self.has_ended = True

    @property
    def processes(self) -> list:
        context = self.elastic._pcontext
        return context._pc.processes if context is not None and context._pc is not None else []

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def alive(self, rank: int) -> bool:
        """Is the process of this rank alive? The answer is also True before it has started. We ask
        the operating system and not multiprocessing, because the exit code of a forkserver's child
        can get lost if two threads poll it (`server._cleanup`)."""
        return rank >= len(self.processes) or exists(self.processes[rank].pid)

    def exit_code(self, rank: int) -> int | None:
        """The exit code of a rank, which may be read only after the agent's thread has ended."""
        return self.processes[rank].exitcode if rank < len(self.processes) else None

    def kill(self):
        """End every rank now, and wait up to 10 s until the agent has noticed."""
        if self.thread.ident is None:  # never started
            return
        self.watch(True)
        deadline = time.monotonic() + 10
        while not self.has_ended and time.monotonic() < deadline:
            # repeatedly, because a rank may still have been starting when we looked
            signal_to(self.pids(), signal.SIGKILL)
            time.sleep(0.005)


def signal_to(pids, number) -> None:
    """Send a signal to these processes, skipping those that no longer exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Pause:
    """Processes that are stopped until `end`.

    A stopped process does not notice that this process has been killed, so it would stay for ever.
    A shell therefore waits until this process ends, by whatever cause, and then continues them.
    """

    def __init__(self):
        self.pids, self.shells = [], []

    def add(self, pids: list[int]) -> None:
        """Stop these processes (SIGSTOP)."""
        self.shells.append(
            subprocess.Popen(
                ["sh", "-c", 'read -r _; kill -CONT "$@"', "sh", *map(str, pids)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that what kills our process group spares it
            )
        )  # fmt: skip
        self.pids += pids
        signal_to(pids, signal.SIGSTOP)

    def end(self) -> None:
        """Continue all processes (SIGCONT)."""
        signal_to(self.pids, signal.SIGCONT)
        self.pids.clear()
        while self.shells:
            shell = self.shells.pop()
            shell.stdin.close()
            shell.wait()

    def forget(self) -> None:
        """In a process that was forked from this one, close our ends of the shells' pipes."""
        while self.shells:
            shell = self.shells.pop()
            shell.stdin.close()
            shell.returncode = 0  # it is the parent's child, for which nobody need wait here
        self.pids.clear()


def exists(pid: int) -> bool:
    """Is the process alive? A zombie does not count, because it has ended. Its parent has only not
    waited for it yet, which may take long on a busy machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return linux.state(pid) not in ("Z", "X")


_counting = threading.Lock()
# one item for each running agent: the loggers' levels from before the first of them started
_agents: list[list[int]] = []


@contextlib.contextmanager
def _silent_loggers():
    """Silence elastic's loggers while any agent runs, because they write dozens of lines about a
    failure that our own error explains in a few."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    with _counting:
        _agents.append(_agents[-1] if _agents else [logger.level for logger in loggers])
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        with _counting:
            levels = _agents.pop()
            for logger, level in zip(loggers, levels, strict=True):
                if not _agents:
                    logger.setLevel(level)
