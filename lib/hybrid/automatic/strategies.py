"""The strategies of an operator: the ways in which it can be split over the ranks. The table shows
for each the layout (layouts.py) that its inputs must have, that of its result, and those in which
it uses its weights.

    operator     strategy     reads        gives        weight     bias
    linear       replicate    REPLICATE    REPLICATE    REPLICATE  REPLICATE
    (.., I)->O   dim d        d            d            COPY       COPY       rows: data, sequence
                 column       COPY         its columns  0          0
                 row          its columns  PARTIAL      1          PARTIAL
    elementwise  replicate, or any dim d: gives what it reads
    norm         replicate, or a dim but the last       COPY       COPY
    attention    replicate, sequences (dim 0) or heads (dim 1)
    split_heads  replicate; sequences; tokens 1 -> 2; columns 2 -> heads 1    merge_heads: back
    sum          replicate; a dim that stays; a dim that is summed over -> PARTIAL

In all strategies a rank calls the same function as a single process would, on tensors of full or
smaller size. Therefore nothing is sent inside of an operator. Messages are sent only between
operators, if a result does not have the layout that its reader needs. A weight is stored as
REPLICATE or as shards. It is changed to the layout in which the operator uses it, which sends
nothing in forward. However, if a replicated weight is used as a COPY, its gradient is summed over
the ranks, as in data parallelism.

    Megatron's MLP  REPLICATE --f--> COPY  column  dim 2  gelu  dim 2  row  PARTIAL --g--> REPLICATE
"""

import math
from typing import NamedTuple

from lib.hybrid.automatic.layouts import COPY, PARTIAL, REPLICATE


class Strategy(NamedTuple):
    """One way to split an operator. The layouts are those of layouts.py."""

    name: str
    reads: object  # the layout that every input must have; None: reads nothing
    gives: object  # the layout of the result; None: gives nothing
    weights: dict  # {"weight": layout, ...} in which it uses its weights
    share: float  # of the compute that one rank does


def home(layout):
    """The layout in which we store a weight that is used in `layout`: the same one if that is a
    shard, and REPLICATE otherwise."""
    return layout if isinstance(layout, int) else REPLICATE


def strategies(op, shapes, N, given=REPLICATE, wanted=REPLICATE):
    """[Strategy, ...] of an Operator on N ranks, "replicate" first. Strategies are left out if N
    does not divide a dim that they split.

    shapes: {name: shape} of all operators. given, wanted: the layouts of the graph's input and
    output. Raises ValueError if N does not divide the dim on which input or output is split.
    """
    part = 1 / N
    n_dims = len(shapes[op.inputs[0]]) if op.inputs else len(op.shape)
    last = n_dims - 1
    split = lambda d, to, **weights: Strategy(f"dim {d}", d, to, weights, part)
    whole = Strategy("replicate", REPLICATE, REPLICATE, dict.fromkeys(op.weights, REPLICATE), 1.0)
    match op.kind:
        case "input":
            found = [Strategy("given", None, given, {}, 0.0)]
        case "output":
            found = [Strategy("wanted", wanted, None, {}, 0.0)]
        case "linear":
            column = Strategy("column", COPY, last, {"weight": 0, "bias": 0}, part)
            row = Strategy("row", last, PARTIAL, {"weight": 1, "bias": PARTIAL}, part)
            found = [
                whole,
                *(split(d, d, weight=COPY, bias=COPY) for d in range(last)),
                column,
                row,
            ]
        case "norm":
            found = [whole, *(split(d, d, weight=COPY, bias=COPY) for d in range(last))]
        case "elementwise":
            found = [whole, *(split(d, d) for d in range(n_dims))]
        case "attention":
            found = [whole, split(0, 0), split(1, 1)]
        case "split_heads":
            found = [whole, split(0, 0), split(1, 2), split(2, 1)]  # (B, T, D) -> (B, H, T, d)
        case "merge_heads":
            found = [whole, split(0, 0), split(2, 1), split(1, 2)]
        case "sum":
            stays = lambda d: d - sum(gone < d for gone in op.dims)
            found = [
                whole,
                *(split(d, PARTIAL if d in op.dims else stays(d)) for d in range(n_dims)),
            ]
        case _:
            raise ValueError(f"{op.name}: no strategies for an operator of kind {op.kind}")
    fitting = [_with(op, each) for each in found if _fits(op, each, shapes, N)]
    if not fitting:
        layout = given if op.kind == "input" else wanted
        raise ValueError(
            f"{op.name} {op.shape} on dim {layout}: {N} ranks do not divide it, use {REPLICATE}"
        )
    return fitting


def _with(op, strategy):
    """The strategy with only those weights that the operator has, e.g. of a layer without bias."""
    return strategy._replace(
        weights={name: layout for name, layout in strategy.weights.items() if name in op.weights}
    )


def _fits(op, strategy, shapes, N):
    """Does N divide every dim that this strategy splits?"""
    split = [(shapes[name], strategy.reads) for name in op.inputs] + [(op.shape, strategy.gives)]
    split += [(shape, strategy.weights[name]) for name, shape in op.weights.items()]
    return all(shape[layout] % N == 0 for shape, layout in split if isinstance(layout, int))


def elements(shape):
    """How many elements a tensor of this shape has."""
    return math.prod(shape)
