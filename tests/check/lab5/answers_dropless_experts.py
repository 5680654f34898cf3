"""Answers to Lab 5's grouped_mm and dropless: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer, told
from forth_and_back import Pair

from lib import collectives, moe

# grouped_mm: right


def split_and_join(rows, weights, counts):
    """As in the notebook."""
    return torch.cat(
        [group @ w for group, w in zip(rows.split(counts.tolist()), weights, strict=True)]
    )


class ByHand(torch.autograd.Function):
    """Group by group into one result, and its backward, too."""

    @staticmethod
    def forward(ctx, rows, weights, counts):
        ctx.save_for_backward(rows, weights)
        ctx.ends = [0, *counts.cumsum(0).tolist()]
        y = rows.new_empty(len(rows), weights.shape[2])
        for e, (a, b) in enumerate(zip(ctx.ends, ctx.ends[1:], strict=False)):
            y[a:b] = rows[a:b] @ weights[e]
        return y

    @staticmethod
    def backward(ctx, dy):
        rows, weights = ctx.saved_tensors
        d_rows, d_weights = torch.empty_like(rows), torch.zeros_like(weights)
        for e, (a, b) in enumerate(zip(ctx.ends, ctx.ends[1:], strict=False)):
            d_rows[a:b] = dy[a:b] @ weights[e].T
            d_weights[e] = rows[a:b].T @ dy[a:b]
        return d_rows, d_weights, None


def by_hand(rows, weights, counts):
    return ByHand.apply(rows, weights, counts)


# grouped_mm: wrong


def calls_libs_product(rows, weights, counts):
    return moe.grouped_mm(rows, weights, counts)


def float32_result(rows, weights, counts):
    y = torch.zeros(len(rows), weights.shape[2])
    begin = 0
    for e, n in enumerate(counts.tolist()):
        y[begin : begin + n] = rows[begin : begin + n] @ weights[e]
        begin += n
    return y


def no_rows_no_result(rows, weights, counts):
    return split_and_join(rows, weights, counts) if len(rows) else None


def no_rows_no_graph(rows, weights, counts):
    if not len(rows):
        return rows.new_zeros(0, weights.shape[2])
    return split_and_join(rows, weights, counts)


def in_the_rows(rows, weights, counts):
    """Right where D = F: written over the rows."""
    y = split_and_join(rows, weights, counts)
    if y.shape == rows.shape:
        rows.data.copy_(y)
    return y


def no_product_yet(rows, weights, counts):
    raise NotImplementedError


# dropless: right


class Dropless:
    """The answer in steps, each of which a wrong answer may do otherwise."""

    def __init__(self, n_experts, experts, group, all_to_all):
        self.E, self.experts, self.group, self.all_to_all = n_experts, experts, group, all_to_all
        self.ep = dist.get_world_size(group)

    def pairs(self, choice):
        """(token, expert, weight) of each pair, sorted by expert."""
        n, k = choice.experts.shape
        token = torch.arange(n).repeat_interleave(k)
        asked, weight = choice.experts.flatten(), choice.weights.flatten()
        there = (asked >= 0).nonzero().flatten()
        order = there[asked[there].argsort(stable=True)]
        return token[order], asked[order], weight[order]

    def send(self, rows, to, frm):
        return moe.exchange_tokens(rows, to, frm, self.group, self.all_to_all)

    def counts(self, expert):
        return torch.bincount(expert, minlength=self.E)

    def lists(self, counts, received):
        return counts.view(self.ep, -1).sum(1).tolist(), received.sum(1).tolist()

    def compute(self, rows, received):
        """By labels and a sort, not by blocks."""
        each = received.shape[1]
        here = torch.arange(each).repeat(self.ep).repeat_interleave(received.flatten())
        order = here.argsort(stable=True)
        return self.experts(rows[order], received.sum(0))[order.argsort()]

    def home(self, rows, to, frm):
        return self.send(rows, frm, to)

    def together(self, x, rows, token, weight):
        return torch.zeros_like(x).index_add(0, token, weight.unsqueeze(1) * rows)

    def run(self, x, choice):
        token, expert, weight = self.pairs(choice)
        counts = self.counts(expert)
        received = self.all_to_all(counts, self.group).reshape(self.ep, -1)
        to, frm = self.lists(counts, received)
        rows = self.compute(self.send(x[token], to, frm), received)
        return self.together(x, self.home(rows, to, frm), token, weight)


def answer(how):
    def dropless(x, choice, n_experts, experts, group=None, all_to_all=collectives.all_to_all):
        return how(n_experts, experts, group, all_to_all).run(x, choice)

    dropless.__name__ = how.__name__
    return dropless


class BySlots(Dropless):
    """Right: one after the other the places of the choice, each token's first choice before
    any second one."""

    def pairs(self, choice):
        routing = moe.assign_slots(choice, self.E, max(1, choice.experts.numel()))
        return routing.token, routing.expert, routing.weight


class InTwoMessages(Dropless):
    """Right: half of the columns by themselves."""

    def send(self, rows, to, frm):
        halves = [super(InTwoMessages, self).send(half, to, frm) for half in rows.split(2, 1)]
        return torch.cat(halves, 1)


# dropless: wrong


class StaysHere(Dropless):
    """Only its own experts' tokens, the others get zeros."""

    def run(self, x, choice):
        each, rank = self.E // self.ep, dist.get_rank(self.group)
        token, expert, weight = self.pairs(choice)
        mine = expert // each == rank
        rows = self.experts(
            x[token[mine]], torch.bincount(expert[mine] - rank * each, minlength=each)
        )
        return self.together(x, rows, token[mine], weight[mine])


