"""Answers to Lab 5's start_exchange and OverlappedMoE: wrong ones, each with its
hint, and right ones."""

import torch
from as_an_answer import as_an_answer
from forth_and_back import Pair

from lib import collectives, moe

# start_exchange: right


def start_exchange(
    rows,
    send_counts,
    receive_counts,
    group=None,
    all_to_all=collectives.all_to_all,
    start=collectives.start,
):
    """As in the notebook."""
    under_way = {}

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            under_way["there"] = start(
                all_to_all, rows.detach(), group, send_counts, receive_counts
            )
            return rows.new_empty(0)

        @staticmethod
        def backward(ctx, _):
            return under_way["home"].wait()

    class Arrive(torch.autograd.Function):
        @staticmethod
        def forward(ctx, token):
            return under_way["there"].wait()

        @staticmethod
        def backward(ctx, dy):
            under_way["home"] = start(
                all_to_all, dy.contiguous(), group, receive_counts, send_counts
            )
            return dy.new_empty(0)

    token = Leave.apply(rows)
    return lambda: Arrive.apply(token)


class Started:
    """The answer in steps, each of which a wrong answer may do otherwise: two Functions
    made of four methods."""

    def __init__(self, send_counts, receive_counts, group, all_to_all, start):
        self.there, self.home = (send_counts, receive_counts), (receive_counts, send_counts)
        self.group, self.all_to_all, self.start = group, all_to_all, start

    def begin(self, tensor, lists):
        return self.start(self.all_to_all, tensor, self.group, *lists)

    def leave(self, rows):
        self.work = self.begin(rows.detach(), self.there)
        return rows.new_zeros(1)

    def arrive(self, token):
        return self.work.wait()

    def arrive_back(self, dy):
        self.work = self.begin(dy.contiguous(), self.home)
        return dy.new_zeros(1)

    def leave_back(self, _):
        return self.work.wait()

    def run(self, rows):
        token = Pair.apply(rows, self.leave, self.leave_back)
        return lambda: Pair.apply(token, self.arrive, self.arrive_back)


class OfACopy(Started):
    """What is sent is contiguous, whatever the rows are."""

    def leave(self, rows):
        self.work = self.begin(rows.detach().contiguous(), self.there)
        return rows.new_zeros(1)


def answer(how):
    def start_exchange(
        rows,
        send_counts,
        receive_counts,
        group=None,
        all_to_all=collectives.all_to_all,
        start=collectives.start,
    ):
        return how(send_counts, receive_counts, group, all_to_all, start).run(rows)

    start_exchange.__name__ = how.__name__
    return start_exchange


# start_exchange: wrong


class WaitsAtOnce(Started):
    def leave(self, rows):
        self.came = self.begin(rows.detach(), self.there).wait()
        return rows.new_zeros(1)

    def arrive(self, token):
        return self.came


class NoStart(Started):
    """By what sends, and not in the background."""

    def leave(self, rows):
        self.came = self.all_to_all(rows.detach(), self.group, *self.there)
        return rows.new_zeros(1)

    def arrive(self, token):
        return self.came


class BeginsInWait(Started):
    def leave(self, rows):
        self.rows = rows.detach()
        return rows.new_zeros(1)

    def arrive(self, token):
        return self.begin(self.rows, self.there).wait()


class NotWithoutRows(Started):
    def run(self, rows):
        return super().run(rows) if len(rows) else lambda: rows


class BackwardWaitsAtOnce(Started):
    def arrive_back(self, dy):
        self.back = self.begin(dy.contiguous(), self.home).wait()
        return dy.new_zeros(1)

    def leave_back(self, _):
        return self.back


class BackwardAtTheEnd(Started):
    def arrive_back(self, dy):
        self.dy = dy.contiguous()
        return dy.new_zeros(1)

    def leave_back(self, _):
        return self.begin(self.dy, self.home).wait()


class OneWork(Started):
    """Kept on the class: the last one's."""

    def leave(self, rows):
        OneWork.work = self.begin(rows.detach(), self.there)
        return rows.new_zeros(1)

    def arrive(self, token):
        return OneWork.work.wait()


BUFFERS = {}


class OneBuffer(Started):
    """All rows of this size leave from one buffer."""

    def begin(self, tensor, lists):
        buffer = BUFFERS.setdefault(tensor.shape, torch.empty_like(tensor))
        return super().begin(buffer.copy_(tensor), lists)


class NoGraph(Started):
    def run(self, rows):
        self.leave(rows)
        return lambda: self.arrive(None)


class AtHome(Started):
    """The gradients' exchange is begun, and its result forgotten."""

    def leave_back(self, _):
        return 0 * self.work.wait() + 1


class NotCalled(Started):
    def run(self, rows):
        return super().run(rows)()


class NothingComes(Started):
    def run(self, rows):
        wait = super().run(rows)
        return lambda: wait() and None if False else (wait(), None)[1]


class ByTheSameLists(Started):
    def arrive_back(self, dy):
        self.work = self.begin(dy.contiguous(), self.there)
        return dy.new_zeros(1)


