"""Lab 3, section 2: column_parallel(x, linears, group, input_mapping) and row_parallel(x, linear,
group, output_mapping).

    columns    x (B, T, 5) on all ranks     three layers 12, 24, 12 wide, the last without bias
    rows       x (B, T, 12/tp) on each      a layer 5 wide, with a bias and without

A rank's shard of a layer has a weight and a bias, and is no module. Outputs and gradients are those
of the full layers in one process. What sends is n = B T 5 large.
"""

from functools import partial
from types import SimpleNamespace

import torch.nn.functional as F

from lib.check import symptoms as s
from lib.check.cases import Case, draw, form_of
from lib.check.claims import claim, kept, left_alone
from lib.check.exercise import Bundle, Hint, Problem
from lib.check.forward_backward import MAPPINGS
from lib.check.lab3 import both_ways as ways
from lib.check.traffic import fitting, only_calls
from lib.tensor_parallel import linear, mappings

T, NARROW, WIDTHS = 3, 5, (12, 24, 12)
NO_BIAS = "no bias"
COLUMN_CASES = (
    *(Case(ranks, 30) for ranks in ways.GROUPS),
    Case(ways.ALL, 30, what=ways.AT_ONCE),
    Case(ways.ALL, 0),
)
ROW_CASES = (*COLUMN_CASES[:-2], Case(ways.ALL, 30, what=NO_BIAS), *COLUMN_CASES[-2:])


def _leaf(t):
    return None if t is None else t.detach().clone().requires_grad_()


def _layer(weight, bias):
    return SimpleNamespace(weight=_leaf(weight), bias=_leaf(bias))


def _whole(case, x_width, *layers):
    """x (B, T, x_width), whole layers, their outputs, and the loss's weights; after
    backward of (y * w).sum()."""
    B = case.n // (T * NARROW)
    x = draw(ways.seed(case), B, T, x_width).requires_grad_()
    wholes = [_layer(*layer) for layer in layers]
    ys = [F.linear(x, whole.weight, whole.bias) for whole in wholes]
    weights = [draw(10 + i, *y.shape) for i, y in enumerate(ys)]
    sum((y * w).sum() for y, w in zip(ys, weights, strict=True)).backward()
    return x, wholes, [y.detach() for y in ys], weights


def _columns(case, rank):
    """x on all ranks, this rank's columns of three layers; the loss weighs every
    column in its own way."""
    N, layers = (
        case.world_size,
        zip(WIDTHS, (draw(20, WIDTHS[0]), draw(21, WIDTHS[1]), None), strict=True),
    )
    whole_x, wholes, ys, weights = _whole(
        case, NARROW, *((draw(i, F_, NARROW), b) for i, (F_, b) in enumerate(layers))
    )
    own = lambda t, dim=0, r=rank: None if t is None else t.detach().chunk(N, dim)[r]
    x, mine = _leaf(whole_x), [_layer(own(one.weight), own(one.bias)) for one in wholes]
    parts = {f"layer {i}'s {name}": (getattr(layer, name), own(getattr(whole, name).grad))
             for i, (layer, whole) in enumerate(zip(mine, wholes, strict=True))
             for name in ("weight", "bias") if getattr(layer, name) is not None}  # fmt: skip

    def read(returned):
        if isinstance(returned, (list, tuple)) and len(returned) == len(WIDTHS):
            return list(returned)
        got = (
            f"a {type(returned).__name__} of {len(returned)}"
            if isinstance(returned, (list, tuple))
            else None
        )
        return Problem(
            "no list",
            f"returned {got or form_of(returned)}, expected a list of {len(WIDTHS)} tensors",
        )

    return ways.Setting(
        given=(x, mine),
        arguments={"x": x} | {name: part for name, (part, _) in parts.items()},
        outputs={f"layer {i}": own(y, -1) for i, y in enumerate(ys)},
        loss=lambda outputs: sum(
            (y * own(w, -1)).sum() for y, w in zip(outputs, weights, strict=True)
        ),
        gradients={"x": whole_x.grad} | {name: gradient for name, (_, gradient) in parts.items()},
        read=read,
    )


def _rows(case, rank):
    """This rank's columns of x, and its rows of a layer; the loss is the same on all ranks."""
    N, bias = case.world_size, None if case.what == NO_BIAS else draw(3, NARROW)
    whole_x, (whole,), (want,), (w,) = _whole(case, WIDTHS[0], (draw(2, NARROW, WIDTHS[0]), bias))
    own = lambda t, dim, r=rank: t.detach().chunk(N, dim)[r]
    x, layer = _leaf(own(whole_x, -1)), _layer(own(whole.weight, 1), bias)
    gradients = {"x": own(whole_x.grad, -1), "weight": own(whole.weight.grad, 1)}
    return ways.Setting(
        given=(x, layer),
        arguments={"x": x, "weight": layer.weight} | ({} if bias is None else {"bias": layer.bias}),
        outputs={"y": want},
        loss=lambda ys: (ys[0] * w).sum(),
        gradients=gradients if bias is None else gradients | {"bias": whole.bias.grad},
    )


