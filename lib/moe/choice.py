"""A choice: which experts each token asks for, and with which weights. Every gate returns a choice.

    n = 3 tokens, E = 4 experts, k = 2           experts (n, k)     weights (n, k)
    token 0   likes expert 2, then expert 0      2   0              .7  .3
    token 1   likes expert 2, then expert 3      2   3              .9  .1
    token 2   likes expert 1, and no second      1  -1              .6   0

A choice is only a request, because experts may be full. The pairs that get a slot are in a
`Routing` (capacity.py).

n tokens of one set, E experts, k choices a token. A set is the tokens that are routed together;
with expert parallelism they are the tokens of one rank.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Choice(NamedTuple):
    """The experts that n tokens ask for. The gradients of `weights` and `probabilities` flow back
    to the router."""

    experts: torch.Tensor  # (n, k)  int64, best first; -1 where a token asks for none
    weights: torch.Tensor  # (n, k)  factors of the experts' outputs; 0 where the expert is -1
    probabilities: torch.Tensor  # (n, E)  of all experts, chosen or not, for the auxiliary loss


def top_k_indices(scores: Tensor, k: int) -> Tensor:
    """The indices of the k highest scores of each row, best first. scores (n, E) -> (n, k) int64.

    Among equal scores the smaller index comes first, on every device; `torch.topk` guarantees no
    order. Raises ValueError for a k outside 1 to E.
    """
    n_experts = scores.shape[-1]
    if not 1 <= k <= n_experts:
        raise ValueError(f"k={k} experts a token, of {n_experts}: use k from 1 to {n_experts}")
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def load(experts: Tensor, n_experts: int) -> Tensor:
    """How often each expert occurs in `experts`, (E,) int64. experts: indices of experts in any
    shape; -1 is no expert."""
    return torch.bincount(experts[experts >= 0], minlength=n_experts)
