"""Finds out what runs at the same time, from events instead of times, and how much memory is alive
meanwhile.

    backward  layer 3  gate  layer 2  gate  layer 1  gate  layer 0
    call 0    [== begun in time, held =====]
    call 1                   [== held =============]

    call i is held until i + 2 gates have been passed

    gates = Gates(3);  recorder = Recorder(wire, before=gates.hold)
    with gates:  ... gates.pass_one() after each layer ...  gates.end() ...

An answer that waits for a call before that gate is stuck, and this is recorded. The result does not
depend on the speed of the machine, because a right answer never waits until PATIENCE ends. Most
wrong answers do not either: a wait ends as soon as backward itself makes a held call or waits for
it (`Work.wait`), or as soon as nothing is left in the background that could begin a call.
"""

import gc
import sys
import threading
import time

import torch

from lib.collectives import background
from lib.zero import live_bytes, start_counting
from lib.zero.live import PLAIN

PATIENCE = 20  # seconds to wait for something that a right answer does at once
POLL = 0.02  # seconds between two looks at the other threads
WAITS = {threading.Condition.wait.__code__, threading.Thread.join.__code__}
# up to Python 3.12
WAITS |= {
    code.__code__ for code in [getattr(threading.Thread, "_wait_for_tstate_lock", None)] if code
}
# seconds for which a call is held after backward, to see whether the answer returns without it
LINGER = 0.2


class Gate(torch.autograd.Function):
    """y = x. Backward calls gate(gradient) as it passes."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.gate = gate
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.gate(gradient)
        return gradient, None


class Gates:
    """The gates of one backward (or forward) pass on one rank.

    ahead: call i is held until i + ahead gates have been passed.
    threads: `started_threads()` as it was before the answer was called. A thread that was started
        later may still begin a call.
    """

    def __init__(self, gates: int, ahead: int = 2, at_gate=None, threads=()):
        self.gates, self.ahead, self.at_gate, self.threads = gates, ahead, at_gate, threads
        self.changed = threading.Condition()
        self.begun, self.passed, self.ended, self.returned = 0, 0, False, False
        self.stuck = None  # (which call, gates passed) of the first call that was held in vain
        self.early = False  # was a call in flight when the answer's function had returned?
        self.begun_in_time = True  # had a call begun when the last gate was passed?

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """The answer's function has returned, or raised."""
        self.end()
        self.over()

    def hold(self, call=None):
        """For Recorder(before=...). Each call waits here until enough gates have been passed, or
        until it is clear that they never will be."""
        with self.changed:
            number, self.begun = self.begun, self.begun + 1
            self.changed.notify_all()
            past = lambda: self.passed >= number + self.ahead or self.ended or self.stuck
            if not self._until(past, _backward_waits):
                self.stuck = (number, self.passed)
            if self.ended:
                waits = lambda: _backward_waits() or self._answer_waits()
                self.early = self.early or self._until(lambda: self.returned, waits, LINGER)

    def pass_one(self, *seen):
        """Called when a layer is done. First, at_gate(gates passed so far, *seen) may look at the
        memory."""
        if self.at_gate:
            self.at_gate(self.passed, *seen)
        with self.changed:
            self.passed += 1
            self.changed.notify_all()
            if self.passed == self.gates:
                self.begun_in_time = self._until(lambda: self.begun, self._nobody_will_begin)

    def end(self):
        """Called when backward has ended."""
        self._set("ended")

    def over(self):
        """Called when the answer's function has returned."""
        self._set("returned")

    def _until(self, done, hopeless, patience=PATIENCE):
        """Wait until done() or hopeless() is true, or patience has ended, and return done()."""
        end = time.monotonic() + patience
        while not done() and not hopeless() and time.monotonic() < end:
            self.changed.wait(POLL)
        return bool(done())

    def _nobody_will_begin(self):
        """True if nothing is in flight in the background, and no thread that the answer has started
        is running."""
        busy = any(not work.ended.is_set() for work in [*background.in_use.values()])
        known = {*self.threads, background.communication_thread()}
        return not busy and not started_threads() - known

    def _answer_waits(self):
        """For a call in a thread that the answer has started: true if the answer's function is
        waiting, in a method of `threading`."""
        if background.is_this_thread():
            # `_backward_waits` decides this more exactly, because it finds the work and its state
            return False
        waits = [frame for frame in _own_frames().values() if frame.f_code in WAITS]
        return any(frame.f_locals.get("self") is not self.changed for frame in waits)

    def _set(self, name):
        with self.changed:
            setattr(self, name, True)
            self.changed.notify_all()


def started_threads():
    """The threads that Python code has started, so neither the main thread nor autograd's."""
    theirs = (type(threading.main_thread()), threading._DummyThread)
    return {thread for thread in threading.enumerate() if not isinstance(thread, theirs)}


def _backward_waits():
    """For a held call: true if backward's own thread makes it, or waits for background work that
    has not ended."""
    frames = _own_frames()
    if threading.get_ident() in frames:
        return True
    return background.is_this_thread() and any(map(_waits, frames.values()))


def _own_frames():
    """{thread: its current frame} of the main thread and of autograd's threads, which no Python
    code has started."""
    started = {thread.ident for thread in started_threads()}
    return {ident: frame for ident, frame in sys._current_frames().items() if ident not in started}


def _waits(frame):
    while frame and frame.f_code is not background.Work.wait.__code__:
        frame = frame.f_back
    return frame is not None and not frame.f_locals["self"].ended.is_set()


class Alive:
    """Counts the bytes of floating-point tensors that are alive inside a call, once per storage.

    Other dtypes do not count, because a Recorder sends tensors of bytes, and torch decides when to
    free these. Tensors that exist when `begin` is called do not count either. They are kept alive,
    because otherwise a new tensor might get their memory and be taken for one of them.
    """

    def __init__(self):
        start_counting()
        self.most, self.before = 0, []

    def begin(self):
        self.before = [thing for thing in gc.get_objects() if type(thing) in PLAIN]
        self.most = 0

    def look(self, *besides):
        """The bytes that were allocated since `begin` and are alive now, without the tensors
        `besides`. `most` is the largest such number since `begin`."""
        tensors = (x for x in gc.get_objects() if type(x) is torch.Tensor)
        wire = [x for x in tensors if not x.is_floating_point()]
        held = live_bytes(besides=[*self.before, *wire, *besides])
        self.most = max(self.most, held)
        return held
