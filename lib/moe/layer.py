"""The sparse layer: it has many experts, and each token runs through k of them (Shazeer et al.
2017).

    the path of token 5, E = 4, k = 2       `MoE.forward`
    logits    .9  2.2  .4  1.7              router
    choice    expert 1 (.62), 3 (.38)       gate             which experts it asks for
    routing   (5, 1, slot 0), (5, 3, -)     assign_slots     expert 3 is full: that pair is dropped
    routed    x_5                           dispatch         one copy for each pair that is kept
    routed    expert_1(x_5)                 run              each expert on its own tokens
    y_5       .62 expert_1(x_5)             combine          y_t = sum over e of w_te expert_e(x_t)

The number of parameters grows with E, whereas the experts' computation per token depends only on k.
That is the whole idea. A token that gets no slot from any of its experts has an output of zeros.

n tokens of one set, D hidden, E experts, k choices a token, C slots per expert, m kept pairs.

The tokens of one call are one set, and share the experts' slots. With expert parallelism, each
rank's tokens are a set of their own. To compute in a single process what the ranks compute, call
the layer once for each rank's tokens, and take the mean of the auxiliary losses.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lib.moe.balance import auxiliary_loss, z_loss
from lib.moe.capacity import Routing, assign_slots, capacity, dropped
from lib.moe.choice import Choice, load
from lib.moe.dispatch import combine, dispatch
from lib.moe.gates import switch_gate


class Statistics(NamedTuple):
    """What a layer recorded in its last forward. The two losses are part of the autograd graph:
    scale them and add them to the loss."""

    experts: torch.Tensor  # (n, k)  int64, the experts that each token asked for
    requested: torch.Tensor  # (E,)  int64, pairs that asked for each expert
    load: torch.Tensor  # (E,)  int64, pairs that each expert got: at most C
    dropped: torch.Tensor  # ()  int64, pairs that found no slot
    # ()  int64, tokens that got no slot at all: the layer's output for them is zeros
    left_out: torch.Tensor
    auxiliary: torch.Tensor  # ()  balance.auxiliary_loss
    z: torch.Tensor  # ()  balance.z_loss


class MoE(nn.Module):
    """A router and E experts: x (..., D), with two or more dimensions, -> (..., D). All tokens of a
    call are one set.

    hidden: D. experts: E modules, each of which maps (rows, D) to (rows, D) and accepts 0 rows.
    gate: logits (n, E) -> Choice; a gate that samples also takes `uniform` (n,), which forward
    passes on. factor: the capacity factor. assign_slots: (choice, E, C) -> Routing, for example
    `assign_slots`, `reroute` or `assign_by_expert_choice`. dispatch, combine: as in dispatch.py.
    The router is created here, on torch's default device. After forward, `last` holds its
    Statistics. Sends nothing.
    """

    experts: Any  # a ModuleList; with expert parallelism a ModuleDict of this rank's experts
    last: Statistics | None

    def __init__(
        self,
        hidden: int,
        experts: Sequence[nn.Module] | nn.ModuleList,
        gate: Callable[..., Choice] = switch_gate,
        factor: float = 1.25,
        assign_slots: Callable[..., Routing] = assign_slots,
        dispatch: Callable[..., Tensor] = dispatch,
        combine: Callable[..., Tensor] = combine,
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.router = nn.Linear(hidden, len(self.experts), bias=False)  # weight (E, D)
        self.gate, self.factor, self.assign_slots = gate, factor, assign_slots
        self.dispatch, self.combine = dispatch, combine
        self.last = None

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Tensor:
        tokens = x.flatten(0, -2)  # (n, D)
        routing = self.route(tokens, uniform)  # m pairs (token, expert, slot), sorted by expert
        routed_tokens = self.dispatch(tokens, routing)  # (m, D)  x_t for each pair
        routed_tokens = self.run(routed_tokens)  # (m, D)  expert_e(x_t) for each pair
        return self.combine(routed_tokens, routing, len(tokens)).view_as(x)  # (..., D)

    def route(self, tokens: Tensor, uniform: Tensor | None = None) -> Routing:
        """Decide to which experts the tokens go: (n, D) -> Routing. Sets `last`. The router sees
        the tokens in its own dtype, so it can be in float32 when they have 16 bits."""
        logits = self.router(tokens.to(self.router.weight.dtype))  # (n, E)
        choice = self.gate(logits) if uniform is None else self.gate(logits, uniform)
        n, n_experts = logits.shape
        C = capacity(n, n_experts, choice.experts.shape[1], self.factor)  # slots of an expert
        routing = self.assign_slots(choice, n_experts, C)
        self.last = statistics(logits, choice, routing)
        return routing

    def run(self, routed_tokens: Tensor) -> Tensor:
        """Run the routed tokens through their experts: (m, D), sorted by expert, -> (m, D). This is
        the only step that differs if the experts are on other ranks (expert_parallel.py)."""
        return run_experts(self.experts, routed_tokens, self.last.load)

    def __getstate__(self):
        """A copy starts without `last`, because tensors that are part of an autograd graph can be
        neither copied nor sent to a rank."""
        return self.__dict__ | {"last": None}


def statistics(logits: Tensor, choice: Choice, routing: Routing) -> Statistics:
    """The Statistics of a set, from its logits (n, E), what its tokens asked for, and what they
    got."""
    n, n_experts = logits.shape
    return Statistics(
        experts=choice.experts,
        requested=load(choice.experts, n_experts),
        load=load(routing.expert, n_experts),
        dropped=dropped(choice, routing),
        left_out=(load(routing.token, n) == 0).sum(),
        auxiliary=auxiliary_loss(choice.probabilities, choice.experts[:, 0]),
        z=z_loss(logits),
    )


def run_experts(experts: Iterable[nn.Module], routed_tokens: Tensor, load: Tensor) -> Tensor:
    """Run each expert on its own tokens: (m, D), sorted by expert, -> (m, D). load: (E,), how many
    tokens each expert has.

    An expert without tokens runs on 0 rows. Its gradients are then zeros instead of None, so every
    rank reduces the same list of gradients.
    """
    of_each = routed_tokens.split(load.tolist())
    return torch.cat([expert(its) for expert, its in zip(experts, of_each, strict=True)])  # (m, D)
