"""Lab 5, section 5: dispatch(x, routing), from tokens to rows, and combine(rows, routing, n), from
rows to tokens.

There are tokens with three, two, one and no pairs, and in the first two routings the last token has
no pair. The weights of a token do not add up to 1.
"""

import torch

from lib import moe
from lib.check.causes import hints
from lib.check.exercise import Bundle
from lib.check.left_out import TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw
from lib.moe import Routing


def _routing(token, expert, slot, unweighted=()):
    """unweighted: the pairs whose weight is 0. These weights still get a gradient."""
    numbers = [torch.tensor(values, dtype=torch.int64) for values in (token, expert, slot)]
    weight = 0.1 + 0.8 * draw(len(token), len(token)).sigmoid()
    weight[list(unweighted)] = 0
    return Routing(*numbers, weight)


ROUTINGS = {  # name -> routing, n, D
    "tokens 0 1 | 0 3 2": (
        _routing([0, 1, 0, 3, 2], [0, 0, 2, 2, 2], [0, 1, 0, 1, 2], unweighted=[2]), 6, 3,
    ),
    "tokens 2 5 1 | 4 | 1 0 2": (
        _routing([2, 5, 1, 4, 1, 0, 2], [0, 0, 0, 1, 3, 3, 3], [0, 1, 2, 0, 0, 1, 2]), 8, 3,
    ),
    "tokens 0 1 2, one expert": (_routing([0, 1, 2], [1, 1, 1], [0, 1, 2]), 3, 3),
    "tokens 3 1 | 0 3 | 3, one column": (
        _routing([3, 1, 0, 3, 3], [0, 0, 1, 1, 2], [0, 1, 0, 1, 0]), 4, 1,
    ),
    "3 tokens, no pairs": (_routing([], [], []), 3, 3),
    "no tokens, no pairs": (_routing([], [], []), 0, 3),
}  # fmt: skip
CASES = here(*ROUTINGS)
SOME, EMPTY = CASES[:4], CASES[4:]


def dispatch(make, case, show):
    routing, n, D = ROUTINGS[case.what]
    x = show.give("x", draw(n, n, D), learns=True)
    rows = show.run(make, x, show.give("routing", routing))
    show("the rows", rows)
    yield
    show.backward(rows)


def combine(make, case, show):
    routing, n, D = ROUTINGS[case.what]
    m = len(routing.token)
    rows = show.give("rows", draw(n, m, D), learns=True)
    # without pairs the gradient of the weights may be an empty tensor or None
    y = show.run(make, rows, show.give("routing", routing, learns=m > 0), n)
    show("y", y)
    yield
    show.backward(y)


FREE = {"alive": "what is kept until backward is free: a mask, a sum of its own"}
TO_ROWS = SideBySide(dispatch, moe.dispatch, CASES, groups=None, excused=FREE)
TO_TOKENS = SideBySide(combine, moe.combine, CASES, groups=None, excused=FREE)


DISPATCH = TO_ROWS.exercise(
    ("a row for each pair", 3, "tokens with 3, 2 and 1 pairs, and none", ("the rows", SOME)),
    ("the gradient of x", 1, "a token's copies added up", ("x", SOME)),
    ("no pairs; arguments unchanged", 1, "no pairs, no tokens"),
    hints=hints("lab5", "no_pairs", "dispatch"), leaves_out=TENSORS,
)  # fmt: skip
COMBINE = TO_TOKENS.exercise(
    ("weighted, and added up", 5, "tokens with 3, 2 and 1 pairs, and none", ("y", SOME)),
    ("gradients", 2, "of rows and of weights", (("rows", "routing.weight"), SOME)),
    ("no pairs", 1, "zeros; no tokens", (("y", "rows"), EMPTY), "graph"),
    ("rows and routing unchanged", 1, ""),
    hints=hints("lab5", "no_pairs", "combine"), leaves_out=TENSORS,
)  # fmt: skip
EXERCISE = Bundle("dispatch_combine", (DISPATCH, COMBINE))
