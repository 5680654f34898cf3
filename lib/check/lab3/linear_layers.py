"""Lab 3, section 2: column_parallel(x, linears, group, input_mapping) and row_parallel(x, linear,
group, output_mapping).

    columns    x (B, T, 5), replicated      three layers of widths 12, 24, 12; the last has no bias
    rows       x (B, T, 12/tp), sharded     one layer of width 5, with or without a bias
"""

from functools import partial
from typing import NamedTuple

import torch

from lib.check.cases import Case, form_of
from lib.check.exercise import Bundle
from lib.check.lab3 import groups as g
from lib.check.tensors import draw
from lib.tensor_parallel import linear, mappings

NARROW, WIDTHS = 5, (12, 24, 12)
NO_BIAS, ONE_TOKEN = "no bias", "one token"
AT_ONCE = Case(g.ALL, 30, what=g.AT_ONCE)
COLUMN_CASES = (*(Case(ranks, 30) for ranks in g.GROUPS), AT_ONCE)
ROW_CASES = (
    *COLUMN_CASES[:-1], *(Case(g.ALL, 30, what=what) for what in (NO_BIAS, ONE_TOKEN)), AT_ONCE
)  # fmt: skip


class Layer(NamedTuple):
    """A rank's shard of a linear layer. It is not an nn.Module."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def _drawn(case, *shape):
    return draw(case.n + 7 * case.again, *shape)


def _tokens(case, of):
    """B and T of this call."""
    T = 1 if case.what == ONE_TOKEN else 3
    return (case.n + 30 * bool(of)) // (T * NARROW), T


def columns(make, case, groups, show):
    f, losses = partial(mappings.copy_to_group, all_reduce=show.all_reduce), []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        x = show.give(f"x{of}", _drawn(case, *_tokens(case, of), NARROW), learns=True)
        layers = [
            show.give(f"layer {i}{of}", Layer(
                _drawn(case, width, NARROW).chunk(N)[rank],
                None if i == len(WIDTHS) - 1 else draw(i, width).to(x.dtype).chunk(N)[rank],
            ), learns=True)
            for i, width in enumerate(WIDTHS)
        ]  # fmt: skip
        out = show.run(make, x, layers, group, f)
        is_list = isinstance(out, (list, tuple)) and len(out) == len(layers)
        got = f"{form_of(out)}{f' of {len(out)}' if isinstance(out, (list, tuple)) else ''}"
        show("results", "" if is_list else f"returned {got}, expected a list of 3 tensors")
        out = [*out] if is_list else []
        show("columns", [(f"of layer {i}", y) for i, y in enumerate(out)])
        losses.append(sum((y * draw(i, *y.shape).to(y.dtype)).sum() for i, y in enumerate(out)))
    yield
    if not show.wrong("results", "columns"):
        show.begin("backward")
        show.backward(*losses)


def rows(make, case, groups, show):
    to_all, ys = partial(mappings.reduce_from_group, all_reduce=show.all_reduce), []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        D = WIDTHS[0]
        mine = _drawn(case, *_tokens(case, of), D).chunk(N, -1)[rank]
        x = show.give(f"x{of}", mine, learns=True)
        bias = None if case.what == NO_BIAS else draw(3, NARROW)
        bias = torch.zeros_like(bias) if N == 1 else bias  # a bias of zeros still gets a gradient
        shard = Layer(_drawn(case, NARROW, D).chunk(N, 1)[rank], bias)
        layer = show.give(f"the layer{of}", shard, learns=True)
        ys.append(show.run(make, x, layer, group, to_all))
        show("y", ys[-1])
    yield
    if not show.wrong("y"):
        show.begin("backward")
        show.backward(*ys)


GRADIENTS = [
    f"{what}{of}{field}"
    for what in ("x", "the layer", *(f"layer {i}" for i in range(len(WIDTHS))))
    for of in ("", ", the pair")
    for field in ("", ".weight", ".bias")
]


def _exercise(script, reference, cases, *rows):
    excused = {
        "alive": "a layer may keep its weights in another form, such as several in one",
        "bfloat16": "a product and a bias are rounded once or twice",
    }
    empty = {"empty rank": "a batch has one sequence or more, and ranks share it"}
    measure = g.measure(script, reference, cases, excused=excused)
    return g.exercise(measure, ("linear_layers",), *rows, leaves_out=g.FUNCTION | empty)


COLUMN_PARALLEL = _exercise(
    columns, linear.column_parallel, COLUMN_CASES,
    ("the rank's columns", 3, f"{g.GROUPS_SAY}; three layers", "results", "columns"),
    ("gradients of the whole layers", 3, "of x, weights, biases", "graph", *GRADIENTS),
    ("one all-reduce, backward", 2, "of BTD elements for all three; forward nothing", g.CALLS),
    ("arguments left alone", 1, "x, weights, biases", "arguments"),
)  # fmt: skip
ROW_PARALLEL = _exercise(
    rows, linear.row_parallel, ROW_CASES,
    ("the whole result", 3, f"{g.GROUPS_SAY}; no bias", "y"),
    ("gradients of the whole layer", 3, "of x, weight, bias", "graph", *GRADIENTS),
    ("one all-reduce, forward", 2, "of BTF elements; backward nothing", g.CALLS),
    ("arguments left alone", 1, "x, weight, bias", "arguments"),
)  # fmt: skip
EXERCISE = Bundle("linear_layers", (COLUMN_PARALLEL, ROW_PARALLEL))
