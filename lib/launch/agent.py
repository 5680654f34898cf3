"""torch's elastic agent, the one inside torchrun, started from a notebook.

    kernel --(thread)--> LocalElasticAgent --> forkserver (torch imported once) --> rank 0, rank 1, ...

A forkserver, because a kernel that has run torch's threads cannot fork, and a fresh interpreter takes seconds to
import torch. A thread, because elastic in the main thread replaces the handler of the stop button.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import forkserver, resource_tracker, spawn

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

# What takes long to import and is never edited by us. Not lib: an edit to it must be seen by the next launch.
PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.elastic.agent.server.local_elastic_agent",  # lib.launch imports it, on ranks too
    "cloudpickle",
]
LOGGERS = ["torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.run", "torch.multiprocessing"]


class OneNode(RendezvousHandler):
    """The meeting of the agents, when there is one: nothing to negotiate.

    torch's own handler opens a port, sleeps up to 0.3 s at random and looks addresses up. The ranks meet in a file.
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


class Agent:
    """Starts `nproc` processes that each call `entrypoint(*args)`, their output in files under `folder`."""

    def __init__(self, entrypoint, args: tuple, nproc: int, folder: str):
        multiprocessing.set_forkserver_preload(PRELOAD)
        self.folder, self.nproc, self.error = folder, nproc, None
        spec = WorkerSpec(
            role="rank", local_world_size=nproc, entrypoint=entrypoint, args=args, max_restarts=0,
            monitor_interval=0.02, rdzv_handler=OneNode(os.path.basename(folder)),
        )  # fmt: skip
        logs = DefaultLogsSpecs(log_dir=f"{folder}/log", redirects=Std.ALL)
        self.elastic = LocalElasticAgent(spec, logs, start_method="forkserver")
        # A flag to look at. An interrupt inside thread.join can mark the thread as ended while it runs. Inside
        # Event.wait it can come between taking the event's lock and being ready to give it back: the next wait hangs.
        self.has_ended = False
        self.thread = threading.Thread(target=self._run, daemon=True, name="lib.launch.agent")

    def start(self):
        self.thread.start()

    def _run(self):
        try:
            with _silent_loggers(), _no_main_module():
                _start_forkserver()
                self.elastic.run("rank")
        except BaseException as error:  # what went wrong is in the books; this is for what they cannot know
            self.error = error
        finally:  # last of all: from here on the next launch may begin, and have its own silence
            self.has_ended = True

    def ends_within(self, seconds: float) -> bool:
        """Wait so long; have all ranks ended then?"""
        time.sleep(seconds)
        return self.has_ended

    @property
    def processes(self) -> list:
        context = self.elastic._pcontext
        return context._pc.processes if context is not None and context._pc is not None else []

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def alive(self, rank: int) -> bool:
        """Does the process exist? Asked of the system: a second poller would spoil a forkserver child's exit code."""
        return rank >= len(self.processes) or exists(self.processes[rank].pid)

    def exit_code(self, rank: int) -> int | None:
        """Only after the agent's thread has ended."""
        return self.processes[rank].exitcode if rank < len(self.processes) else None

    def kill(self):
        """End every rank now, and wait until the agent has taken notice."""
        deadline = time.monotonic() + 10
        while not self.has_ended and time.monotonic() < deadline:
            for pid in self.pids():  # again and again: a rank may have been on its way when we first looked
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _start_forkserver():
    """With SIGINT blocked, which it passes on to the ranks: the stop button must not hit it while it imports torch."""
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _silent_loggers():
    """Elastic logs each failure in tens of lines; we say it in a few."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_launching = threading.local()
_get_preparation_data = spawn.get_preparation_data


def _preparation_data(name):
    """What multiprocessing tells a new process; of ours, without the main module.

    Else every rank would run the user's script again up to its `if __name__ == "__main__":`, and a script without one
    would launch ranks that launch ranks. Functions of the main module travel by value.
    """
    data = _get_preparation_data(name)
    if getattr(_launching, "on", False):
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


spawn.get_preparation_data = _preparation_data


@contextlib.contextmanager
def _no_main_module():
    _launching.on = True
    try:
        yield
    finally:
        _launching.on = False
