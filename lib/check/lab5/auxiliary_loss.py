"""Lab 5, section 4: auxiliary_loss(probabilities, first_choices), the price of an expert that
many tokens choose.

Sets have 1, 2, 8 or 16 tokens: the parts f_e are then exact, also in the float32 in which torch
divides whole numbers.
"""

from numbers import Real

import torch

from lib import moe
from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint
from lib.check.left_out import TENSORS
from lib.check.tensors import Calls, draw, gradients, kept, left_alone, new, values

TENTHS = torch.tensor(
    [[5, 3, 2], [6, 3, 1], [4, 4, 2], [7, 1, 2], [2, 6, 2], [5, 4, 1], [1, 2, 7], [8, 1, 1]]
)


def _case(p, first):
    return {"probabilities": p, "first_choices": torch.as_tensor(first, dtype=torch.int64)}


def _best(p):
    return _case(p, p.argmax(-1))


def _softmax(n, E):
    return draw(n + E, n, E).softmax(-1)


CASES = {
    "8 tokens, 3 experts, f = 5/8 2/8 1/8": _best(TENTHS.double() / 10),
    "16 tokens, 5 experts, the best is chosen": _best(_softmax(16, 5)),
    "16 tokens, 4 experts, a bias chooses too": _case(
        _softmax(16, 4), [0, 1, 3, 1, 2, 3, 3, 0] * 2
    ),
    "16 tokens, 4 experts, chosen otherwise": _case(
        _softmax(16, 4).flip(0), [3, 3, 2, 3, 0, 1, 3, 2] * 2
    ),
    "1 token, 4 experts": _case(_softmax(1, 4), [2]),
    "2 tokens, 1 expert": _case(_softmax(2, 1), [0, 0]),
}
UNCHOSEN = {
    "8 tokens, 5 experts, nobody chooses 3 and 4": _case(_softmax(8, 5), [0, 1, 2, 1, 0, 0, 2, 1]),
    "8 tokens, 4 experts, all choose 0": _case(_softmax(8, 4), [0] * 8),
}
NO_TOKENS = {"no tokens, 4 experts": _case(torch.empty(0, 4, dtype=torch.float64), [])}
SOME = CASES | UNCHOSEN


def _is_0(got, want):
    """Of no tokens: 0, as a tensor of any kind or as a number. Everywhere else more is expected."""
    one = isinstance(got, Real) or (torch.is_tensor(got) and got.numel() == 1)
    return bool(one and got == 0 and want == 0)


CALLS = Calls(
    moe.auxiliary_loss,
    SOME | NO_TOKENS,
    ("probabilities",),
    "the loss",
    is_right=_is_0,
    may_leave_graph="it is added to a loss that has a graph",
)

EXERCISE = Exercise(
    name="auxiliary_loss", reference=moe.auxiliary_loss, measure=CALLS, worlds=(),
    leaves_out=TENSORS,
    claims=(
        claim("E times the sum of f P", 6, "1, 3, 4, 5 experts; some that no token chose",
              values(CALLS, SOME)),
        claim("the gradient", 4, "E f_e / n of every token's p_e: through P alone",
              gradients(CALLS, SOME)),
        claim("no tokens", 1, "0", values(CALLS, NO_TOKENS)),
        claim("arguments unchanged", 1, "", left_alone(CALLS.cases), new(CALLS.cases),
              kept(CALLS.cases)),
    ),
    hints=(
        s.CALLED_LIB.saying("E * (f * P).sum(): count the first choices, and average p."),
        Hint("no tokens", lambda p: p.fact("case") in NO_TOKENS and p.kind in s.SHAPES,
             "a rank may have no tokens, and the mean of nothing is nan: divide sums by max(n, 1), "
             "and the loss is 0."),
        Hint("no place for the unchosen",
             s.either(s.refused("shape"),
                      lambda p: p.kind == "value" and p.fact("case") in UNCHOSEN),
             "bincount ends with the last expert that any token chose. bincount(first_choices, "
             "minlength=E) counts all E."),
        s.NARROW,
        Hint("not one number", s.either(s.kind("returned"), s.kind("form", shape=True)),
             "the loss is one number, as a tensor that knows its graph: the sum over the experts, "
             "without .item()."),
        Hint("another dtype", s.kind("form", dtype=True),
             "the loss has the dtype of the probabilities: no .float(), and f in P's dtype, "
             "f.to(probabilities)."),
        Hint("no gradient", s.kind("no graph"),
             "the router learns through P: no detach, no item, no torch.no_grad around it."),
        Hint("another gradient", s.kind("value", gradient=True),
             "f is a count, without gradient; P = probabilities.mean(0), with all of it."),
        Hint("another loss", s.kind("value"),
             "f_e: the part of the tokens whose first choice is e. P_e: the mean of p_e over all "
             "tokens. E * sum of f_e P_e."),
        Hint("changed in place", s.either(s.kind("input"), s.refused("in place")),
             "in-place operations change the caller's tensors. Make new ones."),
        s.NOT_KEPT, s.SHARED, *s.ANYWHERE,
    ),
)  # fmt: skip
