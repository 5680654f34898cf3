"""Attention over a sequence that is cut over the ranks: the cases, and what one process makes of
the whole.

    ring_attention(q, k, v, layout, group, causal=)  q (B, H, t, d), k and v (B, K, t, d):
                                                     this rank's tokens
    ulysses_attention(...)                           -> (B, H, t, d), sharded like q

Expected are plain attention of the whole sequence and its gradients; beside them what the queries
of each rank give to the gradients of k and v, and the keys of each rank to that of q.
"""

import functools
from dataclasses import dataclass, replace

import torch

from lib.check import forward_backward as fb
from lib.check.cases import draw
from lib.tensor_parallel.layouts import contiguous, zigzag
from lib.tensor_parallel.online_softmax import Attended, attend_backward

B, WIDTH = 2, 2
FULL, CAUSAL = "full", "causal"


@dataclass(frozen=True)
class Cut(fb.Turn):
    """T tokens over the case's ranks, H query heads and K key/value heads; n: numbers in
    all of k and v."""

    T: int = 0
    H: int = 0
    K: int = 0

    @property
    def causal(self):
        return self.what.startswith(CAUSAL)

    def of(self, number):
        """The call of this number: of two under way, the second has another T and fewer heads."""
        return self if number == 0 else replace(self, T=self.T // 2, H=self.H // 2, K=self.K // 2)


def _cut(members, sort, T, H, K, pairs=()):
    what = f"{sort}, {T} tokens, {H} heads" + (f" on {K}" if K < H else "")
    return Cut(members, n=2 * B * K * T * WIDTH, what=what, pairs=pairs, T=T, H=H, K=K)


def backward(case):
    return replace(case, what=f"{case.what}, backward")


TWO, THREE, FOUR, SOME = fb.GROUPS
WHOLE = _cut(FOUR, FULL, 16, 4, 4)
PLAIN = (
    _cut(TWO, FULL, 8, 4, 4),
    _cut(TWO, CAUSAL, 8, 4, 2),
    _cut(FOUR, CAUSAL, 16, 4, 2),
    WHOLE,
    _cut(FOUR, CAUSAL, 8, 4, 1),
    _cut(THREE, CAUSAL, 13, 6, 3),
    _cut(SOME, CAUSAL, 8, 4, 2),
)
UNDER_WAY = _cut(FOUR, CAUSAL, 16, 8, 4, pairs=((0, 2), (1, 3)))
ALONE = _cut((2,), CAUSAL, 4, 2, 1)
CASES = (*PLAIN, UNDER_WAY, ALONE)
BACKWARD = tuple(map(backward, CASES))
ALL = (*CASES, *BACKWARD)  # as the ledger has them
SAY = "1, 2, 3, 4 ranks, a subgroup; 4 heads on 4, 2, 1"


def layout_of(case, N):
    """Zigzag where it is causal, else contiguous."""
    return zigzag(case.T, N) if case.causal else contiguous(case.T, N)


def truth(case, N, rank, number):
    """What this rank is given in the call, and what comes of it."""
    layout, inputs, out, dy, gradients, parts = _whole(case.of(number), N, number)
    # as split_heads gives it
    mine = lambda x: x[:, :, layout[rank]].transpose(1, 2).contiguous().transpose(1, 2)
    return fb.Truth(
        {name: mine(x) for name, x in inputs.items()},
        mine(out),
        mine(dy),
        {name: mine(x) for name, x in gradients.items()},
        {name: [mine(x) for x in of_ranks] for name, of_ranks in parts.items()},
        (layout,),
        {"causal": case.causal},
    )


@functools.cache
def _whole(case, N, number):
    layout, heads = layout_of(case, N), {"q": case.H, "k": case.K, "v": case.K}
    drawn = lambda i, h: draw(
        case.seed + 10 * case.T + case.K + 1000 * (5 * number + i), B, h, case.T, WIDTH
    ).cpu()
    inputs = {
        name: drawn(i, h) * (0.25 if name == "q" else 1)
        for i, (name, h) in enumerate(heads.items())
    }
    q, k, v = (x.clone().requires_grad_() for x in inputs.values())
    dy, (out, log_sum) = drawn(3, case.H), _plain(q, k, v, case.causal)
    out.backward(dy)
    whole, everywhere = Attended(out.detach(), log_sum.detach()), list(range(case.T))
    parts = {name: [] for name in inputs}
    for mine in layout:
        places = (everywhere, mine) if case.causal else ()
        keys = (x[:, :, mine] for x in (inputs["k"], inputs["v"]))
        parts["q"].append(attend_backward(inputs["q"], *keys, whole, dy, *places)[0])
        from_here = torch.zeros_like(dy)
        from_here[:, :, mine] = dy[:, :, mine]
        places = (everywhere, everywhere) if case.causal else ()
        _, dk, dv = attend_backward(*inputs.values(), whole, from_here, *places)
        parts["k"].append(dk)
        parts["v"].append(dv)
    return layout, inputs, whole.out, dy, {"q": q.grad, "k": k.grad, "v": v.grad}, parts


def _plain(q, k, v, causal):
    """Attention of the whole sequence, by all its scores."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    S = q @ k.mT / WIDTH**0.5  # (B, H, T, T)
    S = (
        S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool, device="cpu").triu(1), -torch.inf)
        if causal
        else S
    )
    return Attended(S.softmax(-1) @ v, S.logsumexp(-1))
