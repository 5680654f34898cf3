"""Balance: three ways to keep a router from sending most tokens to a few experts.

A router that slightly prefers an expert sends it more tokens, so the expert learns more and is
preferred even more. With a capacity, tokens beyond it are dropped.

    auxiliary_loss  E * sum_e f_e P_e       f_e is the share of the tokens whose first choice is e,
                                            and P_e the mean probability of e. If all are equal, it
                                            is E * E * 1/E * 1/E = 1; if all tokens go to one expert
                                            with probability 1, it is E.
    z_loss          mean_t (log sum_e exp(z_te))^2   keeps logits small, because bf16 rounds large
                                                     ones coarsely and exp amplifies the error
    ExpertBiasGate  raises b_e where e has less than its share of the load, and lowers it where e
                    has more; b decides which experts are selected, but not their weights
    SigmoidExpertBiasGate
                    does the same with sigmoid(z_e) in place of p_e, so that no expert's score
                    depends on the other experts' logits

f is a count and has no gradient. The loss reaches the router through P, and pushes down an expert's
probability in proportion to f_e. The loss adds gradients that have nothing to do with predicting
text, whereas the bias changes only which experts are selected.

With data parallelism, f and the loads from which the bias is updated should be counted over all
ranks (Qiu et al. 2025; balance_runs.py compares both). Routers compute in float32 even where
experts use 16 bits.

n tokens of one set, E experts, k choices a token, z logits, b (E,) the expert biases, u their
update rate. Megatron Core: `--moe-router-load-balancing-type aux_loss` or `global_aux_loss`,
`--moe-z-loss-coeff`, `--moe-router-enable-expert-bias`, `--moe-router-bias-update-rate` and
`--moe-router-dtype fp32`.

Sources: auxiliary loss: Switch (Fedus et al. 2021, equations 4 to 6). GShard's loss is 1/E^2 of it,
and also counts first choices. Megatron Core and DeepSeek count all k choices and divide by k n;
Hugging Face's Mixtral divides by n, so its loss is k times as large. z-loss: ST-MoE (Zoph et al.
2022). Expert bias: Wang et al. 2024 (Algorithm 1); with sigmoids: DeepSeek-V3 (DeepSeek-AI 2024,
equations 12 to 16), which also multiplies the weights by 2.5.
"""

import torch
from torch import Tensor, nn

from lib.moe.choice import Choice, load, top_k_indices


# exercise: lab5.auxiliary_loss
def auxiliary_loss(probabilities: Tensor, first_choices: Tensor) -> Tensor:
    """The load-balancing loss E * sum_e f_e P_e, (). It is 1 if the load is even, up to E if all
    tokens go to one expert, and 0 for a set of no tokens.

    probabilities: (n, E); the gradient flows through them. first_choices: (n,) int64, each token's
    best expert before capacity is applied, because a dropped token also shows which expert is
    overloaded.
    """
    n, n_experts = probabilities.shape
    f = load(first_choices, n_experts).to(probabilities) / max(n, 1)  # (E,)  a count: no gradient
    P = probabilities.sum(0) / max(n, 1)  # (E,)
    # E * sum_e f_e P_e
    return n_experts * (f * P).sum()


def z_loss(logits: Tensor) -> Tensor:
    """mean over tokens of (log sum_e exp(z_e))^2, (). logits (n, E); 0 for a set of no tokens."""
    return logits.logsumexp(-1).square().sum() / max(len(logits), 1)


class ExpertBiasGate(nn.Module):
    """A gate that is balanced without a loss: it chooses the k experts with the highest p + b, and
    their weights are p, without b.

    n_experts: E. k: choices a token. update_rate: how far a bias moves in one update, 0.001 in the
    paper. `expert_bias`: b, (E,). logits (n, E) -> Choice. After each step call `update` with the
    number of pairs that asked for each expert, summed over all ranks.
    """

    expert_bias: Tensor

    def __init__(self, n_experts: int, k: int, update_rate: float = 0.001) -> None:
        super().__init__()
        self.k, self.update_rate = k, update_rate
        # (E,)  saved in checkpoints, but not updated by the optimizer
        self.register_buffer("expert_bias", torch.zeros(n_experts))

    def forward(self, logits: Tensor) -> Choice:
        p = logits.softmax(-1)  # (n, E)
        experts = top_k_indices(p + self.expert_bias, self.k)  # (n, k)
        return Choice(experts, p.gather(1, experts), p)

    @torch.no_grad()
    def update(self, requested: Tensor) -> None:
        """b_e <- b_e + u * sign(mean load - load of e). requested: (E,), how many pairs asked for
        each expert.

        On one rank this is the layer's `last.requested`. On several ranks, pass the sum over all of
        them, because otherwise their biases diverge.
        """
        requested = requested.double()
        # b_e <- b_e + u sign(mean - requested_e)
        self.expert_bias += self.update_rate * (requested.mean() - requested).sign()


class SigmoidExpertBiasGate(ExpertBiasGate):
    """DeepSeek-V3's gate: it chooses the k experts with the highest s + b, where s =
    sigmoid(logits). Their weights are s, renormalised over these k.

    Arguments and `update` are those of ExpertBiasGate. `probabilities` are s divided by its sum
    over all experts.
    """

    def forward(self, logits: Tensor) -> Choice:
        s = logits.sigmoid()  # (n, E)
        experts = top_k_indices(s + self.expert_bias, self.k)  # (n, k)
        g = s.gather(1, experts)  # (n, k)
        # w_i = s_i / (s_1 + ... + s_k)
        return Choice(experts, g / g.sum(-1, keepdim=True), s / s.sum(-1, keepdim=True))
