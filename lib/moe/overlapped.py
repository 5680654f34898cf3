"""The exchange behind computation: rows travel in the background, a half batch at a time, and a
shared expert helps.

    plain       compute  [ shared ]           [ experts ]
                wire               [ dispatch ]          [ combine ]

    in halves   compute  [shared A][experts A][experts B][shared B]
                wire     [  A  there ][ B there ][ A home ][ B home ]

A half's rows depend on nothing of the other's. Whoever routes both first, and starts before it
computes, has something to compute whenever rows are under way (Tutel, Hwang et al. 2022; DualPipe,
DeepSeek-V3 2024: two micro-batches).

Backward is the same in a mirror, and nobody has to write it. Autograd runs what was made last
first, and the exchange is two functions, of which each is the other's backward:

    forward   start A      shared A     wait A      experts A
    backward  wait A   <-  shared A  <- start A  <- experts A  the gradients' way home begins where
                                                               wait stood

Sent over all ranks: as `ExpertParallelMoE`, and (ep-1) E counts of 8 bytes more: every half has its
own.

n tokens of this rank, D hidden, E experts over ep ranks, m kept pairs of a half.
"""

import copy

import torch

from lib import collectives
from lib.moe.capacity import Routing
from lib.moe.choice import load
from lib.moe.exchange import exchange_counts
from lib.moe.expert_parallel import ExpertParallelMoE, transpose_blocks
from lib.moe.layer import run_experts


# exercise: lab5.start_exchange
def start_exchange(
    rows,
    send_counts,
    receive_counts,
    group=None,
    all_to_all=collectives.all_to_all_at_once,
    start=collectives.start,
):
    """Begin `exchange_rows` in the background; returns wait() -> (sum(receive_counts), D), to be
    called once.

    Backward: where wait() stood the gradients begin their way back in the background; where
    start_exchange stood they are waited for. start: start(all_to_all, tensor, group, counts,
    counts) -> work, as `collectives.start`. Until wait() `rows` may not be changed, and the group
    belongs to what is under way. Sends: as `exchange_rows`.
    """
    way = _Way(send_counts, receive_counts, group, all_to_all, start)
    token = _Leave.apply(rows, way)
    return lambda: _Arrive.apply(token, way)


class _Way:
    """One exchange, and later that of its gradients: what is under way."""

    def __init__(self, send_counts, receive_counts, group, all_to_all, start):
        self.there = lambda rows: start(all_to_all, rows, group, send_counts, receive_counts)
        self.home = lambda dy: start(all_to_all, dy, group, receive_counts, send_counts)
        self.work = None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, way):
        ctx.way, way.work = way, way.there(rows.detach())
        return rows.new_empty(0)  # what ties the two functions together

    @staticmethod
    def backward(ctx, _):
        return ctx.way.work.wait(), None  # dx = P^T dy


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token, way):
        ctx.way = way
        return way.work.wait()  # y = P x

    @staticmethod
    def backward(ctx, dy):
        ctx.way.work = ctx.way.home(dy.contiguous())
        return dy.new_empty(0), None


class SharedMoE(ExpertParallelMoE):
    """y = shared(x) + the mixture, one after the other: x (..., D) -> (..., D). moe, group,
    all_to_all: its parent's.

    shared: a module (rows, D) -> (rows, D), alike on all ranks, which is copied (DeepSeekMoE, Dai
    et al. 2024). start: what begins an exchange in the background, for `halves`.
    """

    def __init__(
        self,
        moe,
        shared,
        group=None,
        all_to_all=collectives.all_to_all_at_once,
        start=collectives.start,
    ):
        super().__init__(moe, group, all_to_all)
        self.shared, self.start = copy.deepcopy(shared), start

    def forward(self, x, uniform=None):
        tokens = x.flatten(0, -2)
        return self.shared(tokens).view_as(x) + super().forward(x, uniform)

    def halves(self, tokens, uniform=None):
        """Both halves of a set of n tokens, routed: (Half, Half). The first has ceil(n/2) tokens.

        They are routed together, so that slots are given out as in one set. Sends: 2 E/ep counts to
        each other rank.
        """
        routing, first = self.route(tokens, uniform), (len(tokens) + 1) // 2
        is_second = routing.token >= first
        of_both = [
            Routing(*(field[which] for field in routing)) for which in (~is_second, is_second)
        ]
        of_both[1] = of_both[1]._replace(token=of_both[1].token - first)
        E, each = len(self.last.load), len(self.experts)
        # (ep, 2, E/ep)
        counts = torch.stack([load(half.expert, E).view(-1, each) for half in of_both], 1)
        received = exchange_counts(counts.flatten(), self.group, self.all_to_all).view_as(counts)
        parts = zip(
            (tokens[:first], tokens[first:]),
            of_both,
            counts.unbind(1),
            received.unbind(1),
            strict=True,
        )
        return tuple(Half(self, *part) for part in parts)

    def start_exchange(self, rows, send_counts, receive_counts):
        """`start_exchange` over this layer's group."""
        return start_exchange(
            rows, send_counts, receive_counts, self.group, self.all_to_all, self.start
        )


class Half:
    """Some tokens of a set, (h, D), on their way through a layer: start_dispatch, experts,
    start_combine."""

    def __init__(self, layer, tokens, routing, counts, received):
        self.layer, self.tokens, self.routing, self.received = layer, tokens, routing, received
        # ep each
        self.send_counts, self.receive_counts = (
            counts.sum(1).tolist(),
            received.sum(1).tolist(),
        )

    def start_dispatch(self):
        """Begin the rows' way to their experts; returns wait() -> (M, D), the rows that are
        here, by expert."""
        rows = self.layer.dispatch(self.tokens, self.routing)  # (m, D)
        wait = self.layer.start_exchange(rows, self.send_counts, self.receive_counts)
        return lambda: transpose_blocks(wait(), self.received)

    def experts(self, rows):
        """This rank's experts on their rows: (M, D), by expert, -> (M, D)."""
        return run_experts(self.layer.experts.values(), rows, self.received.sum(0))

    def start_combine(self, rows):
        """Begin the way home of rows (M, D), by expert; returns wait() -> (h, D), the tokens'
        weighted sums."""
        rows = transpose_blocks(rows, self.received.t())
        wait = self.layer.start_exchange(rows, self.receive_counts, self.send_counts)
        return lambda: self.layer.combine(wait(), self.routing, len(self.tokens))


# exercise: lab5.OverlappedMoE
class OverlappedMoE(SharedMoE):
    """A SharedMoE whose rows travel beside what does not depend on them: x (..., D) ->
    (..., D), the same."""

    def forward(self, x, uniform=None):
        a, b = self.halves(x.flatten(0, -2), uniform)
        there_a, there_b = a.start_dispatch(), b.start_dispatch()
        shared_a = self.shared(a.tokens)  # beside A's way there
        rows = a.experts(there_a())  # beside B's way there
        home_a = a.start_combine(rows)
        rows = b.experts(there_b())  # beside A's way home
        home_b = b.start_combine(rows)
        shared_b = self.shared(b.tokens)  # beside B's way home
        return torch.cat([shared_a + home_a(), shared_b + home_b()]).view_as(x)
