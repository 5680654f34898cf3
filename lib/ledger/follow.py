"""How the ledger learns that an op has ended, for the two kinds of backend.

The left column says how the backend behaves, and the right one how the ledger deals with that:

    gloo  work.wait() blocks the host until the op has      logs when `wait` returns; a collective
          ended                                             that the program does not wait for yet
                                                            is logged by a callback of its future

    NCCL  a GPU takes a group's ops from a queue, one by    lets the host poll until the op has
          one; wait() only lets the stream wait, and an op  ended, before `wait` returns and after
          that is called synchronously gives no Work        each synchronous op

          the call itself may block the host if it is       logs a wait before the call, and erases
          synchronous (barrier), and at the first message   it when the call returns
          between two ranks, when NCCL connects them

          queue of a group:  [all_reduce][send + recv, a batch][recv] ...      item 0, 1, 2, ...

With a ledger, a rank on a GPU therefore blocks at the same calls as a rank on the CPU, so hangs,
timelines and rounds can be described in the same way for both. Without a ledger none of this is
installed.
"""

import contextlib
import threading
import time
import weakref

import torch

EVERY = 0.002  # seconds between two polls of ops that the program does not wait for


class Blocking:
    """Follows gloo's Works, whose `wait` blocks the host."""

    def __init__(self, log):
        self.log, self.last = log, threading.local()
        # id(work) -> (slot, weak reference, what `wait` needs to name the source of a receive from
        # any source, else None)
        self.live: dict[int, tuple] = {}

    def given(self, work, slot, resolves, blocking):
        """The op has begun. blocking: the call also waits for it, so we need no callback, and
        following the op costs only a third as much."""
        if work is None:
            self.log.timestamp(slot, "done")
            return
        self.last.work = work  # keeps this wrapper alive until C++ returns it to Python
        key = id(work)
        self.live[key] = (slot, weakref.ref(work, lambda _: self.live.pop(key, None)), resolves)
        if not blocking:
            # gloo's messages have no future, but they have ended when `wait` returns
            with contextlib.suppress(RuntimeError):
                work.get_future().add_done_callback(lambda _: self.log.timestamp(slot, "done"))

    def wait(self, work, plain_wait, args, kwargs):
        slot, _, resolves = self.live[id(work)]
        self.log.settle(slot)
        self.log.timestamp(slot, "wait_from", threads=threads())
        out = plain_wait(work, *args, **kwargs)
        if resolves is not None:
            group, tag, signature = resolves
            source = group.members[work._source_rank()]
            self.log.resolve(slot, source, (group.name, source, self.log.rank, tag), signature)
        self.log.timestamp(slot, "wait_to")
        return out

    def settle(self, work):
        self.log.settle(self.live[id(work)][0])

    def close(self) -> None:
        """Drop the last work, because torch may keep the recorder, and with it this object, alive
        until the next recorder is installed."""
        self.last = threading.local()


class Item:
    """One item in a group's queue on the GPU: an op, or a batch of messages. `ended()` asks the
    device whether it is done."""

    def __init__(self, number):
        self.number, self.slots, self.ended, self.done = number, [], None, False
        self.blocks = False  # may its call block the host until the others have called?


