"""Lab 3, section 1: f, copy_to_group(x, group, all_reduce),
and g, reduce_from_group(x, group, all_reduce).

    f  x on all ranks  y = x          loss_r = sum of w_r y  dx = sum_r w_r  w_r differs by rank
    g  x_r on rank r   y = sum_r x_r  loss   = sum of w y    dx_r = w        w is the same on all

In the case "beside a residual" f's x has two more uses: the losses are w_r (y + x) and v_r x.
Autograd passes the same tensor w_r to y and to x. A backward that all-reduces it in place therefore
also changes the gradient of the residual, and a hook on x itself would all-reduce the sum of all
three gradients. In "transposed" neither x nor the gradient of y is contiguous. In "in evaluation"
x does not require a gradient, but g still has to sum.
"""

from functools import partial

import torch.distributed as dist

from lib.check.cases import Case
from lib.check.exercise import Bundle
from lib.check.lab3 import groups as g
from lib.check.tensors import draw
from lib.tensor_parallel import mappings

RESIDUAL, TRANSPOSED, NOTHING = "beside a residual", "transposed", "rank 0 has zeros"
EVALUATION = "in evaluation"


def script(x_differs, make, case, groups, show):
    """x_differs: True if x differs from rank to rank and the gradient of y does not; False if it is
    the other way round."""
    losses = []

    def all_reduce(tensor, group=None, op=dist.ReduceOp.SUM):  # returns None, like torch's
        show.all_reduce(tensor, group, op)

    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        shape = (case.n + 12 * bool(of)) // 12, 3, 4
        same = draw(case.n + 10 * N + case.again, *shape)
        mine = draw(1 + rank, *shape) * (case.what != NOTHING or rank > 0)
        x, w = (mine, same) if x_differs else (same, mine)
        x = show.give(f"x{of}", x, learns=case.what != EVALUATION)
        x = x.transpose(0, 2) if case.what == TRANSPOSED else x
        y = show.run(make, x, group, all_reduce)
        show("y", y)
        if show.wrong("y"):
            return
        more = [(x * draw(50 + rank, *shape)).sum()] if case.what == RESIDUAL else []
        y = y + x if case.what == RESIDUAL else y
        y = y.transpose(0, 2) if case.what == TRANSPOSED else y
        losses += [(y * w.to(y.dtype)).sum(), *more]
    yield
    show.begin("backward")
    show.backward(*losses)


def _exercise(reference, x_differs, on_all, *rows):
    more = *(Case(g.ALL, 24, what=what) for what in (*on_all, g.AT_ONCE)), Case(g.ALL, 0)
    cases = *(Case(ranks, 24) for ranks in g.GROUPS), *more
    # y may be a copy of x: 192 bytes, or 288 in the second of two calls
    measure = g.measure(partial(script, x_differs), reference, cases, slack={"alive": 600})
    return g.exercise(measure, ("f_and_g",), *rows)


COPY_TO_GROUP = _exercise(
    mappings.copy_to_group, False, (RESIDUAL, TRANSPOSED, NOTHING),
    ("x forward, the sum backward", 5, f"{g.GROUPS_SAY}; {RESIDUAL}, {TRANSPOSED}",
     "y", "x", "x, the pair", "graph"),
    ("one all-reduce, backward", 2, "of n elements; forward nothing", g.CALLS),
    ("x left alone", 1, "", "arguments"),
)  # fmt: skip
REDUCE_FROM_GROUP = _exercise(
    mappings.reduce_from_group, True, (TRANSPOSED, NOTHING, EVALUATION),
    ("the sum forward, dy backward", 5, f"{g.GROUPS_SAY}; {TRANSPOSED}, {EVALUATION}",
     "y", "x", "x, the pair", "graph"),
    ("one all-reduce, forward", 2, "of n elements; backward nothing", g.CALLS),
    ("x left alone", 1, "the caller's part stays partial", "arguments", "storage"),
)  # fmt: skip
EXERCISE = Bundle("f_and_g", (COPY_TO_GROUP, REDUCE_FROM_GROUP))
