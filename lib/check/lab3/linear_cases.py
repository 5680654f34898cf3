"""Whole linear layers in one process, a rank's parts of them, and what known mistakes make of their numbers.

    columns    x (B, T, 5) on all ranks     three layers 12, 24, 12 wide, the last without bias
    rows       x (B, T, 12/tp) on each      a layer 5 wide, with a bias and without

Whole numbers in float64: right is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from lib.check.framework import Problem
from lib.check.lab0.cases import form_of
from lib.check.lab1.cases import Case
from lib.check.lab3.compare import multiples, wrong
from lib.check.lab3.groups import GROUPS, draw

B, T, NARROW, WIDTHS = 2, 3, 5, (12, 24, 12)
NO_BIAS = "no bias"
COLUMN_CASES = [Case("column_parallel", members) for members in GROUPS]
ROW_CASES = [*(Case("row_parallel", members) for members in GROUPS), Case("row_parallel", GROUPS[2], NO_BIAS)]


@dataclass
class Setting:
    """What a rank's answer is given, and how to judge what it makes of it."""

    x: torch.Tensor
    layers: list  # with .weight and .bias, and nothing else
    loss: Callable  # of what the answer returns
    wrong_output: Callable  # (where, what it returned) -> Problem or None
    wrong_gradient: Callable  # (where) -> Problem or None, after backward

    def tensors(self):
        return [self.x, *(t for layer in self.layers for t in (layer.weight, layer.bias) if t is not None)]


def _layer(weight, bias):
    leaf = lambda t: None if t is None else t.detach().clone().requires_grad_()
    return SimpleNamespace(weight=leaf(weight), bias=leaf(bias))


def columns(case, rank):
    """x on all ranks, this rank's columns of three layers; the loss weighs every column in its own way."""
    N, whole_x = case.world_size, draw(0, B, T, NARROW).requires_grad_()
    biases = [draw(20, WIDTHS[0]), draw(21, WIDTHS[1]), None]
    wholes = [_layer(draw(i, F_, NARROW), bias) for i, (F_, bias) in enumerate(zip(WIDTHS, biases, strict=True), 1)]
    weights = [draw(10 + i, B, T, F_) for i, F_ in enumerate(WIDTHS)]  # of the loss
    whole_ys = [F.linear(whole_x, whole.weight, whole.bias) for whole in wholes]  # (B, T, F)
    sum((y * w).sum() for y, w in zip(whole_ys, weights, strict=True)).backward()

    own = lambda t, dim=0: None if t is None else t.detach().chunk(N, dim)[rank]
    layers = [_layer(own(whole.weight), own(whole.bias)) for whole in wholes]
    x = whole_x.detach().clone().requires_grad_()

    def loss(ys):
        return sum((y * own(w, -1)).sum() for y, w in zip(ys, weights, strict=True))

    def wrong_output(where, ys):
        if not isinstance(ys, (list, tuple)) or len(ys) != len(layers):
            got = f"a {type(ys).__name__} of {len(ys)}" if isinstance(ys, (list, tuple)) else form_of(ys)
            return Problem("no list", f"{where}: expected a list of {len(layers)} tensors, got {got}")
        problems = (_wrong_columns(f"{where}: layer {i}", y, whole_ys[i].detach(), layers[i].bias, rank, N)
                    for i, y in enumerate(ys))  # fmt: skip
        return next(filter(None, problems), None)

    def wrong_gradient(where):
        known = multiples(whole_x.grad, N)
        if N > 1:
            dx = lambda of: sum(of(w) @ layer.weight.detach() for w, layer in zip(weights, layers, strict=True))
            known["this rank's own part"] = dx(lambda w: own(w, -1))
            known["this rank's own part, had all ranks' columns one gradient"] = dx(lambda w: sum(w.chunk(N, -1)))
        problem = wrong(f"{where}: x.grad", x.grad, whole_x.grad, known)
        for i, (layer, whole) in enumerate(zip(layers, wholes, strict=True)):
            for name in ("weight", "bias") if layer.bias is not None else ("weight",):
                want, got = own(getattr(whole, name).grad), getattr(layer, name).grad
                problem = problem or wrong(f"{where}: layer {i}'s {name}.grad", got, want, {})
        return problem

    return Setting(x, layers, loss, wrong_output, wrong_gradient)


def _wrong_columns(where, y, whole_y, bias, rank, N):
    parts, known = whole_y.chunk(N, -1), {}
    want, bias = parts[rank], None if bias is None else bias.detach()
    if bias is not None:
        known["expected without the bias"] = want - bias
    if N > 1:
        known |= {"all ranks' columns added up": sum(parts), "all ranks' columns side by side": whole_y}
        known[f"the product {N} times, plus the bias"] = N * want - (0 if bias is None else (N - 1) * bias)
    return wrong(where, y, want, known)


def rows(case, rank):
    """This rank's columns of x, and its rows of a layer; the loss is the same on all ranks."""
    N, whole_x, w = case.world_size, draw(0, B, T, WIDTHS[0]).requires_grad_(), draw(1, B, T, NARROW)
    whole = _layer(draw(2, NARROW, WIDTHS[0]), None if case.what == NO_BIAS else draw(3, NARROW))
    whole_y = F.linear(whole_x, whole.weight, whole.bias)  # (B, T, F)
    (whole_y * w).sum().backward()

    xs, want = whole_x.detach().chunk(N, -1), whole_y.detach()
    weights = whole.weight.detach().chunk(N, 1)
    x, layer = xs[rank].clone().requires_grad_(), _layer(weights[rank], whole.bias)

    def wrong_output(where, y):
        bias = 0 if whole.bias is None else whole.bias.detach()
        known = {} if whole.bias is None else {"expected without the bias": want - bias}
        if N > 1:
            partials = [F.linear(*both) for both in zip(xs, weights, strict=True)]
            known |= {
                "this rank's partial sum": partials[rank],
                "this rank's partial sum, plus the bias": partials[rank] + bias,
                "all ranks' partial sums side by side": torch.cat(partials, -1),
                "this rank's weight times the sum of all ranks' x": F.linear(sum(xs), weights[rank]) + bias,
                f"the sum {N} times, plus the bias": N * want - (N - 1) * bias,
            }
            if whole.bias is not None:
                known[f"expected with the bias {N} times"] = want + (N - 1) * bias
        return wrong(f"{where}: y", y, want, known)

    def wrong_gradient(where):
        dxs = whole_x.grad.chunk(N, -1)
        known = {"all ranks' gradients added up": sum(dxs), **multiples(dxs[rank], N)} if N > 1 else {}
        problem = wrong(f"{where}: x.grad", x.grad, dxs[rank], known)
        problem = problem or wrong(f"{where}: weight.grad", layer.weight.grad, whole.weight.grad.chunk(N, 1)[rank], {})
        if whole.bias is None:
            return problem
        return problem or wrong(f"{where}: bias.grad", layer.bias.grad, whole.bias.grad, multiples(whole.bias.grad, N))

    return Setting(x, [layer], lambda y: (y * w).sum(), wrong_output, wrong_gradient)
