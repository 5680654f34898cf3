"""Ring attention: the sequence is sharded over the ranks; queries stay where they are, and keys and
values are sent around the ring (Liu et al. 2023).

            step 0  step 1         step 2         cp = 3; (i, j): queries of rank i, keys of rank j
    rank 0  (0, 0)  (0, 2) unseen  (0, 1) unseen  a block that no query sees is forwarded, not
    rank 1  (1, 1)  (1, 0)         (1, 2) unseen  computed; while a rank computes, the next block
    rank 2  (2, 2)  (2, 1)         (2, 0)         is in flight

B sequences of T tokens, of which this rank has t; H query heads in K groups of G = H/K; head width
d; cp ranks.

Softmax needs all scores of a row, but they arrive block by block. So we keep, per query, the
largest score so far m, the sum l of exp(score - m), and the sum o of exp(score - m) v. When a block
raises the maximum to m', the earlier sums are multiplied by exp(m - m') (Milakov & Gimelshein
2018):

    S = q k_j^T / sqrt(d)      m' = max(m, max_j S)      P = exp(S - m')
    l <- l exp(m - m') + sum_j P        o <- o exp(m - m') + P v_j        at the end: out = o / l

The exercise can be solved with less code by using `merge_attention`.

Memory: the largest tensor is (B, H, t, t), 1/cp^2 of plain attention's. What is kept for backward
is O(t): q, k, v, out and the logarithm of each row's sum.

Backward of a block is `attend_backward`. Keys and values are sent around once more, followed by
their gradients. Those of block j start on rank j+1, every rank adds its part, and they end on rank
j, which owns them and adds its own. The last hop does not overlap with compute.

Sent by all ranks: in forward each rank sends all k and v shards but one, which are (cp-1) 2BKTd
elements in total; in backward twice that.

Source: Liu, Zaharia, Abbeel 2023, "Ring attention with blockwise transformers for near-infinite
context".
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from lib.backend import Group
from lib.tensor_parallel.layouts import rectangle
from lib.tensor_parallel.online_softmax import Attended, attend_backward, scores, weigh, wide
from lib.tensor_parallel.ring_exchange import RingTransfer, ring_shift


# exercise: lab3.ring_attention
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Sequence[Sequence[int]],
    group: Group = None,
    *,
    causal: bool = True,
) -> Tensor:
    """Attention over the full sequence, of which each rank has a shard. Returns (B, H, t, d),
    sharded like q.

    q (B, H, t, d); k, v (B, K, t, d): this rank's tokens; query head i uses key/value head i //
    (H/K). layout: [positions of rank 0, of rank 1, ...], from `layouts`; t is len(layout[rank]),
    and may differ by rank. causal: if True, a key later than the query is not seen; if False, all
    keys are. Sends: cp-1 messages to the right neighbour in forward, (cp-1) 2BKTd elements over all
    ranks, and twice as much in backward. Either every rank of the group runs backward, or none.
    Raises ValueError if shapes and layout do not fit.
    """
    return RingAttention.apply(q, k, v, layout, causal, group)


class RingAttention(torch.autograd.Function):
    """Forward and backward in one class: both send k and v around the ring once, and compute the
    same rectangles."""

    @staticmethod
    def forward(ctx, q, k, v, layout, causal, group):
        rank = dist.get_rank(group)
        check(q, k, v, layout, rank, dist.get_world_size(group))
        (B, H, t, _), K = q.shape, k.shape[1]
        # (B, K, G, t, d)  float32 where q is in 16 bits
        o = torch.zeros_like(wide(q)).unflatten(1, (K, -1))
        m, l = o.new_full((B, K, H // K, t), -math.inf), o.new_zeros((B, K, H // K, t))

        for owner, (k_j, v_j) in ring_shift(torch.stack([k, v]), _shapes(k, layout), group):
            a, b, *places = _block(layout[rank], layout[owner], causal)
            if b > 0:
                S = scores(q[..., a:, :], k_j[..., :b, :], *places)  # (B, K, G, rows, b)
                higher = torch.maximum(m[..., a:], S.amax(-1))  # (B, K, G, rows)  m'
                P = S.sub_(higher[..., None]).exp_()  # (B, K, G, rows, b)
                shrink = torch.exp(m[..., a:] - higher)  # (B, K, G, rows)  exp(m - m')
                l[..., a:] = l[..., a:] * shrink + P.sum(-1)
                o[..., a:, :] = o[..., a:, :] * shrink[..., None] + weigh(P, v_j[..., :b, :])
                m[..., a:] = higher

        out = (o / l[..., None]).flatten(1, 2).to(q.dtype)  # (B, H, t, d)
        log_sum = (m + l.log()).flatten(1, 2)  # (B, H, t)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.layout, ctx.causal, ctx.group = layout, causal, group
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out):
        # (B, H, t, d), (B, K, t, d) twice, (B, H, t, d), (B, H, t)
        q, k, v, out, log_sum = ctx.saved_tensors
        layout, group = ctx.layout, ctx.group
        rank = dist.get_rank(group)
        d_q, shapes = torch.zeros_like(wide(q)), _shapes(k, layout)

        own = passing = None
        for owner, (k_j, v_j) in ring_shift(torch.stack([k, v]), shapes, group):
            d_kv = q.new_zeros(shapes[owner])  # (2, B, K, t of owner, d)  partial: my queries' part
            a, b, *places = _block(layout[rank], layout[owner], ctx.causal)
            if b > 0:
                whole = Attended(out[..., a:, :], log_sum[..., a:])
                d_q_j, *d_kv_j = attend_backward(
                    q[..., a:, :],
                    k_j[..., :b, :],
                    v_j[..., :b, :],
                    whole,
                    d_out[..., a:, :],
                    *places,
                )
                d_q[..., a:, :] += d_q_j
                d_kv[..., :b, :] = torch.stack(d_kv_j)
            if owner == rank:
                own = d_kv
                continue  # stays here: it is added when the other ranks' parts have arrived
            if passing is not None:
                d_kv += passing.arrived()  # the parts of ranks owner+1 ... rank-1
            passing = RingTransfer(d_kv, q.new_empty(shapes[owner - 1]), group)
        d_k, d_v = own if passing is None else own + passing.arrived()
        return d_q.to(q.dtype), d_k, d_v, None, None, None


def _block(queries, keys, causal):
    """(a, b, and if causal also the positions of queries[a:] and keys[:b]): only queries[a:] see
    any of the keys, and only keys[:b] are seen; b is 0 if nothing is seen."""
    if not causal:
        return 0, len(keys)
    a, b = rectangle(queries, keys)
    return a, b, queries[a:], keys[:b]


def _shapes(k, layout):
    """The shape of each rank's k and v together."""
    B, K, _, d = k.shape
    return [(2, B, K, len(positions), d) for positions in layout]


def check(q, k, v, layout, rank, world_size):
    """Raises ValueError if this rank's q (B, H, t, d), k and v (B, K, t, d) do not fit the layout
    or each other."""
    (B, H, t, d), K = q.shape, k.shape[1]
    if len(layout) != world_size or len(layout[rank]) != t:
        raise ValueError(
            f"rank {rank} of {world_size} has {t} tokens, but the layout gives "
            f"{[len(p) for p in layout]}: make the layout for this group and the full sequence, "
            "and give each rank its positions of it"
        )
    if k.shape != v.shape or k.shape != (B, K, t, d) or H % K:
        raise ValueError(
            f"q {tuple(q.shape)} with k {tuple(k.shape)} and v {tuple(v.shape)}: k and v have (B, "
            f"K, t, d) = ({B}, K, {t}, {d}), and K divides {H}"
        )
