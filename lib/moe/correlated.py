"""A correlation-aware gate: experts that are often chosen together are chosen together more easily.

    C (E, E)  e0  e1  e2  row e: of the tokens that chose e, which part also chose e'
      e0       0  .8  .2  a token whose best expert is e0:
      e1      .5   0  .5      logits                1.0   0.1   0.3      second: e2
      e2      .3  .7   0      + lambda C[e0]        1.0   0.9   0.5      second: e1, with lambda = 1

    logits' = logits + lambda * C[argmax logits]        and from there it is top_k_gate
    C <- beta C + (1 - beta) * what this step's tokens did

Experts that form teams save messages: put e0 and e1 on one rank, and a token that needs both is
sent once. The price is paid in balance: what is chosen often is chosen more often, so the gate
needs a loss or a bias (balance.py) as well. lambda = 0 is top_k_gate; a lambda below 0 drives teams
apart.

n tokens of one set, E experts, k choices a token.

Source: the formula is this course's own, not a paper's. That some experts go together, and that
placing them together saves messages, is reported by Yao et al. 2024 (ExFlow) for the choices of
neighbouring layers.
"""

import torch
from torch import Tensor, nn

from lib.moe.choice import Choice, top_k_indices
from lib.moe.gates import top_k_gate


def co_activation_counts(experts: Tensor, n_experts: int) -> Tensor:
    """How many tokens chose both experts: (E, E) int64, symmetric, zeros on the diagonal.
    experts (n, k), -1 is no expert."""
    chosen = torch.zeros(len(experts), n_experts + 1, dtype=torch.float64, device=experts.device)
    # -1 lands in the last column, which is cut off
    chosen.scatter_(1, experts % (n_experts + 1), 1.0)
    chosen = chosen[:, :n_experts]  # (n, E)  1 where token n chose expert e
    counts = chosen.t() @ chosen  # (E, E)  in float64, exact: GPUs multiply no integers
    return counts.fill_diagonal_(0).long()


class CorrelatedGate(nn.Module):
    """logits (n, E) -> Choice by top_k_gate(logits + strength * C[first choice], k).

    n_experts: E. k: 2 or more. strength: lambda. beta: how much of C stays in an update.
    After each step call `update` with `co_activation_counts(last.experts, E)`, summed over all
    ranks.
    """

    C: Tensor

    def __init__(
        self, n_experts: int, k: int = 2, strength: float = 1.0, beta: float = 0.99
    ) -> None:
        super().__init__()
        self.k, self.strength, self.beta = k, strength, beta
        # (E, E)  in checkpoints, but no optimizer's
        self.register_buffer("C", torch.zeros(n_experts, n_experts))

    def forward(self, logits: Tensor) -> Choice:
        first = top_k_indices(logits, 1).squeeze(1)  # (n,)
        return top_k_gate(logits + self.strength * self.C[first], self.k)

    @torch.no_grad()
    def update(self, counts: Tensor) -> None:
        """Move C towards what was chosen together. counts: (E, E), from `co_activation_counts`.

        Row e becomes beta * row e + (1 - beta) * counts[e] / sum of counts[e]; the row of an expert
        that no token chose stays. On several ranks pass the sum over all of them, or their gates
        drift apart.
        """
        total = counts.sum(1, keepdim=True)  # (E, 1)
        seen = (counts / total.clamp(min=1)).to(self.C)
        self.C.copy_(torch.where(total > 0, self.beta * self.C + (1 - self.beta) * seen, self.C))
