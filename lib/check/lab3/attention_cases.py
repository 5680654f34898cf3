"""The plain attention that ParallelAttention is cut from, its numbers, and what known mistakes make of them.

    H = 4 tp heads of width 2, K = H or K = 2 tp key/value heads; on a rank 4 heads, and 4 or 2 for keys and values

`attend` is attention on some of the heads, with a mistake if one is asked for.
"""

import math

import torch

from lib.check.lab1.cases import Case
from lib.check.lab3.groups import GROUPS, draw
from lib.model import Attention, Shape

HEAD_DIM, B, T = 2, 2, 3
FULL, GROUPED = "as many k/v heads", "grouped-query"
CASES = [
    Case("ParallelAttention", GROUPS[0], FULL),
    *(Case("ParallelAttention", members, GROUPED) for members in GROUPS),
    Case("ParallelAttention", GROUPS[2], FULL),
]
# (heads, key/value heads) that 4 ranks do not divide, though they divide the layers' widths
UNEVEN = {"6 heads": (6, 6), "2 key/value heads": (8, 2)}
UNEVEN_CASES = [Case("ParallelAttention", GROUPS[2], what) for what in UNEVEN]


def plain(case):
    """The whole attention, alike on all ranks, its weights of about 1/2."""
    heads = 4 * case.world_size
    kv_heads = heads if case.what == FULL else heads // 2
    heads, kv_heads = UNEVEN.get(case.what, (heads, kv_heads))
    attention = Attention(Shape(2, T, 1, HEAD_DIM * heads, heads, kv_heads)).double()
    for i, parameter in enumerate(attention.parameters()):
        parameter.data = draw(i, *parameter.shape) / 4
    return attention


def inputs(case):
    """x and the loss's weights, (B, T, D) each."""
    D = HEAD_DIM * 4 * case.world_size
    return draw(100, B, T, D) / 2, draw(101, B, T, D)


def own(weight, rank, N):
    """A rank's rows of a weight or bias."""
    return weight.detach().chunk(N)[rank]


def attend(attention, x, rank, N, d=HEAD_DIM, causal=True, neighbours=True):
    """The partial sum of rank's heads, (B, T, D).

    d: what the scores are divided by the root of; neighbours: do heads that stand together read the same keys?
    """
    layers = ((layer.weight, layer.bias) for layer in (attention.q, attention.k, attention.v))
    ys = [x @ own(weight, rank, N).T + own(bias, rank, N) for weight, bias in layers]
    q, k, v = (y.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for y in ys)  # (B, heads, T, d)
    share = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(share, 1) if neighbours else t.repeat(1, share, 1, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)  # (B, heads, T, T)
    if causal:
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1), -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)  # (B, T, heads * d)
    return mixed @ attention.out.weight.detach().chunk(N, 1)[rank].T


def mistaken(attention, x, want, rank, N):
    """{words: what a rank gives that makes this mistake}; `want` is right."""
    bias, heads = attention.out.bias.detach(), attention.q.out_features // HEAD_DIM
    summed = lambda **how: sum(attend(attention, x, r, N, **how) for r in range(N)) + bias
    known = {"expected without the bias": want - bias, "attention to later tokens too": summed(causal=False)}
    if attention.k.out_features < attention.q.out_features:
        known["what comes of query heads that read other key/value heads"] = summed(neighbours=False)
    for d in {HEAD_DIM * heads, HEAD_DIM * heads / N, HEAD_DIM * N, HEAD_DIM / N, heads, heads / N, 1} - {HEAD_DIM}:
        known[f"what comes of scores divided by sqrt({d:g}), not by sqrt(d) = sqrt({HEAD_DIM})"] = summed(d=d)
    if N > 1:
        partial = attend(attention, x, rank, N)
        known |= {
            f"expected with the bias {N} times": want + (N - 1) * bias,
            "this rank's partial sum": partial,
            "this rank's partial sum, plus the bias": partial + bias,
        }
    return known


def how_cut(weight, wholes, dim, rank, N):
    """(which layer, None) if `weight` is this rank's part of one of `wholes`, {name: weight}; else what it is instead.

    dim: on which a part is cut, 0 for q, k, v, and 1 for out.
    """
    nth = {2: "second", 3: "third"}.get(N, f"{N}th")
    mine = {name: whole.chunk(N, dim)[rank] for name, whole in wholes.items()}
    for name, part in mine.items():
        if weight.shape == part.shape and torch.equal(weight, part):
            return name, None
    for name, whole in wholes.items():
        heads = whole.unflatten(dim, (-1, HEAD_DIM))
        every = heads[rank::N].flatten(0, 1) if dim == 0 else heads[:, rank::N].flatten(1, 2)
        known = {
            f"the whole of {name}": whole,
            f"every {nth} head of {name}": every,
            f"every {nth} row or column of {name}": whole[rank::N] if dim == 0 else whole[:, rank::N],
            f"{name} cut on dim {1 - dim}": whole.chunk(N, 1 - dim)[rank],
        }
        known |= {f"rank {r}'s part of {name}": part for r, part in enumerate(whole.chunk(N, dim))}
        for words, other in known.items():
            if weight.shape == other.shape and torch.equal(weight, other):
                return name, words
    return None, f"no part of {', '.join(wholes)}"
