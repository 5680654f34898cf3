"""What usual mistakes make of the loss, and of its gradient: {words: tensor}, for `compare.wrong`.

z: (B, T, V), the whole logits. N ranks, V/N of the V on each. m: the largest logit. row: the target's place among a
rank's own, 0 where it is another's.
"""

import torch
import torch.nn.functional as F

LOCAL = "the loss of a softmax over this rank's words alone"
OWN_MAX = "what comes if each rank takes off its own largest logit"
ONE_SIDE = "what comes if m is taken off the sum's logits only, or off the target's only"
NOT_MINE = "what comes if ranks that do not have the target add a logit of theirs"
NO_SUM = "what comes if the target's logit stays on its rank, and is 0 on the others"
NOT_MEAN = "the sum over the tokens, not the mean"
TIMES_N = "taken N times, or divided by N"

NO_ONE = "p alone: the 1 of the target is not taken off"
ONES = "p less 1 on every rank, also where the target is another rank's"
LOCAL_P = "that of a softmax over this rank's words alone"
NO_MEAN = "BT x expected: that of the sum over the tokens"
IGNORES = "that of the loss itself, not times the gradient that comes in"
MAX_TOO = "expected plus what flows through the largest logit"


def losses(z, targets, rank, N):
    if N == 1:
        return {NOT_MEAN: F.cross_entropy(z.flatten(0, 1), targets.flatten(), reduction="sum")}
    rows, parts = z.shape[-1] // N, z.chunk(N, -1)
    masked, mine = zip(*(_own(targets, r, rows) for r in range(N)), strict=True)
    local = [part.logsumexp(-1) for part in parts]  # (B, T) of each rank
    right = z.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (B, T)
    at = [part.gather(-1, row.unsqueeze(-1)).squeeze(-1) for part, row in zip(parts, masked, strict=True)]
    modulo = [part.gather(-1, (targets % rows).unsqueeze(-1)).squeeze(-1) for part in parts]
    own = [torch.where(m, a, 0) for m, a in zip(mine, at, strict=True)]  # the target's logit, or 0
    total, m, tops = z.logsumexp(-1), z.amax(-1), [part.amax(-1) for part in parts]
    less_own = torch.stack([lse - top for lse, top in zip(local, tops, strict=True)]).logsumexp(0)
    own_less = sum(torch.where(mi, a - top, 0) for mi, a, top in zip(mine, at, tops, strict=True))
    want = (total - right).mean()
    several = {
        LOCAL: [local[rank] - at[rank], local[rank] - own[rank], local[rank] - modulo[rank], local[rank] - right,
                sum(local) - right, sum(map(torch.sub, local, at)), sum(local) / N - right],
        OWN_MAX: [less_own - own_less, less_own - (right - tops[rank])],
        ONE_SIDE: [total - m - right, total - (right - m), less_own - right],
        NOT_MINE: [total - sum(at), total - sum(modulo), total - at[rank], total - modulo[rank],
                   total - m - sum(a - m for a in at), total - m - sum(a - m for a in modulo),
                   total - m - sum(torch.where(mi, a - m, -m) for mi, a in zip(mine, at, strict=True))],
        NO_SUM: [total - own[rank], total - m - torch.where(mine[rank], right - m, 0)],
        NOT_MEAN: [(total - right).sum() * torch.ones_like(total)],
        TIMES_N: [want * N * torch.ones_like(total), want / N * torch.ones_like(total)],
    }  # fmt: skip
    # Words are keys: a number of spaces behind them tells several tensors of one mistake apart.
    return {words + " " * i: per_token.mean() for words, all_ in several.items() for i, per_token in enumerate(all_)}


def gradients(z, targets, rank, N, grad):
    tokens, rows = targets.numel(), z.shape[-1] // N
    part = z.chunk(N, -1)[rank]
    row, mine = _own(targets, rank, rows)
    p = z.softmax(-1).chunk(N, -1)[rank]  # (B, T, V/N)
    one = F.one_hot(row, rows).to(z.dtype)  # (B, T, V/N)  at row 0 where the target is another rank's
    right = one * mine.unsqueeze(-1)
    largest = (part == z.amax(-1, keepdim=True)).to(z.dtype)
    back = right.sum(-1, keepdim=True) - p.sum(-1, keepdim=True)  # what reaches m on this rank, but for its own part
    scale = grad / tokens
    known = {
        NO_ONE: scale * p,
        NO_MEAN: grad * (p - right),
        IGNORES: (p - right) / tokens,
        IGNORES + " ": p - right,
        "zeros": 0 * p,
    }
    if N > 1:
        local_p = part.softmax(-1)
        known |= {
            ONES: scale * (p - one),
            LOCAL_P: scale * (local_p - right),
            LOCAL_P + " ": scale * (local_p - one),
            MAX_TOO: scale * (p - right + back * largest),
            f"{N} x expected": N * scale * (p - right),
            f"expected / {N}": scale * (p - right) / N,
        }
    return known


def _own(targets, rank, rows):
    """(row, mine): the target's place among the rank's own, 0 for others; has it the target? Both (B, T)."""
    row = targets - rank * rows
    mine = (row >= 0) & (row < rows)
    return torch.where(mine, row, 0), mine
