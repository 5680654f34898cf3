"""Attention over some of the keys, and how such partial results are merged into attention over all
keys.

    keys 0..3    out_1, log_sum_1    } merge_attention      out, log_sum of keys 0..7, exactly
    keys 4..7    out_2, log_sum_2    }

For one query with scores s_j over the keys of a part:

    log_sum = log(sum_j exp(s_j))        out = sum_j exp(s_j - log_sum) v_j

A part's exponentials add up to exp(log_sum), so this is the weight of its `out` in the sum over the
parts:

    log_sum = log(exp(log_sum_1) + exp(log_sum_2))        out = sum_i exp(log_sum_i - log_sum) out_i

No score is needed again, and nothing is ever as large as T x T. A part in which a query sees no key
has log_sum -inf. `ring_attention.py` stores the largest score and the sum separately instead, which
loses fewer digits if scores are large.

Backward can be computed part by part as well. Once log_sum over all keys is known, a block's
probabilities are P = exp(S - log_sum); with delta = sum_d(dout * out), a number per query (Dao et
al. 2022):

    dv = P^T dout     dS = P * (dout v^T - delta)     dq += dS k / sqrt(d)     dk = dS^T q / sqrt(d)

If the inputs have 16 bits, scores and all sums are kept in 32, as in FlashAttention. bfloat16 has 8
bits of precision, so rounding a score between 4 and 8 changes it by up to 1/64, and its exponential
by up to 1.6 per cent.

Sources: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Rabe & Staats 2021,
"Self-attention does not need O(n^2) memory". FlashAttention (Dao et al. 2022) does this over its
blocks, and ring attention over the ranks.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Attended(NamedTuple):
    """Attention of some queries over some keys; any dimensions may come before t."""

    out: torch.Tensor  # (..., t, d)
    # (..., t)  log of the sum of exp(score); float32 if q has 16 bits
    log_sum: torch.Tensor


def without_autocast(x):
    """A context in which matmuls with `x` are computed in the dtypes of their inputs, and not in
    autocast's."""
    kind = x.device.type
    return (
        torch.autocast(kind, enabled=False)
        if torch.amp.is_autocast_available(kind)
        else contextlib.nullcontext()
    )


def wide(x):
    """x in float32 if it has 16 bits, and otherwise x. Sums are kept in this dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def scores(q, k, queries=None, keys=None):
    """q k^T / sqrt(d), -inf where the key is later than the query: (B, K, G, t, s), in
    float32 or more."""
    q, k = wide(q), wide(k)
    with without_autocast(q):
        S = torch.einsum("bkgtd,bksd->bkgts", q.unflatten(1, (k.shape[1], -1)), k) / math.sqrt(
            q.shape[-1]
        )
    if keys is not None and max(keys) > min(queries):  # otherwise every query sees every key
        # (t,), (s,)
        i, j = (torch.tensor(positions, device=q.device) for positions in (queries, keys))
        S.masked_fill_(j > i[:, None], -math.inf)
    return S


def weigh(P, v):
    """P v: the values (B, K, s, d), weighted by P (B, K, G, t, s) -> (B, K, G, t, d), in float32 or
    more."""
    with without_autocast(v):
        return torch.einsum("bkgts,bksd->bkgtd", P, wide(v))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
) -> Attended:
    """Attention over these keys alone: q (B, H, t, d), k and v (B, K, s, d) -> Attended, (B, H, t,
    d) and (B, H, t).

    Query head i uses key/value head i // (H/K). queries, keys: positions in the sequence, t and s
    of them; a key later than the query is not seen. None: all keys are seen. You can differentiate
    through it, but autograd then keeps the scores.
    """
    S = scores(q, k, queries, keys)  # (B, K, G, t, s)
    m = S.detach().amax(-1)  # (B, K, G, t)
    m = m.where(m > -math.inf, 0.0)  # else exp(-inf - -inf) is nan
    P = S.sub_(m[..., None]).exp_()  # (B, K, G, t, s)
    l = P.sum(-1)  # (B, K, G, t)
    some = l.where(l > 0, 1.0)
    out = weigh(P, v) / some[..., None]  # (B, K, G, t, d)
    return Attended(
        out.flatten(1, 2).to(v.dtype), (m + some.log()).masked_fill(l == 0, -math.inf).flatten(1, 2)
    )


def attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    whole: Attended,
    d_out: Tensor,
    queries: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What these keys add to the gradient of q, and what these queries add to those of k and v:
    (dq, dk, dv).

    whole: the Attended of q over all keys, of which these are some; d_out (B, H, t, d): the
    gradient of whole.out. The other arguments are those of `attend`. The results are in float32 if
    q has 16 bits, because they are parts of sums.
    """
    K, d = k.shape[1], k.shape[-1]
    q, k, v, out, d_out = (wide(x) for x in (q, k, v, whole.out, d_out))
    grouped = lambda x: x.unflatten(1, (K, -1))  # (B, H, ...) -> (B, K, G, ...)
    # (B, K, G, t, s)
    P = scores(q, k, queries, keys).sub_(grouped(whole.log_sum)[..., None]).exp_()
    # (B, K, G, t), (.., t, d) twice
    delta, d_out, q = (grouped(x) for x in ((d_out * out).sum(-1), d_out, q))
    with without_autocast(q):
        dS = P * (torch.einsum("bkgtd,bksd->bkgts", d_out, v) - delta[..., None]) / math.sqrt(d)
        dq, dk = torch.einsum("bkgts,bksd->bkgtd", dS, k), torch.einsum("bkgts,bkgtd->bksd", dS, q)
        return dq.flatten(1, 2), dk, torch.einsum("bkgts,bkgtd->bksd", P, d_out)


# exercise: lab3.merge_attention
def merge_attention(one: Attended, other: Attended) -> Attended:
    """Merge attention over two sets of keys into attention over both, as if it had been computed at
    once: two Attended -> Attended, of new tensors.

    A query that has seen no key of a set has log_sum -inf there, and that set has no weight for it.
    The result need not have a gradient.
    """
    log_sum = torch.logaddexp(one.log_sum, other.log_sum)  # (..., t)
    seen = log_sum.where(log_sum > -math.inf, 0.0)  # else exp(-inf - -inf) is nan
    weights = [(part.log_sum - seen).exp()[..., None] for part in (one, other)]  # (..., t, 1) each
    return Attended(weights[0] * one.out + weights[1] * other.out, log_sum)
