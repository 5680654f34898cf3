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

from functools import partial

import torch

from lib.cost.exposed import exposed_seconds


class Clock:
    """One rank's: it computes, or waits, while a wire works in the background.
    Intervals by phase."""

    def __init__(self):
        self.now = self.wire_free = 0.0
        self.phase, self.compute, self.messages = "", [], []

    def __deepcopy__(self, memo):
        return self  # a copied layer runs on the same rank

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
    """What `start` is in a check. works: all that were started, of which the first `done` are
    done."""

    def __init__(self):
        self.clock, self.works, self.done = Clock(), [], 0

    def start(self, fn, *args, **kwargs):
        rows = next((len(arg) for arg in args if torch.is_tensor(arg) and arg.dim()), 0)
        arrives = self.clock.sends(float(rows))
        self.works.append(Late(self, partial(fn, *args, **kwargs), arrives))
        return self.works[-1]

    @property
    def under_way(self):
        """How many are started and not waited for."""
        return sum(not work.waited for work in self.works)


class Late:
    """As `collectives.Work`, but done when it is waited for, after all that were started before."""

    def __init__(self, starter, fn, arrives):
        self.starter, self.fn, self.arrives = starter, fn, arrives
        self.waited, self.result = False, None

    def is_completed(self):
        return self.waited

    def wait(self):
        self.waited, starter = True, self.starter
        starter.clock.now = max(starter.clock.now, self.arrives)
        while self.fn is not None:
            work, starter.done = starter.works[starter.done], starter.done + 1
            work.result, work.fn = work.fn(), None  # what was sent may be freed now
        return self.result


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
