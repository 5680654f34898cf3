"""Traces a module with torch.fx into a list of operators: what each computes, from which inputs,
and of which shape. This is the input of the search.

    class MLP:  x -> up -> gelu -> down              trace(MLP, (B, T, D)).operators:

                 name   kind          inputs   shape       weights
                 x      input         -        (B, T, D)
                 up     linear        x        (B, T, F)   weight (F, D), bias (F,)
                 gelu   elementwise   up       (B, T, F)
                 down   linear        gelu     (B, T, D)   weight (D, F), bias (D,)
                 output output        down     (B, T, D)

torch.fx calls the module's forward with a proxy for x, which records what is done to it. A layer of
torch.nn stays one operator, and so does each of the three functions of attention. The shapes come
from a second run on the meta device, which computes shapes and no values.
"""

import copy
import math
import operator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from lib.training.model import causal_attention, merge_heads, split_heads

KINDS = {
    nn.Linear: "linear", nn.LayerNorm: "norm", nn.GELU: "elementwise", nn.ReLU: "elementwise",
    nn.Tanh: "elementwise",
    nn.Dropout: "elementwise",
    F.gelu: "elementwise", F.relu: "elementwise", torch.tanh: "elementwise",
    operator.add: "elementwise", operator.mul: "elementwise", operator.sub: "elementwise",
    torch.sum: "sum", split_heads: "split_heads", merge_heads: "merge_heads",
    causal_attention: "attention",
}  # fmt: skip


class Operator(NamedTuple):
    """One operator as plain data."""

    name: str
    kind: str  # a value of KINDS, "input" or "output"
    inputs: tuple  # names of the operators whose results it reads
    shape: tuple  # of its result
    weights: dict  # {"weight": shape, "bias": shape} of a layer; {} of a function
    flops: int  # multiplications and additions in matrix products, forward
    touched: int  # elements read and written where there is no matrix product, forward
    dims: tuple = ()  # of "sum": those that are summed over


class Traced(NamedTuple):
    """A traced module: the graph, which can be run, and its operators, each of which comes after
    those that it reads."""

    module: fx.GraphModule
    operators: list  # [Operator, ...]


def trace(module, shape):
    """Trace `module`, which takes one tensor of `shape`, (B, ...), into a Traced. The module is not
    changed, and no values are computed.

    Raises ValueError for an operator that has no known strategies, for a layer with weights that is
    called twice, for dropout above 0, for broadcasting, for a norm over more than one dim, and for
    a sum with keepdim.
    """
    tracer = fx.Tracer(autowrap_functions=(split_heads, merge_heads, causal_attention))
    graph = tracer.trace(module)
    traced = fx.GraphModule(module, graph)
    called = [node.target for node in graph.nodes if node.op == "call_module"]
    owning = {name for name in called if list(module.get_submodule(name).parameters())}
    if twice := sorted(name for name in owning if called.count(name) > 1):
        raise ValueError(
            f"{', '.join(twice)}: called twice; a weight can "
            f"be cut in one way only, use a layer for each"
        )
    shapes = _Shapes(copy.deepcopy(traced).to("meta"))
    shapes.run(torch.empty(shape, device="meta"))
    return Traced(traced, [_operator(traced, node, shapes.found) for node in graph.nodes])


class _Shapes(fx.Interpreter):
    """Runs the graph and records the shape of every result."""

    def __init__(self, module):
        super().__init__(module)
        self.found = {}

    def run_node(self, node):
        result = super().run_node(node)
        self.found[node.name] = tuple(result.shape)
        return result


def _operator(traced, node, shapes):
    inputs, shape = tuple(each.name for each in node.all_input_nodes), shapes[node.name]
    if node.op in ("placeholder", "output"):
        kind = "input" if node.op == "placeholder" else "output"
        return Operator(node.name, kind, inputs, shape, {}, 0, 0)
    layer = traced.get_submodule(node.target) if node.op == "call_module" else None
    what = type(layer) if layer is not None else node.target
    what = torch.sum if node.op == "call_method" and node.target == "sum" else what
    if what not in KINDS:
        known = ", ".join(each.__name__ for each in KINDS)
        raise ValueError(f"{node.name}: {what} has no known way to be split; known are {known}")
    kind = KINDS[what]
    _check(node, kind, layer, [shapes[name] for name in inputs], shape)
    weights = (
        {name: tuple(p.shape) for name, p in layer.named_parameters()} if layer is not None else {}
    )
    n, read = math.prod(shape), sum(math.prod(shapes[name]) for name in inputs)
    if kind == "linear":
        flops = 2 * n * weights["weight"][1]
    else:
        # two matmuls of 2 B H T T d each: the scores, and the weighted sum of the values
        flops = 4 * n * shape[-2] if kind == "attention" else 0
    return Operator(
        node.name,
        kind,
        inputs,
        shape,
        weights,
        flops,
        0 if flops else n + read,
        _summed(node, kind, shapes),
    )


def _check(node, kind, layer, read, shape):
    p = (
        layer.p
        if isinstance(layer, nn.Dropout)
        else node.args[3]
        if kind == "attention" and len(node.args) > 3
        else 0
    )
    if p > 0:
        raise ValueError(
            f"{node.name}: dropout would draw different numbers on other ranks; use dropout=0.0"
        )
    if kind == "elementwise" and any(each != shape for each in read):
        raise ValueError(
            f"{node.name}: {read} are not of one shape; an "
            f"elementwise operator that spreads is not known"
        )
    if kind == "norm" and len(layer.normalized_shape) != 1:
        raise ValueError(
            f"{node.name}: a norm over {layer.normalized_shape}; use one over the last dim"
        )


def _summed(node, kind, shapes):
    """The dims over which a sum is taken, counted from 0; () for other kinds."""
    if kind != "sum":
        return ()
    n = len(shapes[node.all_input_nodes[0].name])
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", tuple(range(n)))
    if node.kwargs.get("keepdim") or len(node.args) > 2:
        raise ValueError(f"{node.name}: a sum that keeps its dims; use sum(dims) without keepdim")
    return tuple(sorted(d % n for d in ([dims] if isinstance(dims, int) else dims)))