class ListsSwapped(Started):
    def begin(self, tensor, lists):
        return super().begin(tensor, lists[::-1])


class Twice(Started):
    def arrive(self, token):
        came = self.work.wait()
        return came + 0 * self.begin(came, self.home).wait().sum()


class Flipped(Started):
    def arrive(self, token):
        return self.work.wait().flip(0)

    def arrive_back(self, dy):
        return super().arrive_back(dy.flip(0))


def calls_libs_start(rows, send_counts, receive_counts, group, all_to_all, start):
    return moe.start_exchange(rows, send_counts, receive_counts, group, all_to_all, start)


def not_started_yet(rows, send_counts, receive_counts, group, all_to_all, start):
    raise NotImplementedError


# OverlappedMoE: right


class InHalves(moe.SharedMoE):
    """As in the notebook."""

    def forward(self, x):
        a, b = self.halves(x.flatten(0, -2))
        there_a, there_b = a.start_dispatch(), b.start_dispatch()
        shared_a = self.shared(a.tokens)
        home_a = a.start_combine(a.experts(there_a()))
        home_b = b.start_combine(b.experts(there_b()))
        shared_b = self.shared(b.tokens)
        return self.joined(x, shared_a + home_a(), shared_b + home_b())

    def joined(self, x, a, b):
        return torch.cat([a, b]).view_as(x)


class SecondHalfFirst(moe.SharedMoE):
    """B before A, from the start to the end, and A's way there begins a little later."""

    def forward(self, x):
        a, b = self.halves(x.flatten(0, -2))
        there_b = b.start_dispatch()
        there_a = a.start_dispatch()
        y_b = self.shared(b.tokens)
        home_b = b.start_combine(b.experts(there_b()))
        home_a = a.start_combine(a.experts(there_a()))
        y_a = self.shared(a.tokens)
        y = torch.empty_like(x.flatten(0, -2))
        y_b = y_b + home_b()
        return y.index_copy(0, torch.arange(len(y)), torch.cat([y_a + home_a(), y_b])).view_as(x)


# OverlappedMoE: wrong


class Plain(moe.SharedMoE):
    def forward(self, x):
        return super().forward(x)


class Flat(InHalves):
    def joined(self, x, a, b):
        return torch.cat([a, b])


class Forgotten(InHalves):
    """Begins A's way home twice, and waits for one."""

    def forward(self, x):
        a, b = self.halves(x.flatten(0, -2))
        there_a, there_b = a.start_dispatch(), b.start_dispatch()
        b.start_dispatch()
        shared_a = self.shared(a.tokens)
        home_a = a.start_combine(a.experts(there_a()))
        home_b = b.start_combine(b.experts(there_b()))
        shared_b = self.shared(b.tokens)
        return torch.cat([shared_a + home_a(), shared_b + home_b()])


class SharedWithoutGradient(InHalves):
    def forward(self, x):
        y = super().forward(x)
        return y + 0.5 * (self.shared(x) - self.shared(x).detach())


class NotWithoutTokens(InHalves):
    def forward(self, x):
        return super().forward(x) if len(x) else x * 1


class CountsOnceMore(InHalves):
    def forward(self, x):
        y = super().forward(x)
        moe.exchange_counts(self.last.load, self.group, self.all_to_all)
        return y


class Inherits(moe.OverlappedMoE):
    pass


class NotWritten(moe.SharedMoE):
    def forward(self, x):
        raise NotImplementedError


WRONG = {
    "start_exchange": {
        calls_libs_start: "called what it builds",
        answer(WaitsAtOnce): "waits at once",
        answer(BackwardWaitsAtOnce): "backward waits at once",
        answer(BackwardAtTheEnd): "backward begins too late",
        answer(OneWork): "one work for all",
        answer(OneBuffer): "one work for all",
        answer(NoGraph): "without a backward",
        answer(NotCalled): "nothing to wait for",
        answer(NoStart): "not by `start`",
        answer(BeginsInWait): "begins in wait()",
        answer(NotWithoutRows): "a rank skips a call",
        answer(AtHome): "another gradient",
        answer(NothingComes): "nothing comes",
        answer(ByTheSameLists): "the lists do not fit",
        answer(ListsSwapped): "the lists do not fit",
        answer(Twice): "more than necessary",
        answer(Flipped): "other rows",
        not_started_yet: "not written",
    },
    "OverlappedMoE": {
        Inherits: "called what it builds",
        Plain: "the whole at once",
        Forgotten: "never waited for",
        Flat: "another shape",
        SharedWithoutGradient: "another gradient",
        NotWithoutTokens: "a rank skips a call",
        CountsOnceMore: "more than necessary",
        NotWritten: "not written",
    },
}
RIGHT = {
    "start_exchange": [
        start_exchange,
        answer(Started),
        answer(OfACopy),
        as_an_answer(moe.start_exchange),
    ],
    "OverlappedMoE": [InHalves, SecondHalfFirst, as_an_answer(moe.OverlappedMoE)],
}
