"""dispatch and combine beside their right answers: values, gradients, and the mistakes in words.

The routings have tokens with two pairs, with one and with none, the last token among them, and weights that do not add
up to 1.
"""

from functools import partial

import torch

from lib.check.framework import Problem
from lib.check.lab5.here import Told, alike, answered, changed, draw, first_wrong, slope
from lib.moe import Routing

D = 3


def _routing(token, expert, slot):
    numbers = [torch.tensor(values, dtype=torch.int64) for values in (token, expert, slot)]
    return Routing(*numbers, 0.1 + 0.8 * draw(len(token), len(token)).sigmoid())


CASES = {
    "tokens 0 1 | 0 3 2": (_routing([0, 1, 0, 3, 2], [0, 0, 2, 2, 2], [0, 1, 0, 1, 2]), 5),
    "tokens 2 5 1 | 4 | 1 0 2": (_routing([2, 5, 1, 4, 1, 0, 2], [0, 0, 0, 1, 3, 3, 3], [0, 1, 2, 0, 0, 1, 2]), 7),
    "tokens 0 1 2, one expert": (_routing([0, 1, 2], [1, 1, 1], [0, 1, 2]), 3),
}
EMPTY = {
    "3 tokens, no pairs": (_routing([], [], []), 3),
    "no tokens, no pairs": (_routing([], [], []), 0),
}


def one_by_one(rows, index, n):
    """rows added up at their indices: (n, D)"""
    y = torch.zeros(n, rows.shape[1], dtype=rows.dtype)
    for i, token in enumerate(index.tolist()):
        y[token] += rows[i]
    return y


def _known_rows(x, r, n):
    unique = r.token.unique()
    return lambda: [
        ("the token's number in the wrong place: the expert's", x[r.expert.clamp(max=n - 1)]),
        ("the token's number in the wrong place: the slot's", x[r.slot.clamp(max=n - 1)]),
        ("in token order", x[r.token.sort().values]),
        ("each token once", x[unique]),
        ("weighted", r.weight[:, None] * x[r.token]),
        ("x itself", x),
        ("the first tokens, in their order", x[: len(r.token)]),
    ]


def _known_sums(rows, r, n):
    w, token, m = r.weight[:, None], r.token, len(r.token)
    sums = one_by_one(w * rows, token, n)
    count = one_by_one(torch.ones(m, 1, dtype=rows.dtype), token, n)
    total = one_by_one(w, token, n)
    last, first = torch.zeros_like(sums), torch.zeros_like(sums)
    for i, t in enumerate(token.tolist()):
        last[t] = (w * rows)[i]
        first[t] = (w * rows)[i] if not first[t].any() else first[t]
    plain = one_by_one(rows, token, n)
    return lambda: [
        ("not weighted", plain),
        ("weighted twice", one_by_one(w * w * rows, token, n)),
        ("each token's last pair alone", last),
        ("each token's first pair alone", first),
        ("each token's last pair alone, not weighted", last_of_each(rows, token, n)),
        ("the mean over a token's pairs", sums / count.clamp(min=1)),
        ("the mean over a token's pairs", sums / count),
        ("the mean over a token's pairs", plain / count.clamp(min=1)),
        ("divided by the number of experts", sums / (int(r.expert.max()) + 1)),
        ("weights renormalised", sums / total.where(total > 0, 1.0)),
        ("weights renormalised", sums / total),
        ("rows of other tokens", one_by_one(w * rows, token.sort().values, n)),
        ("rows of other tokens", one_by_one(w * rows, r.slot.clamp(max=n - 1), n)),
        ("rows of other tokens", one_by_one(w * rows, r.expert.clamp(max=n - 1), n)),
        ("without the tokens behind the last that has a pair", sums[: int(token.max()) + 1]),
        ("without the tokens that have no pair", sums[count[:, 0] > 0]),
        ("the weighted rows, not added up", w * rows),
    ]


def last_of_each(rows, token, n):
    """rows where each token keeps the last of its pairs alone: (n, D)"""
    y = torch.zeros(n, rows.shape[1], dtype=rows.dtype)
    for i, t in enumerate(token.tolist()):
        y[t] = rows[i]
    return y


def measured(builds, fn, run):
    """{claim: Problem or None}. run: run_dispatch or run_combine."""
    seen = dict.fromkeys(("value", "gradient", "touched", "none"))
    values, gradients = [], []
    for where, (routing, n) in CASES.items():
        told = run(partial(answered, builds, fn, where), where, routing, n, gradients, seen)
        if isinstance(told, Problem):
            return seen | {"value": told}
        values.append(told)
    seen["value"] = first_wrong(values)
    problem = next((told for told in gradients if isinstance(told, Problem)), None)
    seen["gradient"] = problem or first_wrong(gradients)
    for where, (routing, n) in EMPTY.items():
        told = run(partial(answered, builds, fn, where), where, routing, n, [], seen)
        seen["none"] = seen["none"] or (told if isinstance(told, Problem) else first_wrong([told]))
    return seen


def run_dispatch(call, where, routing, n, gradients, seen):
    """dispatch in one case: the rows, beside what they should be. Adds to `gradients` and to seen["touched"]."""
    x = draw(n, n, D)
    leaf, given = x.clone().requires_grad_(), _copy(routing)
    x_given = leaf.clone()
    rows = call(x_given, given)
    if isinstance(rows, Problem):
        return rows
    now, before = {"x": x_given, **given._asdict()}, {"x": x, **routing._asdict()}
    seen["touched"] = seen["touched"] or changed(where, now, before)
    want = x[routing.token]
    if alike(rows, want) and len(want):
        factors = draw(n + 1, *want.shape)
        got = slope(where, "the rows", rows, leaf, factors)
        known = lambda: [("that of each token's last pair alone", last_of_each(factors, routing.token, n))]
        told = Told(where, "the gradient of x", got, one_by_one(factors, routing.token, n), known)
        gradients.append(got if isinstance(got, Problem) else told)
    return Told(where, "the rows", rows, want, _known_rows(x, routing, n))


def run_combine(call, where, routing, n, gradients, seen):
    """combine in one case: y, beside what it should be. Adds to `gradients` and to seen["touched"]."""
    rows = draw(n, len(routing.token), D)
    leaf, weight = rows.clone().requires_grad_(), routing.weight.clone().requires_grad_()
    given, rows_given = _copy(routing)._replace(weight=weight.clone()), leaf.clone()
    y = call(rows_given, given, n)
    if isinstance(y, Problem):
        return y
    now, before = {"rows": rows_given, **given._asdict()}, {"rows": rows, **routing._asdict()}
    seen["touched"] = seen["touched"] or changed(where, now, before)
    want = one_by_one(routing.weight[:, None] * rows, routing.token, n)
    if alike(y, want) and len(rows):
        dy = draw(n + 1, n, D)
        wants = routing.weight[:, None] * dy[routing.token], (rows * dy[routing.token]).sum(1)
        for name, given, right in zip(("rows", "routing.weight"), (leaf, weight), wants, strict=True):
            got = slope(where, f"from y to {name}", y, given, dy)
            told = Told(where, f"the gradient of {name}", got, right, lambda: [("not weighted", dy[routing.token])])
            gradients.append(got if isinstance(got, Problem) else told)
    known = _known_sums(rows, routing, n) if len(rows) else list
    return Told(where, "y", y, want, known)


def _copy(routing):
    return Routing(*(tensor.clone() for tensor in routing))
