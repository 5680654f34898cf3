"""Lab 5, section 4: auxiliary_loss(probabilities, first_choices), the price of an expert that everybody asks for.

The sets have 8 and 16 tokens: the parts f_e are then exact, also in the float32 in which torch divides whole numbers.
"""

from functools import partial
from math import ceil
from numbers import Real

import torch

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab5.auxiliary_hints import HINTS
from lib.check.lab5.here import Told, answered, changed, draw, first_wrong, found, slope
from lib.moe import auxiliary_loss

TENTHS = torch.tensor([[5, 3, 2], [6, 3, 1], [4, 4, 2], [7, 1, 2], [2, 6, 2], [5, 4, 1], [1, 2, 7], [8, 1, 1]])


def _softmax(n, E):
    return draw(n + E, n, E).softmax(-1)


def _best(p):
    return p.argmax(-1)


CASES = {
    "8 tokens, 3 experts, f = 5/8 2/8 1/8": (TENTHS.double() / 10, _best(TENTHS)),
    "16 tokens, 5 experts, the best is chosen": (_softmax(16, 5), _best(_softmax(16, 5))),
    "16 tokens, 4 experts, a bias chooses too": (_softmax(16, 4), torch.tensor([0, 1, 3, 1, 2, 3, 3, 0] * 2)),
    "8 tokens, 5 experts, nobody chooses 3 and 4": (_softmax(8, 5), torch.tensor([0, 1, 2, 1, 0, 0, 2, 1])),
    "8 tokens, 4 experts, all choose 0": (_softmax(8, 4), torch.zeros(8, dtype=torch.int64)),
    "1 token, 4 experts": (_softmax(1, 4), torch.tensor([2])),
}
NO_TOKENS = {"no tokens, 4 experts": (torch.empty(0, 4, dtype=torch.float64), torch.empty(0, dtype=torch.int64))}


def _parts(p, first):
    n, E = p.shape
    f = torch.stack([(first == e).sum() for e in range(E)]).double() / max(n, 1)  # (E,)
    return f, p.sum(0) / max(n, 1)


def _loss(p, first):
    # E * sum_e f_e P_e
    f, P = _parts(p, first)
    return len(P) * (f * P).sum()


def _of_parts(change):
    """A mistake: change(f, P, n, E) in place of E * sum_e f_e P_e."""
    return lambda p, first: change(*_parts(p, first), *p.shape)


MISTAKES = [
    ("sum of f P, without E", _of_parts(lambda f, P, n, E: (f * P).sum())),
    ("divided by E", _of_parts(lambda f, P, n, E: (f * P).sum() / E)),
    ("E times E", _of_parts(lambda f, P, n, E: E * E * (f * P).sum())),
    ("n times, instead of E times", _of_parts(lambda f, P, n, E: n * (f * P).sum())),
    ("counts, not parts of the tokens", _of_parts(lambda f, P, n, E: E * (n * f * P).sum())),
    ("sums, not means of the probabilities", _of_parts(lambda f, P, n, E: E * (f * n * P).sum())),
    ("neither f nor P divided by n", _of_parts(lambda f, P, n, E: E * (n * f * n * P).sum())),
    ("f for both", _of_parts(lambda f, P, n, E: E * (f * f).sum())),
    ("P for both", _of_parts(lambda f, P, n, E: E * (P * P).sum())),
    ("f cut off at an even share", _of_parts(lambda f, P, n, E: E * (f.clamp(max=ceil(n / E) / max(n, 1)) * P).sum())),
    ("one number for each expert", _of_parts(lambda f, P, n, E: E * f * P)),
    ("f by argmax, not by first_choices", lambda p, first: _loss(p, _best(p))),
    ("the other sign", lambda p, first: -_loss(p, first)),
    ("1 less", lambda p, first: _loss(p, first) - 1),
    ("squared differences", _of_parts(lambda f, P, n, E: ((f - 1 / E) ** 2).sum())),
    ("squared differences", _of_parts(lambda f, P, n, E: P.var() / P.mean() ** 2)),
    ("squared differences", _of_parts(lambda f, P, n, E: P.var(correction=0) / P.mean() ** 2)),
    ("the probability of the chosen one alone", lambda p, first: _of_the_chosen(p, first)),
]


def _of_the_chosen(p, first):
    """P_e over the tokens that chose e, which are fewer."""
    f, P = _parts(p * torch.nn.functional.one_hot(first, p.shape[1]), first)
    return len(P) * (f * P).sum()


def _measure(fn):
    seen = dict.fromkeys(("gradient", "none", "touched"))
    leaves, losses = {}, {}
    for where, (p, first) in {**CASES, **NO_TOKENS}.items():
        leaves[where], given = p.clone().requires_grad_(), first.clone()
        probabilities = leaves[where].clone()
        losses[where] = answered(auxiliary_loss, fn, where, probabilities, given)
        now, before = {"probabilities": probabilities, "first_choices": given}, {"probabilities": p}
        seen["touched"] = seen["touched"] or changed(where, now, before | {"first_choices": first})
    seen["value"] = _values(losses, CASES)
    seen["none"] = _values(losses, {where: args for where, args in NO_TOKENS.items() if not _is_0(losses[where])})
    seen["gradient"] = seen["value"] or _gradients(losses, leaves)
    return seen


def _is_0(loss):
    """0, as a tensor of any kind or as a number."""
    return isinstance(loss, Real | torch.Tensor) and torch.as_tensor(loss).numel() == 1 and bool(loss == 0)


def _values(losses, cases):
    problem = next((losses[where] for where in cases if isinstance(losses[where], Problem)), None)
    return problem or first_wrong(
        Told(where, "the loss", losses[where], _loss(*args), partial(_known, args)) for where, args in cases.items()
    )


def _known(args):
    return [(words, mistake(*args)) for words, mistake in MISTAKES if len(args[1])]  # of no tokens many give nan


def _gradients(losses, leaves):
    tolds = []
    for where, (p, first) in CASES.items():
        gradient = slope(where, "the loss", losses[where], leaves[where], torch.tensor(1.0, dtype=torch.float64))
        if isinstance(gradient, Problem):
            return gradient
        f, P = _parts(p, first)
        want = (len(P) * f / len(p)).expand_as(p)  # E f_e / n, the same for all tokens
        known = lambda want=want, p=p: [
            ("twice what is expected", 2 * want), ("half of what is expected", want / 2), ("zero", 0 * want),
            ("what P would give", (p.shape[1] * p.mean(0) / len(p)).expand_as(p)),
        ]  # fmt: skip
        tolds.append(Told(where, "the gradient of probabilities", gradient, want, known))
    return first_wrong(tolds)


EXERCISE = Exercise(
    name="auxiliary_loss",
    reference=auxiliary_loss,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("E times the sum of f P", 6, "3, 4, 5 experts; some that nobody chose", found("value")),
        Claim("the gradient", 4, "E f_e / n of every token's p_e: through P alone", found("gradient")),
        Claim("no tokens", 1, "0", found("none")),
        Claim("arguments left alone", 1, "", found("touched")),
    ),
    hints=HINTS,
)
