"""Attention over some of the keys, and what it takes to make attention over all of them of such parts.

    keys 0..3    out_1, log_sum_1    } merge_attention      out, log_sum of keys 0..7, exactly
    keys 4..7    out_2, log_sum_2    }

For one query with scores s_j over the keys of a part:

    log_sum = log(sum_j exp(s_j))        out = sum_j exp(s_j - log_sum) v_j

A part's exponentials add up to exp(log_sum), so that is what its `out` weighs among all:

    log_sum = log(exp(log_sum_1) + exp(log_sum_2))        out = sum_i exp(log_sum_i - log_sum) out_i

No score is needed again, and nothing is ever as large as T x T. A part in which a query sees no key has log_sum -inf.
`ring_attention.py` keeps the largest score and the sum apart instead, which loses fewer digits where scores are large.

Sources: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Rabe & Staats 2021, "Self-attention
does not need O(n^2) memory". FlashAttention (Dao et al. 2022) goes over its blocks so, ring attention over the ranks.
"""

import math
from typing import NamedTuple

import torch


class Attended(NamedTuple):
    """Attention of some queries over some keys; the dimensions before t may be any."""

    out: torch.Tensor  # (..., t, d)
    log_sum: torch.Tensor  # (..., t)  of the exponentials of the scores


# exercise: lab3.merge_attention
def merge_attention(one, other):
    """Attention over the keys of both, as if it had been computed at once: two Attended -> Attended, of new tensors.

    A query that has seen no key has log_sum -inf there, and weighs nothing. No gradient is promised.
    """
    log_sum = torch.logaddexp(one.log_sum, other.log_sum)  # (..., t)
    seen = log_sum.where(log_sum > -math.inf, 0.0)  # else exp(-inf - -inf) is nan
    weights = [(part.log_sum - seen).exp()[..., None] for part in (one, other)]  # (..., t, 1) each
    return Attended(weights[0] * one.out + weights[1] * other.out, log_sum)
