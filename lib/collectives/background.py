"""Any collective in the background: `start` now, `wait` when the result is needed.

    your thread       start(A)  start(B)   ... compute ...   A.wait()   ... compute ...   B.wait()
    communication              [==== A ====][==== B ====]

One communication thread per process takes the works in the order they were started. So the order of
`start` is the order on the wire, and ranks that start the same works in the same order cannot
deadlock, whatever groups the works use and however these overlap. Two rules follow:

1. All ranks that share a group start their works on it, and on any group that overlaps it, in the
   same order.
2. From `start` to `wait` a group belongs to the communication thread: any other user of it would
   mix its messages into the work's. Other groups stay free. If you need a blocking operation on
   such a group, call `start(...).wait()`: it then runs after the works that were started earlier.

On a GPU the thread has a CUDA stream of its own: it waits for what your stream had queued at
`start`, and `wait` makes your stream, not the host, wait for the result.
"""

import atexit
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from lib import backend, ledger
from lib.backend import Group
from lib.ledger.source import position

# group -> the last work that was started on it and not yet waited for: until then the group belongs
# to the communication thread
in_use = {}


def start(fn: Callable, *args: Any, **kwargs: Any) -> "Work":
    """Begin `fn(*args, **kwargs)` on the communication thread; returns its Work.

    fn: any collective of this package, or one written like it: start(ring_all_reduce, tensor,
    group). Its tensors are kept alive. Until `wait` has returned, do not change what it
    sends, and do not read what it receives.
    """
    work = Work(fn, args, kwargs)
    _communication().works.put(work)
    return work


class Work:
    """An operation in flight on the communication thread. Made by `start`. (torch calls it a Work,
    Megatron a handle.)"""

    def __init__(self, fn: Callable, args: Any, kwargs: Any) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs
        # the line that called start, which the thread's own stack does not show
        self.site = ledger.call_site()
        self.result = self.error = None
        self.ended = threading.Event()
        given = [*args, *kwargs.values()]
        self.groups: list = [g for g in given if isinstance(g, dist.ProcessGroup)] or [
            dist.group.WORLD
        ]
        in_use.update(dict.fromkeys(self.groups, self))
        self.gpu = next(
            (t.device for t in given if isinstance(t, torch.Tensor) and t.is_cuda), None
        )
        if self.gpu is not None:
            self.ready = torch.cuda.current_stream(self.gpu).record_event()

    def is_completed(self) -> bool:
        """Whether the operation has ended, with a result or an error. Never blocks."""
        return self.ended.is_set() and (
            self.gpu is None or self.error is not None or self.done.query()
        )

    def wait(self) -> Any:
        """Return the operation's result once it has ended. If it failed, raise its error here."""
        self.ended.wait()
        for group in self.groups:
            # nothing was started on it later, so the group is free again
            if in_use.get(group) is self:
                del in_use[group]
        if self.error is not None:
            raise self.error
        if self.gpu is not None:
            stream = torch.cuda.current_stream(self.gpu)
            stream.wait_event(self.done)
            if isinstance(self.result, torch.Tensor):
                self.result.record_stream(stream)  # made on the thread's stream, read on this one
        # not freed earlier, because on a GPU the thread's stream may still have been using them
        self.args = self.kwargs = None
        return self.result

    def run(self, streams: Any) -> None:
        """Called on the communication thread."""
        # The ledger is lib's log of each rank's communication: let it name the line that called
        # `start` for the messages that this thread sends.
        with ledger.attributed_to(self.site):
            if self.gpu is None:
                self.result = self.fn(*self.args, **self.kwargs)
                return
            stream = streams.setdefault(self.gpu, torch.cuda.Stream(self.gpu))
            with torch.cuda.device(self.gpu), torch.cuda.stream(stream):
                stream.wait_event(self.ready)
                self.result = self.fn(*self.args, **self.kwargs)
                self.done = stream.record_event()

    def __str__(self):
        return f"{getattr(self.fn, '__name__', 'operation')}, started at {position(*self.site[0])}"


class Communication(threading.Thread):
    """Runs works in order. After a failure it runs no more, because the messages of the ranks are
    then out of step."""

    def __init__(self):
        super().__init__(name="lib.collectives.background", daemon=True)
        self.works = queue.SimpleQueue()
        self.failed = None
        self.device = backend.device()

    @property
    def is_idle(self):
        """True if every work that was started has been waited for, so that it acts again only if
        another thread starts one. The ledger reads this to decide whether there is a deadlock."""
        return not in_use

    def run(self):
        streams = {}
        if self.device.type == "cuda":  # a new thread is on GPU 0, and makes its tensors on the CPU
            torch.cuda.set_device(self.device)
            torch.set_default_device(self.device)
        while (work := self.works.get()) is not None:
            if self.failed is not None:
                work.error = RuntimeError(
                    f"not run: {work}, because an earlier one failed: {self.failed}"
                )
            else:
                try:
                    work.run(streams)
                except BaseException as error:
                    error.add_note(f"in the background: {work}")
                    work.error, self.failed = error, work
            work.ended.set()
            work = None  # an idle thread keeps no tensors alive

    def end(self):
        self.works.put(None)
        self.join(timeout=2)  # a work stuck in a receive must not keep the process from exiting


def check_may_use(group: Group) -> None:
    """Raise RuntimeError if `group` belongs to the communication thread and another one calls."""
    if group in in_use and not is_this_thread():
        raise RuntimeError(
            f"this group is in use in the background: {in_use[group]}. Call its wait() first, "
            "or run this operation as start(...).wait() too, which queues it behind that one"
        )


def communication_thread() -> threading.Thread | None:
    """This process's communication thread; None before the first `start`."""
    return _thread


def is_this_thread() -> bool:
    """Whether the caller is on the communication thread."""
    return _thread is not None and threading.get_ident() == _thread.ident


_thread = None
_first_use = threading.Lock()


def _communication():
    """This process's communication thread, started on first use and ended at exit."""
    global _thread
    with _first_use:
        if _thread is None:
            _thread = Communication()
            _thread.start()
            atexit.register(_thread.end)
    return _thread
