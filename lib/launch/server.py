"""The processes that ranks are forked from: each has imported torch once, and nothing of lib.

    the kernel's first launch   waits for a server that has imported `PRELOAD`
    soon after, when idle       a second one imports what takes as long again, `LATER`; ranks then
                                come from it. At once, if a run names an optimizer, or has imported
                                some of that itself

A fresh interpreter takes seconds to import torch, and a kernel that has run torch's threads cannot
fork. Nothing of lib is imported before a rank is made, so that an edit to it takes effect. See
multiprocessing's forkserver; a program that uses that itself has its own, in addition to ours.
"""

import contextlib
import multiprocessing.process
import os
import shutil
import signal
import tempfile
import threading
from multiprocessing import forkserver, resource_tracker, spawn, util

PRELOAD = ["torch", "cloudpickle", "torch.distributed.elastic.agent.server.local_elastic_agent"]
LATER = ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"]
# the path of a Unix socket has at most 107 bytes, of which multiprocessing adds up to 40
LONGEST = 67
# the first server imports that, too: where many launches come, and none of them is waited for
AT_ONCE = False


class Server:
    """A process that forks ranks when asked. It ends with this process, however that ends,
    once it has imported."""

    def __init__(self, modules: list[str], loaded: bool = False):
        """loaded: ranks may be forked from it, though the first may have to wait until it has
        imported `modules`."""
        self.modules, self.loaded = modules, loaded
        self.server = forkserver.ForkServer()
        self.server.set_forkserver_preload(modules)

    def start(self) -> None:
        """With SIGINT blocked, which it passes on to the ranks: the stop button must not hit it
        while it imports."""
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _starting:
                _make_room_for_sockets()
                self.server.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int | None:
        return self.server._forkserver_pid

    def end(self) -> None:
        """At once, also while it imports; the ranks that came from it end with it."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.server._stop()

    def forget(self) -> None:
        """In a process that was forked from this one: the server is its parent's, and must
        not live on with it."""
        alive: int | None = self.server._forkserver_alive_fd
        if alive is not None:
            os.close(alive)
        self.server = forkserver.ForkServer()


def _make_room_for_sockets() -> None:
    """Where the temporary folder's path is too long for a socket, let multiprocessing make its own
    folder in /tmp; as it would, it removes the folder when this process ends."""
    of_this_process = multiprocessing.process.current_process()._config
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST
    if is_long and of_this_process.get("tempdir") is None and os.access("/tmp", os.W_OK):
        folder = of_this_process["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
        util.Finalize(
            None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-100
        )


@contextlib.contextmanager
def processes_from(server: Server):
    """Inside, processes that this thread starts with multiprocessing's forkserver are
    forked from `server`."""
    _here.server = server
    try:
        yield
    finally:
        _here.server = None


_here = threading.local()
# no fork meanwhile: the new process would hold a pipe open that is known to no one else
_starting = threading.Lock()
os.register_at_fork(
    before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release
)
_connect, _prepare, _clean = (
    forkserver.connect_to_new_process, spawn.get_preparation_data, multiprocessing.process._cleanup
)  # fmt: skip


def _ours():
    return getattr(_here, "server", None)


def _connect_to_new_process(fds):
    return _ours().server.connect_to_new_process(fds) if _ours() else _connect(fds)


def _preparation_data(name):
    """What multiprocessing tells a new process; of ours, without the main module.

    Else every rank would run the user's script again up to its `if __name__ == "__main__":`, and a
    script without one would launch ranks that launch ranks. Functions of the main module are sent
    by value.
    """
    data = _prepare(name)
    if _ours():
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


def _cleanup():
    """multiprocessing looks at all processes before it starts one. A rank is looked at by its own
    agent alone: of two that see its end at once, one reads 255 for its exit code."""
    if not _ours():
        _clean()


forkserver.connect_to_new_process = _connect_to_new_process
spawn.get_preparation_data = _preparation_data
multiprocessing.process._cleanup = _cleanup
