"""Capacity: an expert has C slots for a set of tokens; what does not fit is dropped, or rerouted to
another expert.

    C = ceil(factor * k * n / E)  with a capacity factor of 1 there are just enough slots for all
                                  pairs if all experts are chosen equally often

    E = 3, C = 2         first choices, in token order     then the second choices
    token   0 1 2 3 4    0 -> e0 slot 0                    0 -> e1 slot 1
    first   0 0 0 1 2    1 -> e0 slot 1                    1 -> e2 slot 1
    second  1 2 1 2 0    2 -> e0 full: dropped             2 -> e1 full: dropped
                         3 -> e1 slot 0                    3 -> e2 full: dropped
                         4 -> e2 slot 0                    4 -> e0 full: dropped

All first choices are served before any second choice, because it is better for one token to lose
its second expert than for another to lose its only one. A token that no expert takes gets zeros
from the layer; in a transformer the residual connection carries it past the layer.

n tokens of one set, E experts, k choices a token, C slots per expert and set, m pairs (token,
expert) that are kept.

Sources: GShard (Lepikhin et al. 2020, section 2.2 and Algorithm 1); rerouting: "no token left
behind" in the Switch Transformer (Fedus et al. 2021, appendix B). Megatron Core:
`--moe-expert-capacity-factor`, and `--moe-token-drop-policy position` for the order of tokens.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from lib.moe.choice import Choice, load


class Routing(NamedTuple):
    """The m pairs that are kept, sorted by expert, then by slot: the order of the routed tokens."""

    token: torch.Tensor  # (m,)  int64, 0 to n-1
    expert: torch.Tensor  # (m,)  int64, 0 to E-1, never decreasing
    # (m,)  int64, 0 to C-1: which of the expert's slots; no two pairs share a slot
    slot: torch.Tensor
    weight: torch.Tensor  # (m,)  through which the gradient reaches the router


def capacity(n: int, n_experts: int, k: int, factor: float) -> int:
    """C, the slots per expert for a set of n tokens with k choices each: a whole number.

    factor: with 1 there is no room for imbalance, and with 1.25 there are 25% more slots. With E/k,
    C is at least n, so nothing can be dropped. Raises ValueError for a factor that is not above 0.
    """
    if not factor > 0:
        raise ValueError(
            f"capacity factor {factor}: it scales the slots, use a number above 0, 1.25 say"
        )
    # C = ceil(factor * k * n / E), with the factor in decimal, as it is written: in binary
    # 1.1 * 100 is above 110, and C would be 111.
    return math.ceil(Fraction(str(factor)) * k * n / n_experts)


# exercise: lab5.assign_slots
def assign_slots(choice: Choice, n_experts: int, C: int) -> Routing:
    """Assign each expert's C slots to pairs (token, expert): to all first choices in token order,
    then to all second choices, and so on. Pairs for which no slot is left are dropped.

    choice: of n tokens, k each. Returns the Routing of the m <= E*C kept pairs. Sends nothing.
    """
    n, k = choice.experts.shape
    # Pairs in the order of priority: pair i is the (i // n)-th choice of token i % n.
    expert = choice.experts.t().flatten()  # (k*n,)
    weight = choice.weights.t().flatten()  # (k*n,)
    token = torch.arange(n, device=expert.device).repeat(k)  # (k*n,)
    asked = (expert >= 0).nonzero().flatten()
    expert, weight, token = expert[asked], weight[asked], token[asked]

    expert, slot, order = sort_by_expert(expert, n_experts)
    fits = (slot < C).nonzero().flatten()  # (m,)
    return Routing(token[order[fits]], expert[fits], slot[fits], weight[order[fits]])


def sort_by_expert(expert: Tensor, n_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort pairs by expert, and number the pairs of each expert 0, 1, 2, ... in their original
    order.

    expert: (p,) int64. Returns expert, sorted; slot (p,), the numbers; and order (p,), the original
    index of each pair.
    """
    expert, order = expert.sort(stable=True)  # stable keeps the order within an expert
    of_each = load(expert, n_experts)  # (E,)
    first = of_each.cumsum(0) - of_each  # (E,)  where each expert's pairs begin
    slot = torch.arange(len(expert), device=expert.device) - first[expert]
    return expert, slot, order


def reroute(choice: Choice, n_experts: int, C: int) -> Routing:
    """No token left behind: a token whose expert is full is rerouted to its next best expert with a
    free slot.

    choice: of n tokens, with k = 1. In round 0 all tokens ask for their choice, in token order. In
    each later round those still without a slot ask for their next best expert. So no token loses
    its first choice to a rerouted one. The weight is the probability of the expert that the token
    gets. Tokens are dropped only if there are more than E*C. Returns the Routing of min(n, E*C)
    pairs. Sends nothing. Raises ValueError for more than one choice a token.
    """
    n, k = choice.experts.shape
    if k != 1:
        raise ValueError(
            f"{k} choices a token: reroute finds one "
            f"expert for each, use switch_gate, or assign_slots"
        )
    # Each token's experts from best to worst; its choice comes first, whatever its probability.
    likes = choice.probabilities.detach().scatter(1, choice.experts, torch.inf)  # (n, E)
    ranking = likes.sort(dim=1, descending=True, stable=True).indices  # (n, E)

    waiting = torch.arange(n, device=ranking.device)
    filled = torch.zeros(n_experts, dtype=torch.int64, device=ranking.device)  # (E,)
    rounds = []
    for turn in range(n_experts):
        expert, slot, order = sort_by_expert(ranking[waiting, turn], n_experts)
        token, slot = waiting[order], slot + filled[expert]  # after those of earlier rounds
        fits = slot < C
        rounds.append((token[fits], expert[fits], slot[fits]))
        filled = filled + load(expert[fits], n_experts)
        waiting = token[~fits].sort().values  # in token order again

    token, expert, slot = (torch.cat(parts) for parts in zip(*rounds, strict=True))
    order = (expert * max(1, C) + slot).argsort()
    token, expert, slot = token[order], expert[order], slot[order]
    return Routing(token, expert, slot, choice.probabilities[token, expert])


def dropped(choice: Choice, routing: Routing) -> Tensor:
    """How many of the pairs that were asked for found no slot: (), int64."""
    return (choice.experts >= 0).sum() - len(routing.token)
