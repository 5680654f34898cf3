"""What runs at the same time, shown by events instead of times, and which memory is alive
meanwhile.

    backward  layer 3  gate  layer 2  gate  layer 1  gate  layer 0
    call 0    [== begun in time, held =====]
    call 1                   [== held =============]

    call i is held until gate i + 2 has been passed

    gates = Gates(3);  recorder = Recorder(control, before=gates.hold)
    with gates:  ... gates.pass_one() after each layer ...  gates.end() ...

An answer that waits for a call sooner than that is stuck, which is recorded. Nothing here depends
on the speed of the machine, because a right answer never waits until PATIENCE ends. Nor do most
wrong ones, because we notice when backward itself makes a held call or waits for it (`Work.wait`),
and when nothing is left in the background that could begin a call.
"""

import gc
import sys
import threading
import time

import torch

from lib.collectives import background
from lib.zero import live_bytes, start_counting
from lib.zero.live import PLAIN

PATIENCE = 20  # seconds for what a right answer does at once
POLL = 0.02  # seconds between looks at what the other threads do
WAITS = {threading.Condition.wait.__code__, threading.Thread.join.__code__}
# Python 3.12-
WAITS |= {
    code.__code__ for code in [getattr(threading.Thread, "_wait_for_tstate_lock", None)] if code
}
# seconds by which the last call outlasts the answer's function, if that does not wait for it
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
    """The gates of one backward (or forward) pass on one rank. ahead: for how many gates a call is
    held.

    threads: those of `started_threads()` before the answer was called; others may still begin a
        call.
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
        """Called when the answer's function has returned, or raised."""
        self.end()
        self.over()

    def hold(self, call=None):
        """For Recorder(before=...). Each call waits here until its gate has been passed."""
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
        """Called when a layer is done. at_gate(gates passed before, *seen) inspects the memory."""
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
        """True if nothing is in flight in the background, and no thread of the answer's is
        running."""
        busy = any(not work.ended.is_set() for work in [*background.in_use.values()])
        known = {*self.threads, background.communication_thread()}
        return not busy and not started_threads() - known

    def _answer_waits(self):
        """Asked by a thread of the answer's own: true if the answer's function waits for it, in a
        call of `threading`."""
        if background.is_this_thread():
            # `_backward_waits` is more exact: it knows the work that is waited for, and its state
            return False
        waits = [frame for frame in _own_frames().values() if frame.f_code in WAITS]
        return any(frame.f_locals.get("self") is not self.changed for frame in waits)

    def _set(self, name):
        with self.changed:
            setattr(self, name, True)
            self.changed.notify_all()


def started_threads():
    """The threads that Python code has started, which are neither the main one nor autograd's."""
    theirs = (type(threading.main_thread()), threading._DummyThread)
    return {thread for thread in threading.enumerate() if not isinstance(thread, theirs)}


def _backward_waits():
    """Asked by a held call: true if backward's own thread makes it, or waits for work that comes
    after it."""
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
    """Bytes of floating-point tensors that are alive inside a call, counted once per storage.

    Other dtypes do not count, because a Recorder sends bytes, which torch frees at a time of its
    own.

    begin: what exists now does not count. We keep it alive, because a new tensor might get its
    memory.
    """

    def __init__(self):
        start_counting()
        self.most, self.before = 0, []

    def begin(self):
        self.before = [thing for thing in gc.get_objects() if type(thing) in PLAIN]
        self.most = 0

    def look(self, *besides):
        """Bytes made since `begin`; the largest of all looks is in `most`."""
        tensors = (x for x in gc.get_objects() if type(x) is torch.Tensor)
        wire = [x for x in tensors if not x.is_floating_point()]
        held = live_bytes(besides=[*self.before, *wire, *besides])
        self.most = max(self.most, held)
        return held
