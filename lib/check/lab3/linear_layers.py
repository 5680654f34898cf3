"""Lab 3, section 2: column_parallel(x, linears, group, input_mapping) and row_parallel(x, linear,
group, output_mapping).

    columns    x (B, T, 5) on all ranks     three layers 12, 24, 12 wide, the last without bias
    rows       x (B, T, 12/tp) on each      a layer 5 wide, with a bias and without
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from lib.check import symptoms as s
from lib.check.cases import Case, form_of
from lib.check.causes import hints, of_name
from lib.check.exercise import Bundle, Exercise
from lib.check.lab3 import groups as g
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.tensor_parallel import linear, mappings

T, NARROW, WIDTHS = 3, 5, (12, 24, 12)
NO_BIAS = "no bias"
AT_ONCE = Case(g.ALL, 30, what=g.AT_ONCE)
COLUMN_CASES = (*(Case(ranks, 30) for ranks in g.GROUPS), AT_ONCE)
ROW_CASES = (*COLUMN_CASES[:-1], Case(g.ALL, 30, what=NO_BIAS), AT_ONCE)
EXCUSED = {
    "alive": "a layer may keep its weights in another form, such as several in one",
    "bfloat16": "a product and a bias are rounded once or twice",
}


LEAVES_OUT = g.FUNCTION | {"empty rank": "a batch has one sequence or more, and ranks share it"}


class Layer(NamedTuple):
    """A rank's shard of a layer, which is no module."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def _drawn(case, *shape):
    return draw(case.n + 7 * case.again, *shape)


def columns(make, case, groups, show):
    f, losses = partial(mappings.copy_to_group, all_reduce=show.all_reduce), []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        B = (case.n + 30 * bool(of)) // (T * NARROW)
        x = show.give(f"x{of}", _drawn(case, B, T, NARROW), learns=True)
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
        expected = f"expected a list of {len(layers)} tensors"
        show("results", "" if is_list else f"returned {got}, {expected}")
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
        B, D = (case.n + 30 * bool(of)) // (T * NARROW), WIDTHS[0]
        x = show.give(f"x{of}", _drawn(case, B, T, D).chunk(N, -1)[rank], learns=True)
        layer = show.give(f"the layer{of}", Layer(
            _drawn(case, NARROW, D).chunk(N, 1)[rank],
            None if case.what == NO_BIAS else draw(3, NARROW),
        ), learns=True)  # fmt: skip
        ys.append(show.run(make, x, layer, group, to_all))
        show("y", ys[-1])
    yield
    if not show.wrong("y"):
        show.begin("backward")
        show.backward(*ys)


def _measure(script, reference, cases):
    together = cases[0], replace(cases[0], again=1)  # of one shape: a buffer of it is kept
    return SideBySide(script, reference, cases, groups=g.groups, excused=EXCUSED, together=together)


def _gradients(measure, *names):
    found = [f"{name}{of}" for name in names for of in ("", ", the pair")]
    fields = ("", ".weight", ".bias")
    return [f"the gradient of {one}{field}" for one in found for field in fields]


COMMON = {
    "the_group_is_not_passed_on": s.kind("group"),
    "a_layer_without_bias": s.refused("None"),
    "a_part_is_no_module": s.raised("TypeError"),
    "shapes_do_not_fit": s.refused("shape"),
    "not_what_it_was_given": s.kind("another way"),
    "not_on_every_rank": s.kind("clash"),
}
COLUMNS = _measure(columns, linear.column_parallel, COLUMN_CASES)
ROWS = _measure(rows, linear.row_parallel, ROW_CASES)
COLUMN_PARALLEL = Exercise(
    name="column_parallel", reference=linear.column_parallel, measure=COLUMNS, worlds=(g.WORLD,),
    may_call=g.MAY_CALL, leaves_out=LEAVES_OUT,
    claims=claims(
        COLUMNS,
        ("the rank's columns", 3, f"{g.GROUPS_SAY}; three layers", "results", "columns"),
        ("gradients of the whole layers", 3, "of x, weights, biases", "graph",
         *_gradients(COLUMNS, "x", "layer 0", "layer 1", "layer 2")),
        ("one all-reduce, backward", 2, "of BTD elements for all three; forward nothing",
         calls(COLUMNS)),
        ("arguments left alone", 1, "x, weights, biases", "arguments"),
    ),
    hints=hints(
        "lab3", "column_parallel",
        **COMMON,
        one_result_per_layer=of_name("results"),
        columns_gathered=s.kind("form", dtype=False),
        x_enters_once_per_layer=s.kind("calls"),
    ),
)  # fmt: skip
ROW_PARALLEL = Exercise(
    name="row_parallel", reference=linear.row_parallel, measure=ROWS, worlds=(g.WORLD,),
    may_call=g.MAY_CALL, leaves_out=LEAVES_OUT,
    claims=claims(
        ROWS,
        ("the whole result", 3, f"{g.GROUPS_SAY}; no bias", "y"),
        ("gradients of the whole layer", 3, "of x, weight, bias", "graph",
         *_gradients(ROWS, "x", "the layer")),
        ("one all-reduce, forward", 2, "of BTF elements; backward nothing", calls(ROWS)),
        ("arguments left alone", 1, "x, weight, bias", "arguments"),
    ),
    hints=hints(
        "lab3", "row_parallel",
        **COMMON,
        gathered=s.kind("form", dtype=False),
        sent_more_than_once=s.kind("calls"),
    ),
)  # fmt: skip
EXERCISE = Bundle("linear_layers", (COLUMN_PARALLEL, ROW_PARALLEL))
