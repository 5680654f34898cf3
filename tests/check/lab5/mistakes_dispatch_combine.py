"""Known mistakes in dispatch and combine."""

import torch
from mistakes import Mistake


def _all(hint, *answers):
    return [Mistake(hint, answer) for answer in answers]


def _added(rows, index, n):
    """rows added up at their indices: (n, D)"""
    return rows.new_zeros(n, rows.shape[1]).index_add(0, index, rows)


def _weighted(rows, r):
    return r.weight[:, None] * rows


def _one_of_each(rows, token, n, last=True):
    """Of each token's rows the last, or the first: (n, D)"""
    pairs = list(enumerate(token.tolist()))
    at = {t: i for i, t in (pairs if last else pairs[::-1])}
    return (
        torch.stack([rows[at[t]] if t in at else 0 * rows.sum(0) for t in range(n)])
        if n
        else rows[:0]
    )


def _count(r, n, rows):
    return torch.bincount(r.token, minlength=n)[:, None].to(rows)


def _total(r, n):
    return torch.zeros(n, 1, dtype=r.weight.dtype).index_add(0, r.token, r.weight[:, None])


def _end(r, n):
    return int(r.token.max()) + 1 if len(r.token) else n


DISPATCH = (
    Mistake("weighted already", lambda x, r: _weighted(x[r.token], r)),
    *_all("the wrong index",
          lambda x, r: x[r.expert.clamp(max=len(x) - 1)] if len(x) else x,
          lambda x, r: x[r.slot.clamp(max=len(x) - 1)] if len(x) else x),
    *_all("each token once",
          lambda x, r: x[r.token.unique()], lambda x, r: x.clone(),
          lambda x, r: x.repeat(2, 1)[: len(r.token)]),
    *_all("another order",
          lambda x, r: x[r.token.sort().values],
          lambda x, r: x[r.token[r.token.sort(descending=True).indices]]),
)  # fmt: skip
COMBINE = (
    *_all("the last wins",
          lambda rows, r, n: _one_of_each(_weighted(rows, r), r.token, n),
          lambda rows, r, n: _one_of_each(_weighted(rows, r), r.token, n, last=False),
          lambda rows, r, n: _one_of_each(rows, r.token, n)),
    Mistake("not weighted", lambda rows, r, n: _added(rows, r.token, n)),
    Mistake("weighted twice",
            lambda rows, r, n: _added(_weighted(_weighted(rows, r), r), r.token, n)),
    *_all("divided",
          lambda rows, r, n: _mean(rows, r, n, 1), lambda rows, r, n: _mean(rows, r, n, 0),
          lambda rows, r, n: _added(rows, r.token, n) / _count(r, n, rows).clamp(min=1),
          lambda rows, r, n: _added(_weighted(rows, r), r.token,
              n) / (_end(r._replace(token=r.expert), 0) or 1)),
    *_all("weights renormalised",
          lambda rows, r, n: _added(_weighted(rows, r) / _total(r, n)[r.token], r.token, n),
          lambda rows, r, n: _added(_weighted(rows, r), r.token, n) / _total(r, n)),
    Mistake("not zeros", lambda rows, r, n: _added(_weighted(rows, r), r.token, n) + 1),
    Mistake("tokens left out",
            lambda rows, r, n: _weighted(rows, r) if len(rows) else rows.new_zeros(n,
                rows.shape[1])),
    *_all("rows of other tokens",
          lambda rows, r, n: _added(_weighted(rows, r), r.token.sort().values, n),
          lambda rows, r, n: _added(_weighted(rows[r.token.argsort(stable=True)], r), r.token, n),
          lambda rows, r, n: _added(_weighted(rows, r)[r.token.argsort(stable=True)], r.token, n),
          lambda rows, r, n: _added(_weighted(rows, r), r.slot.clamp(max=max(n - 1, 0)), n),
          lambda rows, r, n: _added(_weighted(rows, r), r.expert.clamp(max=max(n - 1, 0)), n)),
)  # fmt: skip


def _mean(rows, r, n, least):
    return _added(_weighted(rows, r), r.token, n) / _count(r, n, rows).clamp(min=least)


MISTAKES = {"dispatch": DISPATCH, "combine": COMBINE}
