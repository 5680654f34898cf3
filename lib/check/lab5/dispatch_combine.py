"""Lab 5, section 5: dispatch(x, routing), tokens to rows, and combine(rows, routing, n), rows to
tokens.

The routings have tokens with three pairs, two, one and none, the last token among them, and weights
that do not add up to 1.
"""

import torch

from lib import moe
from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Bundle, Exercise, Hint
from lib.check.left_out import TENSORS
from lib.check.pure import ONCE
from lib.check.tensors import Calls, draw, gradients, kept, left_alone, new, values
from lib.moe import Routing


def _routing(token, expert, slot):
    numbers = [torch.tensor(values, dtype=torch.int64) for values in (token, expert, slot)]
    return Routing(*numbers, 0.1 + 0.8 * draw(len(token), len(token)).sigmoid())


# name -> routing, n, D, dtype
SOME = {
    "tokens 0 1 | 0 3 2": (
        _routing([0, 1, 0, 3, 2], [0, 0, 2, 2, 2], [0, 1, 0, 1, 2]), 6, 3, torch.float64,
    ),
    "tokens 2 5 1 | 4 | 1 0 2": (
        _routing([2, 5, 1, 4, 1, 0, 2], [0, 0, 0, 1, 3, 3, 3], [0, 1, 2, 0, 0, 1, 2]), 8, 3,
        torch.float64,
    ),
    "tokens 0 1 2, one expert": (_routing([0, 1, 2], [1, 1, 1], [0, 1, 2]), 3, 3, torch.float64),
    "tokens 3 1 | 0 3 | 3, float32": (
        _routing([3, 1, 0, 3, 3], [0, 0, 1, 1, 2], [0, 1, 0, 1, 0]), 4, 1, torch.float32,
    ),
}  # fmt: skip
EMPTY = {
    "3 tokens, no pairs": (_routing([], [], []), 3, 3, torch.float64),
    "no tokens, no pairs": (_routing([], [], []), 0, 3, torch.float64),
}


def _cases(give):
    return {
        name: give(routing._replace(weight=routing.weight.to(dtype)), n, D, dtype)
        for name, (routing, n, D, dtype) in (SOME | EMPTY).items()
    }


DISPATCH_CALLS = Calls(
    moe.dispatch,
    _cases(lambda routing, n, D, dtype: {"x": draw(n, n, D).to(dtype), "routing": routing}),
    ("x",),
    "the rows",
)
COMBINE_CALLS = Calls(
    moe.combine,
    _cases(
        lambda r, n, D, dtype: {"rows": draw(n, len(r.token), D).to(dtype), "routing": r, "n": n}
    ),
    ("rows", "routing.weight"),
    "y",
)
ALL = (*SOME, *EMPTY)

COMMON = (
    Hint("another dtype", s.either(s.refused("dtype"), s.kind("form", dtype=True)),
         "the result has the dtype and device of what is given: no .float(), and no torch.zeros(n, "
         "D), which is float32. rows.new_zeros(n, D) takes both from the rows."),
    s.CALLED_LIB.saying("indexing and index_add are enough."),
    ONCE,
    s.NO_NUMBER,
    s.NARROW,
    Hint("nobody", lambda p: p.fact("case") in EMPTY and p.kind in (*s.SHAPES, "returned"),
         "a set may have no pairs, or no tokens. Use tensor operations: torch.stack of an empty "
         "list and the maximum of an empty tensor raise an error."),
    Hint("outside the graph", lambda p: p.kind == "no graph" and p.fact("case") in EMPTY,
         "where there are no pairs, the result has to stay part of the autograd graph as well. "
         "zeros or new_zeros alone are not part of it: compute the result from what you were "
         "given, as in the other cases."),
    Hint("no gradient", s.kind("no graph"),
         "tokens, rows and weights all receive gradients through this: use no detach, item or "
         "torch.no_grad, and build no tensor from Python numbers."),
)  # fmt: skip
DISPATCH = Exercise(
    name="dispatch", reference=moe.dispatch, measure=DISPATCH_CALLS, worlds=(), leaves_out=TENSORS,
    claims=(
        claim("a row for each pair", 3, "tokens with 3, 2 and 1 pairs, and none",
              values(DISPATCH_CALLS, SOME)),
        claim("the gradient of x", 1, "a token's copies added up", gradients(DISPATCH_CALLS, SOME)),
        claim("no pairs; arguments unchanged", 1, "no pairs, no tokens",
              values(DISPATCH_CALLS, EMPTY), left_alone(ALL), new(ALL), kept(ALL)),
    ),
    hints=(
        *COMMON,
        Hint("another gradient", s.kind("value", gradient=True),
             "a token's copies all count: the gradient of x adds them up, as indexing does by "
             "itself."),
        Hint("other rows", s.kind("value", "form", "returned"),
             "rows[i] = x[routing.token[i]], (m, D)."),
        Hint("changed in place", s.either(s.kind("input"), s.refused("in place")),
             "x and the routing are the caller's. Make new tensors."),
        s.NOT_KEPT, s.SHARED, *s.ANYWHERE,
    ),
)  # fmt: skip
COMBINE = Exercise(
    name="combine", reference=moe.combine, measure=COMBINE_CALLS, worlds=(), leaves_out=TENSORS,
    claims=(
        claim("weighted, and added up", 5, "tokens with 3, 2 and 1 pairs, and none",
              values(COMBINE_CALLS, SOME)),
        claim("gradients", 2, "of rows and of weights", gradients(COMBINE_CALLS, SOME)),
        claim("no pairs", 1, "zeros; no tokens", values(COMBINE_CALLS, EMPTY)),
        claim("rows and routing unchanged", 1, "", left_alone(ALL), new(ALL), kept(ALL)),
    ),
    hints=(
        *COMMON,
        Hint("shapes do not fit", s.refused("shape"),
             "rows are (m, D), so weights must be (m, 1): routing.weight.unsqueeze(1) * rows. "
             "And a token may have any number of pairs, so rows cannot be reshaped into tokens."),
        Hint("another gradient", s.kind("value", gradient=True),
             "the numbers were right. A row's gradient is its weight times its token's; a weight's "
             "is the product of its row and its token's."),
        Hint("tokens left out", s.kind("form", shape=True),
             "the result is (n, D), a row for every token: its pairs added up, zeros for those "
             "without a pair."),
        Hint("another sum", s.kind("value", "returned"),
             "y[t]: the sum over the pairs i of token t of routing.weight[i] * rows[i]."),
        Hint("changed in place", s.either(s.kind("input"), s.refused("in place")),
             "rows *= ... changes the caller's rows. Make a new tensor."),
        s.NOT_KEPT, s.SHARED, *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("dispatch_combine", (DISPATCH, COMBINE))