class Padded(Dropless):
    """All blocks as long as the longest."""

    def send(self, rows, to, frm):
        longest = 40

        def through(rows, leaving, coming):
            blocks = [
                torch.cat([b, b.new_zeros(longest - len(b), b.shape[1])])
                for b in rows.split(leaving)
            ]
            came = self.all_to_all(
                torch.cat(blocks), self.group, [longest] * self.ep, [longest] * self.ep
            )
            return torch.cat(
                [block[:n] for block, n in zip(came.split(longest), coming, strict=True)]
            )

        return Pair.apply(
            rows, lambda rows: through(rows, to, frm), lambda dy: through(dy, frm, to)
        )


class NoWayBack(Dropless):
    """Rows go by what has no backward."""

    def send(self, rows, to, frm):
        return self.all_to_all(rows, self.group, to, frm)


class WeightedThere(Dropless):
    """Right numbers: weights go with the rows, without a gradient."""

    def run(self, x, choice):
        _, _, weight = self.pairs(choice)
        self.weight = weight.detach()
        return super().run(x, choice)

    def together(self, x, rows, token, weight):
        return torch.zeros_like(x).index_add(0, token, self.weight.unsqueeze(1) * rows)


class ByPlace(Dropless):
    """Takes row i for token i // k after the sort."""

    def together(self, x, rows, token, weight):
        return super().together(x, rows, token.sort().values, weight)


class OneTooMany(Dropless):
    """Counts of the whole world."""

    def lists(self, counts, received):
        return counts.view(-1, self.ep).sum(0).tolist(), received.sum(1).tolist()


LAST = {}


class Remembers(Dropless):
    """Right in one call: backward takes the lists of the last one."""

    def send(self, rows, to, frm, way="there"):
        LAST[way] = to, frm
        forth = lambda rows: self.all_to_all(rows, self.group, to, frm)
        return Pair.apply(
            rows, forth, lambda dy: self.all_to_all(dy.contiguous(), self.group, *LAST[way][::-1])
        )

    def home(self, rows, to, frm):
        return self.send(rows, frm, to, "home")


def calls_libs_dropless(
    x, choice, n_experts, experts, group=None, all_to_all=collectives.all_to_all
):
    return moe.dropless(x, choice, n_experts, experts, group, all_to_all)


def not_dropless_yet(x, choice, n_experts, experts, group=None, all_to_all=collectives.all_to_all):
    raise NotImplementedError


WRONG = {
    "grouped_mm": {
        calls_libs_product: "called what it builds",
        float32_result: "another dtype",
        no_rows_no_result: "no rows at all",
        no_rows_no_graph: "outside the graph",
        in_the_rows: "arguments changed",
        no_product_yet: "not written",
    },
    "dropless": {
        calls_libs_dropless: "called what it builds",
        answer(StaysHere): "nothing travels",
        answer(Padded): "more than necessary",
        answer(NoWayBack): "no gradient",
        answer(WeightedThere): "the weights' gradient",
        answer(ByPlace): "another order",
        answer(OneTooMany): "the lists do not fit",
        answer(Remembers): "shared by two calls",
        not_dropless_yet: "not written",
    },
}
RIGHT = {
    "grouped_mm": [split_and_join, by_hand, as_an_answer(moe.grouped_mm)],
    "dropless": [
        answer(Dropless),
        answer(BySlots),
        answer(InTwoMessages),
        as_an_answer(moe.dropless),
    ],
}
WRONG["dropless"] |= told(
    moe.dropless,
    (
        "its_own_counts",
        "counts of other rows",
        ("received.sum(0)", "counts.view_as(received).sum(0)"),
    ),
)
