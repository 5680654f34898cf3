"""The exchange hidden behind computation: tokens are sent in the background, half a batch at a
time, while a shared expert and the other half are computed.

    plain       compute  [ shared ]           [ experts ]
                wire               [ dispatch ]          [ combine ]

    in halves   compute  [ shared A ][experts A ][experts B][shared B ]
                wire     [dispatch A][dispatch B][combine A][combine B]

The tokens of one half do not depend on those of the other. A layer that routes both halves first,
and starts their exchanges before it computes, has something to compute whenever tokens are in
flight (Tutel, Hwang et al. 2022; DualPipe, DeepSeek-V3 2024: two micro-batches; Megatron Core:
`--overlap-moe-expert-parallel-comm` and `--moe-shared-expert-overlap`).

Backward is the mirror image, and the layer needs no code for it. Autograd runs the backward passes
in reverse order, and an exchange consists of two functions: in backward, each one does what the
other does in forward.

    forward   start A      shared A     wait A      experts A
    backward  wait A   <-  shared A  <- start A  <- experts A  the gradients' exchange is started by
                                                               the backward of wait

Sent over all ranks: what `ExpertParallelMoE` sends, and another (ep-1) E counts of 8 bytes, because
each half has its own.

n tokens of this rank, D hidden, E experts over ep ranks, m kept pairs of a half.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group
from lib.moe.capacity import Routing
from lib.moe.choice import load
from lib.moe.exchange import exchange_counts
from lib.moe.expert_parallel import ExpertParallelMoE, transpose_blocks
from lib.moe.layer import MoE, run_experts


# exercise: lab5.start_exchange
def start_exchange(
    routed_tokens: Tensor,
    send_counts: Sequence[int],
    receive_counts: Sequence[int],
    group: Group = None,
    all_to_all: Collective = collectives.all_to_all_at_once,
    start: Callable[..., Any] = collectives.start,
) -> Callable[[], Tensor]:
    """Start `exchange_tokens` in the background. Returns wait() -> (sum(receive_counts), D), which
    is to be called once.

    In backward, the backward of wait() starts the exchange of the gradients in the background, and
    the backward of start_exchange waits for it. start: called as start(all_to_all, tensor, group,
    counts, counts) -> work, like `collectives.start`. Until wait() has returned, do not change
    `routed_tokens`, and use the group only for operations that `start` also puts on the
    communication thread. Sends: what `exchange_tokens` sends.
    """
    way = _Way(send_counts, receive_counts, group, all_to_all, start)
    tie = _Leave.apply(routed_tokens, way)
    return lambda: _Arrive.apply(tie, way)


class _Way:
    """The state that forward and backward of one exchange share: how to start it in each direction,
    and the work in flight."""

    def __init__(self, send_counts, receive_counts, group, all_to_all, start):
        self.forward = lambda routed_tokens: start(
            all_to_all, routed_tokens, group, send_counts, receive_counts
        )
        self.backward = lambda dy: start(all_to_all, dy, group, receive_counts, send_counts)
        self.work = None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, routed_tokens, way):
        ctx.way, way.work = way, way.forward(routed_tokens.detach())
        return routed_tokens.new_empty(0)  # connects the two functions in autograd's graph

    @staticmethod
    def backward(ctx, _):
        return ctx.way.work.wait(), None  # dx = P^T dy


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tie, way):
        ctx.way = way
        return way.work.wait()  # y = P x

    @staticmethod
    def backward(ctx, dy):
        ctx.way.work = ctx.way.backward(dy.contiguous())
        return dy.new_empty(0), None


class SharedMoE(ExpertParallelMoE):
    """y = shared(x) + the mixture's output, computed one after the other: x (..., D) -> (..., D).
    moe, group, all_to_all: as in ExpertParallelMoE.

    shared: a module (rows, D) -> (rows, D), identical on all ranks, which is copied (DeepSeekMoE,
    Dai et al. 2024). start: starts an exchange in the background; used by `halves`.
    """

    def __init__(
        self,
        moe: MoE,
        shared: nn.Module,
        group: Group = None,
        all_to_all: Collective = collectives.all_to_all_at_once,
        start: Callable[..., Any] = collectives.start,
    ) -> None:
        super().__init__(moe, group, all_to_all)
        self.shared, self.start = copy.deepcopy(shared), start

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Tensor:
        tokens = x.flatten(0, -2)
        return self.shared(tokens).view_as(x) + super().forward(x, uniform)

    def halves(self, tokens: Tensor, uniform: Tensor | None = None) -> tuple["Half", "Half"]:
        """Route a set of n tokens and split it: (Half, Half). The first half has ceil(n/2) tokens.

        The halves are routed together, so that slots are assigned as in one set. Sends: 2 E/ep
        counts to each other rank.
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
        one, other = (Half(self, *part) for part in parts)
        return one, other

    def start_exchange(
        self, routed_tokens: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Callable[[], Tensor]:
        """`start_exchange` over this layer's group."""
        return start_exchange(
            routed_tokens, send_counts, receive_counts, self.group, self.all_to_all, self.start
        )


class Half:
    """Half of the tokens of a set, (h, D), in a layer, which runs start_dispatch, experts and
    start_combine on them."""

    def __init__(self, layer, tokens, routing, counts, received):
        self.layer, self.tokens, self.routing, self.received = layer, tokens, routing, received
        # ep each
        self.send_counts, self.receive_counts = counts.sum(1).tolist(), received.sum(1).tolist()

    def start_dispatch(self):
        """Start sending the half's tokens to their experts; returns wait() -> (M, D), the routed
        tokens that this rank received, sorted by expert."""
        routed_tokens = self.layer.dispatch(self.tokens, self.routing)  # (m, D)
        wait = self.layer.start_exchange(routed_tokens, self.send_counts, self.receive_counts)
        return lambda: transpose_blocks(wait(), self.received)

    def experts(self, routed_tokens):
        """This rank's experts on their tokens: (M, D), sorted by expert, -> (M, D)."""
        return run_experts(self.layer.experts.values(), routed_tokens, self.received.sum(0))

    def start_combine(self, routed_tokens):
        """Start sending the outputs (M, D), sorted by expert, back to the tokens' ranks; returns
        wait() -> (h, D), the tokens' weighted sums."""
        by_sender = transpose_blocks(routed_tokens, self.received.t())
        wait = self.layer.start_exchange(by_sender, self.receive_counts, self.send_counts)
        return lambda: self.layer.combine(wait(), self.routing, len(self.tokens))


# exercise: lab5.OverlappedMoE
class OverlappedMoE(SharedMoE):
    """A SharedMoE with the same result, which sends tokens while it computes what does not depend
    on them: x (..., D) -> (..., D)."""

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Tensor:
        a, b = self.halves(x.flatten(0, -2), uniform)
        dispatched_a, dispatched_b = a.start_dispatch(), b.start_dispatch()
        shared_a = self.shared(a.tokens)  # during dispatch A
        outputs = a.experts(dispatched_a())  # during dispatch B
        combined_a = a.start_combine(outputs)
        outputs = b.experts(dispatched_b())  # during combine A
        combined_b = b.start_combine(outputs)
        shared_b = self.shared(b.tokens)  # during combine B
        return torch.cat([shared_a + combined_a(), shared_b + combined_b()]).view_as(x)
