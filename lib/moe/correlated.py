"""A correlation-aware gate: if two experts are often chosen together, a token that chooses one of
them becomes more likely to choose the other as well.

    A (E, E)  e0  e1  e2  row e: of the experts that are chosen with e, the share of each e'
      e0       0  .8  .2  a token whose best expert is e0:
      e1      .5   0  .5      logits                1.0   0.1   0.3      second: e2
      e2      .3  .7   0      + lambda A[e0]        1.0   0.9   0.5      second: e1, with lambda = 1

    logits' = logits + lambda * A[argmax logits]        and then top_k_gate
    A <- beta A + (1 - beta) * the shares among this step's tokens

This saves communication, because a token is sent only once to a rank that has several of its
experts (device_limited.py). So experts that are often chosen together should share a rank:
`placement` decides which do, and `placed` numbers a gate's experts accordingly. The price is
balance. Experts that are chosen often are now chosen even more often, so the gate also needs a loss
or a bias (balance.py). lambda = 0 is top_k_gate, and a lambda below 0 separates partners.

A is the co-activation matrix. n tokens of one set, E experts over ep ranks, k choices a token.

Sources: the formula is this course's own, not a paper's. Placing experts that are chosen together
on one device: Occult (Luo et al. 2025), and C2R (Zhang et al. 2025), which also restricts a
token's further experts to frequent partners of its best one. Yao et al. 2024 (ExFlow) place
experts by the choices of neighbouring layers.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lib.moe.choice import Choice, top_k_indices
from lib.moe.gates import top_k_gate


def co_activation_counts(experts: Tensor, n_experts: int) -> Tensor:
    """How many tokens chose both of two experts: (E, E) int64, symmetric, zeros on the diagonal.
    experts (n, k); -1 is no expert."""
    chosen = torch.zeros(len(experts), n_experts + 1, dtype=torch.float64, device=experts.device)
    # -1 is counted in the last column, which is dropped
    chosen.scatter_(1, experts % (n_experts + 1), 1.0)
    chosen = chosen[:, :n_experts]  # (n, E)  1 where token n chose expert e
    counts = chosen.t() @ chosen  # (E, E)  exact in float64; GPUs have no integer matmul
    return counts.fill_diagonal_(0).long()


class CorrelatedGate(nn.Module):
    """logits (n, E) -> Choice by top_k_gate(logits + strength * A[first choice], k).

    n_experts: E. k: 2 or more. strength: lambda. beta: the weight of the old A in an update. After
    each step call `update` with `co_activation_counts(layer.last.experts, E)`, summed over all
    ranks, where `layer` is the MoE that uses this gate.
    """

    A: Tensor

    def __init__(
        self, n_experts: int, k: int = 2, strength: float = 1.0, beta: float = 0.99
    ) -> None:
        super().__init__()
        self.k, self.strength, self.beta = k, strength, beta
        # (E, E)  saved in checkpoints, but not updated by the optimizer
        self.register_buffer("A", torch.zeros(n_experts, n_experts))

    def forward(self, logits: Tensor) -> Choice:
        first = top_k_indices(logits, 1).squeeze(1)  # (n,)
        return top_k_gate(logits + self.strength * self.A[first], self.k)

    @torch.no_grad()
    def update(self, counts: Tensor) -> None:
        """Move A towards the shares of this step. counts: (E, E), from `co_activation_counts`.

        Row e becomes beta * row e + (1 - beta) * counts[e] / sum of counts[e]; the row of an expert
        that no token chose does not change. On several ranks, pass the sum over all of them,
        because otherwise their gates diverge.
        """
        total = counts.sum(1, keepdim=True)  # (E, 1)
        seen = (counts / total.clamp(min=1)).to(self.A)
        self.A.copy_(torch.where(total > 0, self.beta * self.A + (1 - self.beta) * seen, self.A))


def placement(A: Tensor, ep: int) -> Tensor:
    """An order of the experts, (E,) int64, in which the first E/ep are on rank 0, the next on rank
    1, and so on.

    The algorithm is greedy. Each rank starts with the unplaced expert that has the strongest
    partner, and then takes the expert that is chosen most often together with those it already has.
    A: (E, E), from `CorrelatedGate` or `co_activation_counts`. Raises ValueError if ep does not
    divide E.
    """
    E = len(A)
    if E % ep:
        raise ValueError(f"{E} experts over ep={ep} ranks is not whole: ep has to divide them")
    together, each, order = (A + A.t()).double().fill_diagonal_(0), E // ep, []
    for place in range(E):
        left = [e for e in range(E) if e not in order]
        here = order[place - place % each :]  # the experts on this rank so far
        strength = together[:, here].sum(1) if here else together[:, left].amax(1)  # (E,)
        order.append(max(left, key=strength.tolist().__getitem__))
    return torch.tensor(order)


def placed(gate: Callable[[Tensor], Choice], order: Tensor) -> Callable[[Tensor], Choice]:
    """The gate with its experts renumbered in the order that `placement` returned: expert order[i]
    is the layer's i-th. logits (n, E) -> Choice; the logits are in the original order of the
    experts."""
    number = order.argsort()

    def moved(logits: Tensor) -> Choice:
        choice = gate(logits)
        experts = torch.where(choice.experts < 0, -1, number[choice.experts])
        return choice._replace(experts=experts, probabilities=choice.probabilities[:, order])

    return moved
