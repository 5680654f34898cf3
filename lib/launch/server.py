"""The servers from which ranks are forked. A server is a process that has imported torch once, so a
rank that is forked from it begins at once.

A fresh interpreter would need seconds to import torch, and the kernel itself cannot be forked
safely once torch has started threads in it. Multiprocessing's forkserver solves the same problem in
this way. We run our own instances of it, separate from the one that a program itself may use. A
server imports nothing of lib, so that an edit to lib takes effect on the next new ranks. There are
two servers, because some parts of torch take as long to import as all the rest, and many runs do
not need them:

    the kernel's first launch   waits for a server that has imported `PRELOAD`
    soon after, when idle       a second server imports `LATER` as well, and ranks are then forked
                                from it. This happens at once if a run names an optimizer or FSDP,
                                or if a run has imported some of `LATER` itself
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
# the most bytes of the temporary folder's path, because a Unix socket's path may have 107 and
# multiprocessing adds up to 40
LONGEST = 67
# If True, the first server imports `LATER` too. The tests set this, because no person waits for
# their first launch.
AT_ONCE = False


class Server:
    """A process that imports `modules` and then forks ranks on request. It ends when this process
    does, for whatever reason, but not before its imports are done unless `end` kills it."""

    def __init__(self, modules: list[str], loaded: bool = False):
        """loaded: ranks may be forked from it from the start. The first ones then wait until it has
        imported `modules`."""
        self.modules, self.loaded = modules, loaded
        self.server = forkserver.ForkServer()
        self.server.set_forkserver_preload(modules)

    def start(self) -> None:
        """Start the process with SIGINT blocked, because the stop button must not interrupt it
        while it imports. Its ranks inherit this."""
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
        """Kill the process, even while it imports. The ranks that it has forked end with it."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.server._stop()

    def forget(self) -> None:
        """In a process that was forked from this one, close its end of the pipe that keeps the
        server alive, so that the server ends with the parent, to which it belongs."""
        alive: int | None = self.server._forkserver_alive_fd
        if alive is not None:
            os.close(alive)
        self.server = forkserver.ForkServer()


def _make_room_for_sockets() -> None:
    """Give multiprocessing a folder in /tmp for its sockets if the path of the temporary folder is
    too long for them. The folder is removed when this process ends."""
    of_this_process = multiprocessing.process.current_process()._config
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST
    if is_long and of_this_process.get("tempdir") is None and os.access("/tmp", os.W_OK):
        folder = of_this_process["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
        util.Finalize(
            None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-100
        )


@contextlib.contextmanager
def processes_from(server: Server):
    """A context in which a process that this thread starts with multiprocessing's forkserver method
    is forked from `server`, not from the program's own forkserver."""
    _here.server = server
    try:
        yield
    finally:
        _here.server = None


_here = threading.local()
# While a server starts, this process must not fork: the child would inherit the pipe that keeps the
# server alive, and the server would then outlive us.
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
    """What multiprocessing tells a new process, but for our ranks without the main module.

    Otherwise every rank would run the user's script again, except for its
    `if __name__ == "__main__":` block. In a script without that block, each rank would call
    launch.run again, and multiprocessing would refuse with a RuntimeError. Ranks do not need the
    main module, because its functions are sent by value.
    """
    data = _prepare(name)
    if _ours():
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


def _cleanup():
    """multiprocessing polls all of its processes before it starts another one. We skip this for
    ranks, so that only a rank's own agent polls it. If two threads read the exit code of a
    forkserver's child at the same time, one of them gets 255 instead."""
    if not _ours():
        _clean()


forkserver.connect_to_new_process = _connect_to_new_process
spawn.get_preparation_data = _preparation_data
multiprocessing.process._cleanup = _cleanup
