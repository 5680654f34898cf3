"""Answers to Lab 5's exchange_tokens and ExpertParallelMoE: wrong ones, each with its hint,
and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer
from forth_and_back import Pair

from lib import collectives, moe

# exchange_tokens: right


def exchange_tokens(
    rows, send_counts, receive_counts, group=None, all_to_all=collectives.all_to_all
):
    """As in the notebook."""

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return all_to_all(rows, group, send_counts, receive_counts)

        @staticmethod
        def backward(ctx, dy):
            return all_to_all(dy.contiguous(), group, receive_counts, send_counts)

    return Exchange.apply(rows)


class InTwoHalves(torch.autograd.Function):
    """The columns travel in two messages."""

    @staticmethod
    def forward(ctx, rows, send_counts, receive_counts, group, all_to_all):
        ctx.how = send_counts, receive_counts, group, all_to_all
        return torch.cat(
            [all_to_all(half, group, send_counts, receive_counts) for half in rows.split(2, 1)], 1
        )

    @staticmethod
    def backward(ctx, dy):
        send_counts, receive_counts, group, all_to_all = ctx.how
        halves = [all_to_all(half, group, receive_counts, send_counts) for half in dy.split(2, 1)]
        return torch.cat(halves, 1), None, None, None, None


def in_two_halves(rows, send_counts, receive_counts, group=None, all_to_all=collectives.all_to_all):
    return InTwoHalves.apply(rows, send_counts, receive_counts, group, all_to_all)


# exchange_tokens: wrong


def backward_at_home(rows, send_counts, receive_counts, group, all_to_all):
    return Pair.apply(
        rows, lambda rows: all_to_all(rows, group, send_counts, receive_counts), lambda dy: dy
    )


def without_group_in_backward(rows, send_counts, receive_counts, group, all_to_all):
    forth = lambda rows: all_to_all(rows, group, send_counts, receive_counts)
    return Pair.apply(rows, forth, lambda dy: all_to_all(dy, None, receive_counts, send_counts))


def the_same_list_twice(rows, send_counts, receive_counts, group, all_to_all):
    return exchange_tokens(rows, send_counts, send_counts, group, all_to_all)


def padded(rows, send_counts, receive_counts, group, all_to_all):
    """All blocks as long as the longest of any rank."""
    N, longest = len(send_counts), 5

    def through(rows, leaving, coming):
        blocks = [
            torch.cat([b, b.new_zeros(longest - len(b), b.shape[1])]) for b in rows.split(leaving)
        ]
        came = all_to_all(torch.cat(blocks), group, [longest] * N, [longest] * N)
        return torch.cat([block[:n] for block, n in zip(came.split(longest), coming, strict=True)])

    forth = lambda rows: through(rows, send_counts, receive_counts)
    return Pair.apply(rows, forth, lambda dy: through(dy, receive_counts, send_counts))


class CountsOfTheClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, *how):
        CountsOfTheClass.how = how
        send_counts, receive_counts, group, all_to_all = how
        return all_to_all(rows, group, send_counts, receive_counts)

    @staticmethod
    def backward(ctx, dy):
        send_counts, receive_counts, group, all_to_all = CountsOfTheClass.how
        return all_to_all(dy, group, receive_counts, send_counts), None, None, None, None


def counts_of_the_last(rows, send_counts, receive_counts, group, all_to_all):
    return CountsOfTheClass.apply(rows, send_counts, receive_counts, group, all_to_all)


def calls_libs_exchange(rows, send_counts, receive_counts, group, all_to_all):
    return moe.exchange_tokens(rows, send_counts, receive_counts, group, all_to_all)


def own_rows_first(rows, send_counts, receive_counts, group, all_to_all):
    y, rank = (
        exchange_tokens(rows, send_counts, receive_counts, group, all_to_all),
        dist.get_rank(group),
    )
    blocks = list(y.split(receive_counts))
    return torch.cat([blocks.pop(rank), *blocks])


def own_block_by_the_world_s_rank(rows, send_counts, receive_counts, group, all_to_all):
    """Would be right with dist.get_rank(group)."""
    y, rank = exchange_tokens(rows, send_counts, receive_counts, group, all_to_all), dist.get_rank()
    blocks = list(y.split(receive_counts))
    blocks[rank] = rows.split(send_counts)[rank]
    return torch.cat(blocks)


def no_exchange_yet(
    rows, send_counts, receive_counts, group=None, all_to_all=collectives.all_to_all
):
    raise NotImplementedError


# ExpertParallelMoE: right


class InSteps(moe.ExpertParallelMoE):
    """As in the notebook, in steps that the wrong ones change."""

    def run(self, rows):
        received = self.received(self.last.load)
        send_counts, receive_counts = self.lists(received)
        rows = self.exchange(rows, send_counts, receive_counts)
        rows = self.back(self.compute(self.there(rows, received), received), received)
        return self.home(rows, send_counts, receive_counts)

    def received(self, load):
        return moe.exchange_counts(load, self.group, self.all_to_all)

    def lists(self, received):
        return self.last.load.view_as(received).sum(1).tolist(), received.sum(1).tolist()

    def there(self, rows, received):
        return moe.transpose_blocks(rows, received)

    def compute(self, rows, received):
        return moe.run_experts(self.experts.values(), rows, received.sum(0))

    def back(self, rows, received):
        return moe.transpose_blocks(rows, received.t())

    def home(self, rows, send_counts, receive_counts):
        return self.exchange(rows, receive_counts, send_counts)


class BySorting(moe.ExpertParallelMoE):
    """Says of each row which expert it is for, and sorts; calls exchange_tokens itself."""

    def run(self, rows):
        received = self.all_to_all(self.last.load, self.group).reshape(
            dist.get_world_size(self.group), -1
        )
        each = received.shape[1]
        send_counts = [int(part.sum()) for part in self.last.load.split(each)]
        receive_counts = [int(part.sum()) for part in received]
        rows = moe.exchange_tokens(rows, send_counts, receive_counts, self.group, self.all_to_all)
        expert = torch.arange(each).repeat(len(received)).repeat_interleave(received.flatten())
        out = torch.zeros_like(rows)
        for e, module in enumerate(self.experts.values()):
            here = (expert == e).nonzero().flatten()
            out = out.index_copy(0, here, module(rows[here]))
        return moe.exchange_tokens(out, receive_counts, send_counts, self.group, self.all_to_all)


# ExpertParallelMoE: wrong


class NotHome(InSteps):
    def home(self, rows, send_counts, receive_counts):
        return rows


class RowsTwice(InSteps):
    def home(self, rows, send_counts, receive_counts):
        super().home(rows.detach(), send_counts, receive_counts)
        return super().home(rows, send_counts, receive_counts)


class WithoutReceived(InSteps):
    def home(self, rows, send_counts, receive_counts):
        return super().home(rows if len(rows) else rows.detach(), send_counts, receive_counts)

    def compute(self, rows, received):
        return super().compute(rows, received) if len(rows) else rows.detach()


class NoReturn(InSteps):
    def run(self, rows):
        super().run(rows)


class ListsOfTheLastCall(InSteps):
    """Right in one call: backward takes the lists that the layer has now."""

    def lists(self, received):
        self.now = super().lists(received)
        return self.now

    def exchange(self, rows, *lists):
        layer, there = self, lists[0] is self.now[0]

        class Exchange(torch.autograd.Function):
            @staticmethod
            def forward(ctx, rows):
                return layer.all_to_all(rows, layer.group, *lists)

            @staticmethod
            def backward(ctx, dy):
                return layer.all_to_all(
                    dy.contiguous(), layer.group, *layer.now[:: -1 if there else 1]
                )

        return Exchange.apply(rows)


class CallsSuper(moe.ExpertParallelMoE):
    def run(self, rows):
        return super().run(rows)


class Inherits(moe.ExpertParallelMoE):
    pass


class NotWritten(moe.ExpertParallelMoE):
    def run(self, rows):
        raise NotImplementedError


WRONG = {
    "exchange_tokens": {
        calls_libs_exchange: "called what it builds",
        own_block_by_the_world_s_rank: "ranks of the world, not of the group",
        counts_of_the_last: "counts of another exchange",
        backward_at_home: "backward sends nothing",
        the_same_list_twice: "the lists do not fit",
        own_rows_first: "rows in another order",
        padded: "more than necessary",
        without_group_in_backward: "the group is not passed on",
        no_exchange_yet: "not written",
    },
    "ExpertParallelMoE": {
        CallsSuper: "called what it builds",
        Inherits: "called what it builds",
        NoReturn: "nothing returned",
        WithoutReceived: "a rank skips a call",
        NotHome: "not sent home",
        RowsTwice: "more than necessary",
        ListsOfTheLastCall: "a call under way",
        NotWritten: "not written",
    },
}
RIGHT = {
    "exchange_tokens": [exchange_tokens, in_two_halves, as_an_answer(moe.exchange_tokens)],
    "ExpertParallelMoE": [InSteps, BySorting, as_an_answer(moe.ExpertParallelMoE)],
}
