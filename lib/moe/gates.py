"""Gates: they decide from the router's logits which experts a token goes to. There are three:

    logits (n, E) --softmax--> p      one token's p, E = 4:   .50  .30  .15  .05

    switch_gate     the best one, weighted by its probability     e0                 .50
    top_k_gate      the k best, weights renormalised to 1         e0 e1              .625 .375
    gshard_gate     the two best; the smaller the weight of the   e0 (e1)            .625 (.375)
                    second, the more rarely it is taken           e1 with probability 2 * .375 = .75

The index of an expert has no gradient, so the router learns through the weights alone. Therefore
the weight of switch_gate must not be renormalised: p / p = 1 has no gradient either. For the same
reason top_k_gate with k = 1 teaches the router nothing.

n tokens of one set, E experts, k choices a token.

Sources: top-k: Shazeer et al. 2017; Switch: Fedus et al. 2021, section 2.1; GShard: Lepikhin et al.
2020, Algorithm 1.
"""

import torch
from torch import Tensor

from lib.moe.choice import Choice, top_k_indices


# exercise: lab5.switch_gate
def switch_gate(logits: Tensor) -> Choice:
    """Choose each token's best expert, weighted by its probability. logits (n, E) -> Choice
    with k = 1."""
    p = logits.softmax(-1)  # (n, E)
    experts = top_k_indices(logits, 1)  # (n, 1)
    return Choice(experts, p.gather(1, experts), p)


# exercise: lab5.top_k_gate
def top_k_gate(logits: Tensor, k: int) -> Choice:
    """Choose each token's k best experts, with weights renormalised to add up to 1. logits (n, E)
    -> Choice.

    Raises ValueError for a k outside 1 to E.
    """
    p = logits.softmax(-1)  # (n, E)
    experts = top_k_indices(logits, k)  # (n, k)
    g = p.gather(1, experts)  # (n, k)
    # w_i = g_i / (g_1 + ... + g_k)
    return Choice(experts, g / g.sum(-1, keepdim=True), p)


# exercise: lab5.gshard_gate
def gshard_gate(logits: Tensor, uniform: Tensor) -> Choice:
    """Choose the two best experts, the second with probability min(1, 2 w_2), where w_2 is its
    renormalised weight.

    logits: (n, E), E >= 2. uniform: (n,), a number in [0, 1) for each token, from
    `uniform_per_token`. Returns a Choice with k = 2. If the second is not taken, its expert is -1
    and its weight 0; the first keeps w_1 = g_1 / (g_1 + g_2), as in the paper. Raises ValueError
    for a uniform that is not (n,).
    """
    if uniform.shape != logits.shape[:1]:
        raise ValueError(
            f"uniform {tuple(uniform.shape)}, logits {tuple(logits.shape)}: one number for each "
            f"token"
        )
    experts, weights, p = top_k_gate(logits, 2)
    taken = uniform < 2 * weights.detach()[:, 1]  # (n,)  always True if both are equally good
    taken = torch.stack([torch.ones_like(taken), taken], dim=1)  # (n, 2)
    return Choice(experts.where(taken, -1), weights.where(taken, 0.0), p)


def uniform_per_token(index: Tensor, seed: int) -> Tensor:
    """A random number in [0, 1) for each token, fixed by its index and the seed: (n,) int64 -> (n,)
    float64.

    index: the tokens' indices in the entire run, over all ranks and steps. A token draws the same
    number whichever rank it is on and whatever was drawn before, so one process and many ranks take
    the same samples. seed: use a different one for each layer.
    """
    # A counter-based generator (Salmon et al. 2011): the bits are a hash of seed and index, and no
    # state depends on earlier draws. The index is hashed in two halves of 32 bits.
    bits = scramble(torch.full_like(index, seed & MASK))
    bits = scramble(bits ^ (index >> 32))
    bits = scramble(bits ^ (index & MASK))
    return bits.double() / 2**32


MASK = 2**32 - 1


def scramble(x):
    """A hash of 32 bits, in int64 (splitmix32): each input bit changes about half of the output
    bits."""
    x = (x + 0x9E3779B9) & MASK
    x = (
        (x ^ (x >> 16)) * 0x21F0AAAD
    ) & MASK  # both factors are below 2**31, so products fit in 63 bits
    x = ((x ^ (x >> 15)) * 0x735A2D97) & MASK
    return x ^ (x >> 15)
