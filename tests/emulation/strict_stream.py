"""NCCL's stream for each process group: a thread that executes what was posted, one item after the
other.

    your thread      isend(a)   irecv(b)   [isend(c) irecv(d)]   all_reduce(e)
    the stream      [isend a ] [irecv b ] [isend c  |  irecv d] [all_reduce e]     -> time

An unbatched message is an item, and blocks those behind it. A batch is one item, whose messages all
proceed together. A collective is an item. An item also waits for all that the thread which posted
it had waited for: on a GPU `wait` makes that thread's stream wait, and what it posts later begins
after.

A send of less than `threshold` bytes ends at once, its data copied when the item begins. Any other
is a rendezvous. A message says how many bytes it has, in front. A receive of another size never
ends, as with NCCL.
"""

import ctypes
import itertools
import math
import os
import queue
import threading

import torch
import torch.distributed as dist

from tests.emulation import strict_backward

# the environment variable: "1" for a host that keeps its processor busy while it waits
SPINS = "STRICT_C10D_SPINS"
THRESHOLD = "STRICT_C10D_THRESHOLD"  # the environment variable: "0", "inf", or a number of bytes
HEAD = 16  # bytes in front of a message: its size, and room that lets any dtype follow aligned
plain_wait = dist.Work.wait  # before anybody has replaced it


class Done(threading.Event):
    """An event that C++ can look at."""

    def __init__(self):
        super().__init__()
        self.flag = ctypes.c_int(0)

    def set(self):
        self.flag.value = 1
        super().set()


class Item:
    """What one stream does at a time: a message or a collective alone, or a batch."""

    numbers = itertools.count()

    def __init__(self, posts, synchronous=False):
        self.number, self.posts, self.synchronous = next(self.numbers), posts, synchronous
        self.done, self.error, self.settled, self.work = Done(), "", False, None
        self.thread = strict_backward.thread()  # whose stream waits for it, once it is waited for
        self.after = []  # items that must have been executed before

    def make_work(self):
        """Its Work, for the user; none for a synchronous collective."""
        if not self.synchronous:
            blocks = any(post.name == "barrier" for post in self.posts)
            filled = [tensor for post in self.posts for tensor in post.fills]
            self.work = torch.ops.strict.work(self.number, blocks, filled)

    def was_waited_for(self):
        """A synchronous collective's wait is part of its call. A future that was taken
        counts: C++ waits unseen."""
        return self.synchronous or (self.work is not None and torch.ops.strict.waited(self.work))

    def execute(self, threshold, kept):
        """On the stream's thread."""
        for item in self.after:
            item.done.wait()
        self.after = []
        works, arriving = [], []
        for post in self.posts:
            if post.name == "recv_":
                out = post.fills[0]
                wire = torch.empty(HEAD + out.numel() * out.element_size(), dtype=torch.uint8)
                works.append(post.call(tensors=[wire]))
                arriving.append((post, out, wire))
        for post in self.posts:
            if post.name == "send":
                wire = _packed(post.reads[0])  # read now, not when it was posted
                work = post.call(tensors=[wire])
                if wire.numel() - HEAD < threshold:
                    kept.put((work, wire))
                else:
                    works.append(work)
        for post in self.posts:
            if post.name not in ("send", "recv_"):
                works.append(post.call())
        for work in works:
            plain_wait(work)
        for post, out, wire in arriving:
            if wire[:8].view(torch.int64).item() != wire.numel() - HEAD:
                threading.Event().wait()  # the rest never comes
            post.landings = [(out, wire[HEAD:].view(out.dtype).view(out.shape))]


def _packed(tensor):
    size = tensor.numel() * tensor.element_size()
    wire = torch.empty(HEAD + size, dtype=torch.uint8)
    wire[:8].view(torch.int64)[0] = size
    if size:
        wire[HEAD:] = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return wire


class Stream(threading.Thread):
    """One per process group, made when something is first posted there."""

    # to ledger and launcher: no thread of the program, it begins nothing of its own
    is_idle, failed = True, None

    def __init__(self, name, settle):
        super().__init__(name=f"strict stream of {name}", daemon=True)
        self.items, self.settle, self.threshold = queue.SimpleQueue(), settle, threshold()
        self.kept = queue.SimpleQueue()  # sends that have ended for the user, and not yet for gloo
        self.start()
        if self.threshold:
            Keeper(self.kept).start()

    def run(self):
        while True:
            item = self.items.get()
            try:
                item.execute(self.threshold, self.kept)
            except BaseException as error:
                item.error = f"{type(error).__name__}: {error}"
            item.done.set()
            if item.work is not None:
                if torch.ops.strict.was_taken(item.work) and not item.error:
                    self.settle(item)  # callbacks of its future read the result
                torch.ops.strict.finish(item.work, item.error)
            item = None


class Keeper(threading.Thread):
    """Keeps the copies of sends that ended at once until gloo has them no more."""

    is_idle, failed = True, None

    def __init__(self, kept):
        super().__init__(name="strict keeper", daemon=True)
        self.kept = kept

    def run(self):
        while True:
            work = self.kept.get()
            try:
                plain_wait(work[0])
            except RuntimeError:
                return  # the group has ended
            work = None


def on_the_host(done: threading.Event) -> None:
    """Wait as the host does: in a call of C++'s that keeps its processor busy, or asleep."""
    if os.environ.get(SPINS) and isinstance(done, Done):
        torch.ops.strict.spin(ctypes.addressof(done.flag))
    done.wait()


def threshold() -> float:
    """Sends of less than so many bytes end at once."""
    said = os.environ.get(THRESHOLD, "0")
    return math.inf if said == "inf" else float(said)
