"""The sparse layer: many experts, of which each token runs through k (Shazeer et al. 2017).

    token 5 on its way, E = 4, k = 2        `MoE.forward`
    logits    .9  2.2  .4  1.7              router
    choice    expert 1 (.62), 3 (.38)       gate             which experts it asks for
    routing   (5, 1, slot 0), (5, 3, -)     assign_slots     expert 3 is full: that pair is dropped
    routed    x_5                           dispatch         one copy for each pair that is kept
    routed    expert_1(x_5)                 run              each expert on the tokens it was given
    y_5       .62 expert_1(x_5)             combine          y_t = sum over e of w_te expert_e(x_t)

Parameters grow with E, compute per token with k alone: that is the whole idea. A token that found
no slot gets zeros.

n tokens of one set, D hidden, E experts, k choices a token, C slots per expert, m kept pairs.

The tokens of one call are one set: they share the slots. In expert parallelism each rank's tokens
are a set; to compute in one process what the ranks compute, call the layer once per rank's tokens,
and take the mean of the auxiliary losses.
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
    """What a layer saw in its last forward. The two losses carry their graph: add them to
    the loss, scaled."""

    experts: torch.Tensor  # (n, k)  int64, what each token asked for
    requested: torch.Tensor  # (E,)  int64, pairs that asked for each expert
    load: torch.Tensor  # (E,)  int64, pairs that each expert got: at most C
    dropped: torch.Tensor  # ()  int64, pairs that found no slot
    # ()  int64, tokens that got no expert at all: the layer gives zeros for them
    left_out: torch.Tensor
    auxiliary: torch.Tensor  # ()  balance.auxiliary_loss
    z: torch.Tensor  # ()  balance.z_loss


class MoE(nn.Module):
    """x (..., D), of two dims or more, -> (..., D). All its tokens are one set.

    hidden: D. experts: E modules, each (rows, D) -> (rows, D), and able to take 0 rows.
    gate: logits (n, E) -> Choice; one that samples takes `uniform` (n,) too, and forward hands it
    on. factor: the capacity factor. assign_slots: (choice, E, C) -> Routing: `assign_slots`,
    `reroute`, `assign_by_expert_choice`. dispatch, combine: as in dispatch.py. The router is made
    here, on torch's default device.
    After forward, `last` holds its Statistics. Sends nothing.
    """

    experts: Any  # a ModuleList, or the ModuleDict of this rank's own, by their number
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
        """Where the tokens go: (n, D) -> Routing. Sets `last`. A router in float32 may
        route tokens in 16 bits."""
        logits = self.router(tokens.to(self.router.weight.dtype))  # (n, E)
        choice = self.gate(logits) if uniform is None else self.gate(logits, uniform)
        n, n_experts = logits.shape
        C = capacity(n, n_experts, choice.experts.shape[1], self.factor)  # slots of an expert
        routing = self.assign_slots(choice, n_experts, C)
        self.last = statistics(logits, choice, routing)
        return routing

    def run(self, routed_tokens: Tensor) -> Tensor:
        """The routed tokens through their experts: (m, D), sorted by expert, -> (m, D). The one
        step that differs where the experts are on other ranks (expert_parallel.py)."""
        return run_experts(self.experts, routed_tokens, self.last.load)

    def __getstate__(self):
        """A copy starts without `last`: tensors with a graph can be neither copied
        nor sent to a rank."""
        return self.__dict__ | {"last": None}


def statistics(logits: Tensor, choice: Choice, routing: Routing) -> Statistics:
    """The Statistics of a set: of its logits (n, E), of what its tokens asked for, and of
    what they got."""
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
    """Each expert on its own tokens: (m, D), sorted by expert, -> (m, D). load: (E,), how many
    tokens each expert has.

    An expert without tokens runs on none: its gradient is then zeros, not missing, and every rank
    reduces the same list.
    """
    of_each = routed_tokens.split(load.tolist())
    return torch.cat([expert(its) for expert, its in zip(experts, of_each, strict=True)])  # (m, D)