class Queued:
    """Follows the ops of stream-ordered groups, which are those of NCCL. A thread polls the ops
    that the program does not wait for."""

    def __init__(self, log):
        self.log, self.lock, self.last = log, threading.RLock(), threading.local()
        self.counts: dict[str, int] = {}  # group's name -> items so far
        self.batches: dict[str, Item] = {}  # group's name -> the batch that is being collected
        self.waiting: list[Item] = []  # given to the device, and not yet seen to have ended
        self.live: dict[int, tuple] = {}  # id(work) -> (item, weak reference)
        # (group's name, "send" or "recv", peer) of all messages so far
        self.met: set[tuple] = set()
        self.more, self.closed, self.thread = threading.Event(), False, None

    def item(self, group: str) -> Item:
        """The item of an op that is posted now: that of its batch, or a new one."""
        with self.lock:
            return self.batches.get(group) or self._next(group)

    def _next(self, group):
        number = self.counts[group] = self.counts.get(group, -1) + 1
        return Item(number)

    def start_batch(self, group: str) -> None:
        with self.lock:
            self.batches[group] = self._next(group)

    def end_batch(self, group: str) -> Item:
        with self.lock:
            return self.batches.pop(group)

    def is_first(self, *message) -> bool:
        """Is this the first message with this (group, "send" or "recv", peer)? If so, NCCL now
        connects the two ranks, which blocks the host."""
        first = message not in self.met
        self.met.add(message)
        return first

    @contextlib.contextmanager
    def calling(self, group: str, item: Item):
        """The host makes the call that gives `item` to the device inside this block. If the call
        may block, it is logged as a wait for as long as it lasts."""
        blocks = item.blocks and item.slots and self.batches.get(group) is not item
        if blocks:
            self._stamp(item, "wait_from", threads=threads())
        try:
            yield
        finally:
            for slot in item.slots if blocks else ():
                self.log.erase(slot, "wait_from")

    def given(self, group: str, item: Item, work, device: torch.device) -> None:
        """The op has been given to the device. If there is no Work, it was called synchronously, so
        we wait for it here."""
        if self.batches.get(group) is item:  # the op is part of a batch: `end_batch` follows
            return
        # Without a Work, torch has let the current stream wait for the op, so an event that is
        # recorded there now is reached only after the op.
        item.ended = (
            work.is_completed
            if work is not None
            else torch.cuda.current_stream(device).record_event().query
        )
        with self.lock:
            self.waiting.append(item)
            if work is not None:
                self.last.work = work
                key = id(work)
                self.live[key] = (item, weakref.ref(work, lambda _: self.live.pop(key, None)))
            if self.thread is None:
                self.thread = threading.Thread(
                    target=self._look, daemon=True, name="lib.ledger.look"
                )
                self.thread.start()
        self.more.set()
        if work is None:
            self._until_done(item)
            self._stamp(item, "wait_to")

    def wait(self, work, plain_wait, args, kwargs):
        item, _ = self.live[id(work)]
        self.settle(work)
        self._until_done(item)
        out = plain_wait(work, *args, **kwargs)
        self._stamp(item, "wait_to")
        return out

    def settle(self, work):
        for slot in self.live[id(work)][0].slots:
            self.log.settle(slot)

    def finish(self) -> None:
        """Wait for all ops that the device was given, because a rank that returned before they
        ended could hang when it exits. Ops that the program has not waited for stay owed.
        """
        for item in list(self.waiting):
            self._until_done(item)

    def _until_done(self, item):
        self._stamp(item, "wait_from", threads=threads())
        began, delay = time.monotonic(), 0.0
        while not item.done:
            self._poll()
            if not item.done:
                time.sleep(delay)
                # so we notice the end late by about a twentieth of the wait, and by at most 5 ms
                delay = min(0.005, max(2e-5, 0.05 * (time.monotonic() - began)))

    def _stamp(self, item, which, **facts):
        for slot in item.slots:
            self.log.timestamp(slot, which, **facts)

    def _poll(self):
        """Log which items have ended. Returns whether any have not."""
        with self.lock:
            for item in self.waiting:
                item.done = item.ended()
                if item.done:
                    item.ended = None  # because it refers to the Work, and NCCL's to its outputs
                    self._stamp(item, "done")
            self.waiting = [item for item in self.waiting if not item.done]
            return bool(self.waiting)

    def _look(self):
        while not self.closed:
            self.more.wait()
            self.more.clear()
            while not self.closed and self._poll():
                time.sleep(EVERY)

    def close(self) -> None:
        self.closed = True
        self.more.set()
        if self.thread is not None:
            self.thread.join()
        self.last, self.waiting = threading.local(), []


def threads() -> int:
    """How many Python threads of this rank may communicate. Only if there is just one can we be
    certain that its wait blocks the rank.

    We do not count the launcher's and the ledger's own threads, and those that have nothing to do.
    We also leave out threads that C++ started (autograd's, for a GPU), because the main thread
    waits for them.
    """
    count = threading.active_count()
    if count == 1:
        return count
    ours = ("lib.launch.", "lib.ledger.")
    idle = lambda t: getattr(t, "is_idle", False) or isinstance(t, threading._DummyThread)
    return count - sum(t.name.startswith(ours) or idle(t) for t in threading.enumerate())
