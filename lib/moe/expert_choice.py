"""Expert choice: experts choose tokens, instead of tokens choosing experts (Zhou et al. 2022). Each
expert takes the C tokens for which its probability is highest.

    p = softmax over experts  e0  e1  in each column the C = 2 highest:
    token 0                   .9  .1  e0: tokens 0, 1
    token 1                   .8  .2  e1: tokens 3, 2
    token 2                   .6  .4
    token 3                   .3  .7

Every expert is always full, so we need no auxiliary loss, and there are no empty slots. Instead the
number of experts per token varies: one token may get several, another none. On average a token gets
E*C/n experts, which is about the capacity factor.

There is a catch. Whether a token is taken depends on all other tokens of its set, including those
that come later in the text. A language model that trains in this way uses a little information
about the future, which it does not have when it generates token by token.

n tokens of one set, E experts, C slots per expert.
"""

import torch
from torch import Tensor

from lib.moe.capacity import Routing
from lib.moe.choice import Choice


def expert_choice(logits: Tensor, C: int) -> Routing:
    """Each expert's C best tokens: logits (n, E) -> Routing of m = E*C pairs. The weight is the
    token's probability of this expert.

    Slot 0 of an expert has its best token; among equally good tokens the earlier one comes first.
    Raises ValueError for a C above n, because an expert takes a token only once.
    """
    return take(logits.softmax(-1), C)


def assign_by_expert_choice(choice: Choice, n_experts: int, C: int) -> Routing:
    """Expert choice instead of `assign_slots`: MoE(hidden, experts, switch_gate, factor=2,
    assign_slots=assign_by_expert_choice).

    With a gate of one choice per token, C = ceil(factor * n / E). The gate's choices are ignored,
    so of the layer's statistics only `load`, `left_out` and `z` mean anything here.
    """
    return take(choice.probabilities, C)


def take(p, C):
    """The C highest of each column of p (n, E), as a Routing."""
    n, n_experts = p.shape
    if n < C:
        raise ValueError(
            f"C={C} slots, n={n} tokens: an expert takes each once, use a factor up to "
            f"E={n_experts}"
        )
    # (E*C,)  expert by expert
    token = p.sort(dim=0, descending=True, stable=True).indices[:C].t().flatten()
    expert = torch.arange(n_experts, device=p.device).repeat_interleave(C)  # (E*C,)
    slot = torch.arange(C, device=p.device).repeat(n_experts)  # (E*C,)
    return Routing(token, expert, slot, p[token, expert])