def _start(mapping):
    return lambda fn, setting, group, recorder: fn(
        *setting.given, group, partial(mapping, all_reduce=ways.in_place(recorder))
    )


BEFORE = (
    s.CALLED_LIB.saying("multiply with F.linear, and communicate by the mapping that is given."),
    s.NO_GROUP, s.NOT_ALL_RANKS,
    Hint("a layer without bias", s.refused("None"),
         "linear.bias may be None. F.linear takes that; an addition does not."),
    s.RETURNED_NONE, s.NARROW, s.WRONG_DTYPE,
    Hint("shapes do not fit", s.refused("shape"),
         "torch stores weights transposed, (out, in), and what you are given is sharded already: "
         "F.linear(x, linear.weight) takes it as it is."),
    Hint("a part is no module", s.raised("TypeError"),
         "a rank's shard has a .weight and a .bias, and no more: F.linear(x, linear.weight, "
         "linear.bias)."),
    s.NO_GRAPH.saying("detach() and .data cut the graph: x, the weight and the bias go into the "
                      "product as they are."),
)  # fmt: skip
AFTER = (
    Hint("another result", s.kind("value", "form"),
         "columns: input_mapping, then F.linear of each layer. Rows: F.linear without the bias, "
         "then output_mapping, then the bias."),
    s.NOT_GIVEN,
    Hint("arguments overwritten", s.kind("input"),
         "in-place operations (+=, add_) on what you are given change the caller's model. Make new "
         "tensors."),
    s.NOT_KEPT, *s.ANYWHERE,
)  # fmt: skip

COLUMN_PARALLEL = ways.exercise(
    linear.column_parallel, COLUMN_CASES, _columns, _start(mappings.copy_to_group),
    (
        claim("the rank's columns", 3, f"{ways.GROUPS_SAY}; three layers",
              fitting(COLUMN_CASES), ways.found(COLUMN_CASES, "forward"), kept(COLUMN_CASES)),
        claim("gradients of the whole layers", 3, "of x, weights, biases",
              ways.found(COLUMN_CASES, "backward")),
        claim("one all-reduce, backward", 2, "of BTD elements for all three; forward nothing",
              only_calls(COLUMN_CASES, ways.once("backward"))),
        claim("arguments left alone", 1, "x, weights, biases", left_alone(COLUMN_CASES)),
    ),
    (
        *BEFORE,
        Hint("one result per layer", s.kind("no list"),
             "the layers share x, not their results: return a list with this rank's columns of "
             "each."),
        Hint("columns gathered", s.both(s.kind("form"), lambda p: p.fact("numel", 0) > 0),
             "this rank's columns are the result: a row-parallel layer takes them as they are."),
        Hint("x enters once per layer", s.both(s.kind("calls"), lambda p: len(p.facts["got"]) > 1),
             "all layers read the same x: call input_mapping once, before the loop. Autograd adds "
             "their gradients on the rank, and one all-reduce serves them all."),
        *AFTER,
    ),
    (*ways.MAY_CALL, *MAPPINGS),
)  # fmt: skip
ROW_PARALLEL = ways.exercise(
    linear.row_parallel, ROW_CASES, _rows, _start(mappings.reduce_from_group),
    (
        claim("the whole result", 3, f"{ways.GROUPS_SAY}; no bias",
              fitting(ROW_CASES), ways.found(ROW_CASES, "forward"), kept(ROW_CASES)),
        claim("gradients of the whole layer", 3, "of x, weight, bias",
              ways.found(ROW_CASES, "backward")),
        claim("one all-reduce, forward", 2, "of BTF elements; backward nothing",
              only_calls(ROW_CASES, ways.once("forward"))),
        claim("arguments left alone", 1, "x, weight, bias", left_alone(ROW_CASES)),
    ),
    (
        Hint("the bias inside the sum", s.fact("of", "bias.grad"),
             "y is right, but not the gradient of the bias. It is replicated, is added once, "
             "after output_mapping, and its gradient is the same on all ranks."),
        *BEFORE,
        Hint("gathered", ways.larger,
             "partial sums are added, not concatenated: output_mapping(partial, group)."),
        ways.SENT_OFTEN, *AFTER,
    ),
    (*ways.MAY_CALL, *MAPPINGS),
)  # fmt: skip
EXERCISE = Bundle("linear_layers", (COLUMN_PARALLEL, ROW_PARALLEL))
