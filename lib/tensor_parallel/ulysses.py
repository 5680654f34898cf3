"""Ulysses: attention over a sharded sequence, by exchanging sequence shards for heads and back
(Jacobs et al. 2023).

    q, k, v  all heads of my tokens  --all-to-all-->  all tokens of my heads  ordinary attention
    out      all heads of my tokens  <--all-to-all--  all tokens of my heads

             tokens 0 1   2 3          tokens 0 1  2 3  cp = 2, H = 4; r0, r1: the rank that has it
    head 0          r0    r1                  r0   r0
    head 1          r0    r1    ---->         r0   r0   each rank sends half of its own, (cp-1)/cp
    head 2          r0    r1                  r1   r1
    head 3          r0    r1                  r1   r1

cp must divide H, so it is at most the number of heads. Of K key/value heads each rank has K/cp. If
K < cp, a head is sent to each of the cp/K ranks whose query heads read it, and its gradient is the
sum of theirs, as if there were K' = max(K, cp) key/value heads.

`gathered_attention` is an alternative, used to train Llama 3: it gathers the keys and values of all
tokens on every rank, and the queries stay where they are.

Sent by all ranks, in units of 2BTd elements; for B sequences of T tokens, head width d:

               forward                  backward                 a rank holds
    ring       (cp-1) K                 2 (cp-1) K               a block of keys: T/cp tokens
    gathered   (cp-1) K                 (cp-1) K                 all keys, T tokens, of K heads
    Ulysses    (cp-1) (H + K') / cp     the same                 all tokens of H/cp and K'/cp heads

In forward Ulysses sends less than the others if (H + K')/cp < K; for K >= cp that means cp > H/K +
1. However, its messages are sent before and after attention, so none of them overlaps with it,
whereas the ring sends while blocks are computed.

Sources: Jacobs et al. 2023, "DeepSpeed Ulysses: system optimizations for enabling training of
extreme long sequence transformer models"; Dubey et al. 2024, "The Llama 3 herd of models", section
3.3.2 (gathered).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives
from lib.backend import Collective, Group
from lib.tensor_parallel.online_softmax import attend
from lib.tensor_parallel.ring_attention import check
from lib.tensor_parallel.sequence import gather_sequence


# exercise: lab3.ulysses_attention
def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Sequence[Sequence[int]],
    group: Group = None,
    all_to_all: Collective = collectives.all_to_all,
    *,
    causal: bool = True,
) -> Tensor:
    """Attention over the full sequence, of which each rank has a shard. Returns (B, H, t, d),
    sharded like q.

    The arguments are `ring_attention`'s. all_to_all(rows, group, send_counts, recv_counts) works on
    dim 0. Sends: forward all-to-alls of q, of k and v (each of max(K, cp) heads), and of the
    result; backward the same. Raises ValueError if shapes and layout do not fit, if cp does not
    divide H, or if neither of cp and K divides the other.
    """
    rank, cp = dist.get_rank(group), dist.get_world_size(group)
    check(q, k, v, layout, rank, cp)
    H, K = q.shape[1], k.shape[1]
    if H % cp or (K % cp and cp % K):
        raise ValueError(
            f"{H} query heads on {K} key/value heads, cp={cp} ranks: each rank has H/cp heads, so "
            f"cp divides H, and cp divides K or K divides cp; use fewer ranks, or ring attention"
        )
    if cp > K:
        # (B, cp, t, d)  a head for each rank
        k, v = (x.repeat_interleave(cp // K, 1) for x in (k, v))
    exchange = lambda x, to_heads: _Exchange.apply(x, to_heads, layout, group, all_to_all)
    q, k, v = (exchange(x, True) for x in (q, k, v))  # (B, H/cp, T, d), (B, K'/cp, T, d) twice
    # positions of the tokens in the order received
    order = [position for positions in layout for position in positions]
    out = attend(q, k, v, *((order, order) if causal else ())).out  # (B, H/cp, T, d)
    return exchange(out, False)


class _Exchange(torch.autograd.Function):
    """Sequence shards for heads, or back; each is the other's backward."""

    @staticmethod
    def forward(ctx, x, to_heads, *how):
        ctx.to_heads, ctx.how = to_heads, how
        return _shards_for_heads(x, *how) if to_heads else _heads_for_shards(x, *how)

    @staticmethod
    def backward(ctx, d_y):
        return _heads_for_shards(d_y, *ctx.how) if ctx.to_heads else _shards_for_heads(
            d_y, *ctx.how
        ), *[None] * 4


def _shards_for_heads(x, layout, group, all_to_all):
    """All heads of this rank's tokens -> all tokens of this rank's heads: (B, h, t, d) ->
    (B, h/cp, T, d)."""
    (B, h, t, d), cp = x.shape, len(layout)
    mine, tokens = h // cp, [len(positions) for positions in layout]
    # rank j's heads are rows j mine t to (j+1) mine t
    rows = x.permute(1, 2, 0, 3).reshape(h * t, B, d)
    came = all_to_all(rows, group, [mine * t] * cp, [mine * n for n in tokens])
    blocks = [block.view(mine, -1, B, d) for block in came.split([mine * n for n in tokens])]
    return torch.cat(blocks, 1).permute(2, 0, 1, 3)


def _heads_for_shards(x, layout, group, all_to_all):
    """All tokens of this rank's heads -> all heads of this rank's tokens: (B, h/cp, T, d)
    -> (B, h, t, d)."""
    (B, mine, _, d), cp = x.shape, len(layout)
    t, tokens = len(layout[dist.get_rank(group)]), [len(positions) for positions in layout]
    blocks = x.permute(1, 2, 0, 3).split(tokens, 1)  # (h/cp, tokens of j, B, d) for rank j
    rows = torch.cat([block.reshape(-1, B, d) for block in blocks])
    came = all_to_all(rows, group, [mine * n for n in tokens], [mine * t] * cp)
    return came.view(cp * mine, t, B, d).permute(2, 0, 1, 3)


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Sequence[Sequence[int]],
    group: Group = None,
    *,
    causal: bool = True,
) -> Tensor:
    """The same as `ring_attention`, with an all-gather of k and v, and a reduce-scatter of their
    gradients. All shards need the same length."""
    B, K, _, d = k.shape
    check(q, k, v, layout, dist.get_rank(group), dist.get_world_size(group))
    shards = torch.stack([k, v]).permute(1, 3, 0, 2, 4).flatten(2)  # (B, t, 2Kd)
    # (B, K, T, d) each
    k, v = gather_sequence(shards, group).view(B, -1, 2, K, d).permute(2, 0, 3, 1, 4)
    order = [position for positions in layout for position in positions]
    return attend(q, k, v, *((layout[dist.get_rank(group)], order) if causal else ())).out


def elements_sent(
    B: int, T: int, d: int, H: int, K: int, cp: int
) -> dict[str, tuple[float, float]]:
    """{way: (forward, backward)}, elements sent by all ranks together."""
    unit = 2 * B * T * d * (cp - 1)
    ulysses = unit * (H + max(K, cp)) // cp
    return {
        "ring": (unit * K, 2 * unit * K),
        "gathered": (unit * K, unit * K),
        "Ulysses": (ulysses, ulysses),
    }
