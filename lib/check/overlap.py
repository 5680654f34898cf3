"""What runs beside what, shown by events, not by times; and what memory is alive meanwhile.

    backward        layer 3  gate  layer 2  gate  layer 1  gate  layer 0
    call 0          [== begun in time, held =====]
    call 1                         [== held =============]         call i is held until gate i + 2 has been passed

    gates = Gates(3);  recorder = Recorder(control, before=gates.hold)
    with gates:  ... gates.pass_one() after each layer ...  gates.end() ...  gates.over()

Whoever waits for a call sooner than that is stuck, and it is noted: a call that is held, while somebody waits for it,
can never end. So no verdict depends on how fast a machine is.
"""

import gc
import sys
import threading

import torch

from lib.collectives import background, p2p
from lib.zero import live_bytes, start_counting

PATIENCE = 30  # seconds; then a call goes on, and it is noted only if whoever made the gates waits for something
POLLS = 1000  # so many questions whether a call has ended are a wait for it
SLICE = 0.02  # seconds


class Gates:
    """Of one backward (or forward) of one rank. ahead: how many gates a call is held for."""

    def __init__(self, gates: int, ahead: int = 2, at_gate=None):
        self.gates, self.ahead, self.at_gate = gates, ahead, at_gate
        self.changed, self.maker = threading.Condition(), threading.get_ident()
        self.begun, self.passed, self.ended, self.returned = 0, 0, False, False
        self.awaited, self.polls = [], 0  # the works that somebody waits for; questions since the last gate
        self.stuck = None  # (which call, gates passed) of the first that was held in vain
        self.early = False  # was a call under way when the answer's function had returned?
        self.begun_in_time = True  # had a call been started when the last gate was passed?

    def __enter__(self):
        """From here on it is seen who waits for what was started."""
        self.of_work = wait, is_completed = background.Work.wait, background.Work.is_completed
        background.Work.wait = lambda work: self._seen(work, wait)
        background.Work.is_completed = lambda work: self._asked(work, is_completed)
        return self

    def __exit__(self, *_):
        background.Work.wait, background.Work.is_completed = self.of_work
        self.end()
        self.over()

    def hold(self, call=None):
        """For Recorder(before=...): each call waits here."""
        with self.changed:
            number, self.begun = self.begun, self.begun + 1
            self.changed.notify_all()
            past = lambda: self.passed >= number + self.ahead or self.ended or self.stuck
            in_vain = lambda: self._is_in_backward() or self._is_awaited()
            in_time = self.changed.wait_for(lambda: past() or in_vain(), PATIENCE)
            if not past() and (in_time or self._maker_waits()):
                self.stuck = (number, self.passed)
            if self.ended and not self.stuck:
                self.changed.wait_for(lambda: self.returned or in_vain(), PATIENCE)
                self.early = self.early or self.returned

    def pass_one(self, *seen):
        """Called where a layer is done; at_gate(gates passed before, *seen) looks at the memory."""
        if self.at_gate:
            self.at_gate(self.passed, *seen)
        with self.changed:
            self.passed, self.polls = self.passed + 1, 0
            self.changed.notify_all()
            if self.passed == self.gates:
                while not self.begun and any(not work.ended.is_set() for work in [*p2p.in_background.values()]):
                    self.changed.wait(SLICE)
                self.begun_in_time = self.begun > 0

    def end(self):
        """Backward has ended."""
        self._set("ended")

    def over(self):
        """The answer's function has returned."""
        self._set("returned")

    def _set(self, name):
        with self.changed:
            setattr(self, name, True)
            self.changed.notify_all()

    def _seen(self, work, wait):
        with self.changed:
            self.awaited.append(work)
            self.changed.notify_all()
        try:
            return wait(work)
        finally:
            with self.changed:
                self.awaited.remove(work)

    def _asked(self, work, is_completed):
        with self.changed:
            self.polls += not work.ended.is_set()
            self.changed.notify_all()
        return is_completed(work)

    def _is_awaited(self):
        """Does anybody wait for the call that is held, or one behind it? All before it have ended."""
        return self.polls >= POLLS or any(not work.ended.is_set() for work in self.awaited)

    def _is_in_backward(self):
        """Is this call held in the thread of backward itself? On a GPU autograd has threads of its own."""
        return threading.get_ident() == self.maker or type(threading.current_thread()) is threading._DummyThread

    def _maker_waits(self):
        return sys._current_frames()[self.maker].f_code.co_filename == threading.__file__


class Alive:
    """Bytes of floating-point tensors that are alive inside a call, counted once per storage.

    Others do not count: what a Recorder sends is bytes, of which torch lets go when it comes to it.

    begin: what is there now does not count, and stays, or its memory might be a new tensor's soon.
    """

    def __init__(self):
        start_counting()
        self.most, self.before = 0, []

    def begin(self):
        self.before = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
        self.most = 0

    def look(self, *besides):
        """Bytes made since `begin`; the largest of all looks is in `most`."""
        wire = [x for x in gc.get_objects() if type(x) is torch.Tensor and not x.is_floating_point()]
        held = live_bytes(besides=[*self.before, *wire, *besides])
        self.most = max(self.most, held)
        return held
