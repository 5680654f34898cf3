"""What runs beside what, shown by events, not by times; and what memory is alive meanwhile.

    backward        layer 3  gate  layer 2  gate  layer 1  gate  layer 0
    call 0          [== begun in time, held =====]
    call 1                         [== held =============]         call i is held until gate i + 2 has been passed

    gates = Gates(3);  recorder = Recorder(control, before=gates.hold);  ... gates.pass_one() after each layer ...

Whoever waits for a call sooner than that is stuck, and it is noted. Nothing here depends on how fast a machine is: a
right answer never waits for PATIENCE to end.
"""

import gc
import threading

import torch

from lib.zero import live_bytes, start_counting

PATIENCE = 3  # seconds for what a right answer does at once
LINGER = 0.1  # seconds by which the last call ends later than the answer's function, if that does not wait


class Gates:
    """Of one backward (or forward) of one rank. ahead: how many gates a call is held for."""

    def __init__(self, gates: int, ahead: int = 2, at_gate=None):
        self.gates, self.ahead, self.at_gate = gates, ahead, at_gate
        self.changed = threading.Condition()
        self.begun, self.passed, self.ended, self.returned = 0, 0, False, False
        self.stuck = None  # (which call, gates passed) of the first that was held in vain
        self.early = False  # was a call under way when the answer's function had returned?
        self.begun_in_time = True  # had a call begun when the last gate was passed?

    def hold(self, call=None):
        """For Recorder(before=...): each call waits here."""
        with self.changed:
            number, self.begun = self.begun, self.begun + 1
            self.changed.notify_all()
            past = lambda: self.passed >= number + self.ahead or self.ended or self.stuck
            if not self.changed.wait_for(past, PATIENCE):
                self.stuck = (number, self.passed)
            if self.ended and not self.returned:
                self.early = self.early or self.changed.wait_for(lambda: self.returned, LINGER)

    def pass_one(self, *seen):
        """Called where a layer is done; at_gate(gates passed before, *seen) looks at the memory."""
        if self.at_gate:
            self.at_gate(self.passed, *seen)
        with self.changed:
            self.passed += 1
            self.changed.notify_all()
            if self.passed == self.gates:
                self.begun_in_time = bool(self.changed.wait_for(lambda: self.begun, PATIENCE))

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
