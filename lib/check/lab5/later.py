"""Works that are started now and done late, on a clock of their own: what an answer is given in
place of `start`.

    start(A)  start(B)   compute  A.wait()   the answer
                                  A is done  as late as can be, so a change of what A sends shows
    clock     [== A ==][== B ==]             one wire, in the order of start;
                                             computing moves the clock, too

Nothing runs beside anything here, and no time is measured: `Clock` says when it would have been,
with as many seconds as there are rows. So an order of start, compute and wait has one hidden share,
on any machine.
"""

import torch

from lib.cost.exposed import exposed_seconds


class Clock:
    """One rank's: it computes, or waits, while a wire works in the background.
    Intervals by phase."""

    def __init__(self):
        self.now = self.wire_free = 0.0
        self.phase, self.compute, self.messages = "", [], []

    def computes(self, seconds):
        self.compute.append((self.phase, self.now, self.now + seconds))
        self.now += seconds

    def sends(self, seconds):
        """Begin a message; returns when it will have arrived."""
        begin = max(self.now, self.wire_free)
        self.wire_free = begin + seconds
        self.messages.append((self.phase, begin, self.wire_free))
        return self.wire_free

    def hidden(self, phase):
        """The share of the phase's messages that is beside computation; 1 where there are none."""
        of = lambda intervals: [(begin, end) for its, begin, end in intervals if its == phase]
        compute, messages = of(self.compute), of(self.messages)
        total = exposed_seconds([], messages)
        return 1 - exposed_seconds(compute, messages) / total if total else 1.0


class Starter:
    """What `start` is in a check. works: all that were started."""

    def __init__(self, clock=None):
        self.clock, self.works, self.done = clock or Clock(), [], 0

    def start(self, fn, *args, **kwargs):
        self.works.append(
            Late(self, len(self.works), lambda: fn(*args, **kwargs), self.clock.sends(_rows(args)))
        )
        return self.works[-1]

    def do(self, number):
        """All works up to this one, in order."""
        while self.done <= number:
            work, self.done = self.works[self.done], self.done + 1
            work.result, work.fn = work.fn(), None  # what was sent may be freed now

    @property
    def under_way(self):
        """How many are started and not waited for."""
        return sum(not work.waited for work in self.works)


class Late:
    """As `collectives.Work`."""

    def __init__(self, starter, number, fn, arrives):
        self.starter, self.number, self.fn, self.arrives = starter, number, fn, arrives
        self.waited, self.result = False, None

    def is_completed(self):
        return self.waited

    def wait(self):
        self.waited = True
        self.starter.clock.now = max(self.starter.clock.now, self.arrives)
        self.starter.do(self.number)
        return self.result


def _rows(args):
    return float(next((len(arg) for arg in args if torch.is_tensor(arg) and arg.dim()), 0))


class Takes(torch.autograd.Function):
    """rows -> rows, and it takes the clock a second a row, in each direction."""

    @staticmethod
    def forward(ctx, rows, clock):
        ctx.clock = clock
        clock.computes(len(rows))
        return rows.clone()

    @staticmethod
    def backward(ctx, dy):
        ctx.clock.computes(len(dy))
        return dy, None
