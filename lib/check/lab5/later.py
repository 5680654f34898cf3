"""A `start` that is given to answers. The works that it starts run as late as possible, and a
simulated clock computes when they would have run.

    start(A)  start(B)   compute  A.wait()   the answer
                                  A runs     as late as possible, so changing what A sends is caught
    clock     [== A ==][== B ==]             one wire, in the order of start;
                                             computing moves the clock, too

Nothing runs concurrently here, and no time is measured. `Clock` computes when everything would have
happened, at one second per row. The share that is hidden therefore depends only on the numbers of
rows and on the order of start, compute and wait, and is the same on any machine.
"""

from functools import partial

import torch

from lib.cost.exposed import exposed_seconds


class Clock:
    """The clock of one rank, which computes or waits while a wire sends in the background.
    compute, messages: [(phase, begin, end), ...]."""

    def __init__(self):
        self.now = self.wire_free = 0.0
        self.phase, self.compute, self.messages = "", [], []

    def __deepcopy__(self, memo):
        return self  # a copied layer runs on the same rank

    def computes(self, seconds):
        self.compute.append((self.phase, self.now, self.now + seconds))
        self.now += seconds

    def sends(self, seconds):
        """Send a message as soon as the wire is free. Returns the time at which it arrives."""
        begin = max(self.now, self.wire_free)
        self.wire_free = begin + seconds
        self.messages.append((self.phase, begin, self.wire_free))
        return self.wire_free

    def hidden(self, phase):
        """The share of the messages' time in this phase that overlaps with computation; 1 if there
        are no messages."""
        of = lambda intervals: [(begin, end) for its, begin, end in intervals if its == phase]
        compute, messages = of(self.compute), of(self.messages)
        total = exposed_seconds([], messages)
        return 1 - exposed_seconds(compute, messages) / total if total else 1.0


class Starter:
    """Its method `start` is given to answers. works: all that were started; the first `done` of
    them have run."""

    def __init__(self):
        self.clock, self.works, self.done = Clock(), [], 0

    def start(self, fn, *args, **kwargs):
        rows = next((len(arg) for arg in args if torch.is_tensor(arg) and arg.dim()), 0)
        arrives = self.clock.sends(float(rows))
        self.works.append(Late(self, partial(fn, *args, **kwargs), arrives))
        return self.works[-1]

    @property
    def under_way(self):
        """How many works were started and have not been waited for."""
        return sum(not work.waited for work in self.works)


class Late:
    """Like `collectives.Work`, but it runs only when it, or a work that was started later, is
    waited for. Works run in the order in which they were started."""

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
    """rows -> rows, unchanged. It takes one second per row on the clock, in forward and again in
    backward."""

    @staticmethod
    def forward(ctx, rows, clock):
        ctx.clock = clock
        clock.computes(len(rows))
        return rows.clone()

    @staticmethod
    def backward(ctx, dy):
        ctx.clock.computes(len(dy))
        return dy, None
