"""Layers whose backward passes a gate behind each of them, to be told and to wait; each layer is a flat of its own.

    forward     layer 0 -> gate -> layer 1 -> gate -> ... -> layer 4
    backward    layer 4 -> gate -> layer 3 -> gate -> ... -> layer 0         flats 0, 1, ..., 4

Backward is past a gate when all gradients of the layer behind it are there and have been seen by their hooks.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from lib import backend
from lib.check.lab3.groups import draw

WIDTHS = (3, 4, 5, 6, 7, 8)  # layers of 12, 20, 30, 42 and 56 weights: no two flats are alike
LAYERS = len(WIDTHS) - 1
GATES = LAYERS - 1


class Chain(nn.Module):
    """x (B, 3) -> (B, 8), float64, linear, without biases. registered: the order in which it names its layers."""

    def __init__(self, registered=range(LAYERS), gate=None):
        super().__init__()
        layers = [nn.Linear(m, n, bias=False, dtype=torch.float64) for m, n in pairwise(WIDTHS)]
        self.gate, self.in_order = gate, [f"layer {i}" for i in range(LAYERS)]
        for i in registered:
            layers[i].weight.data = draw(i, WIDTHS[i + 1], WIDTHS[i]) / 4
            self.add_module(self.in_order[i], layers[i])
        self.to(backend.device())

    def forward(self, x):
        for i, name in enumerate(self.in_order):
            x = getattr(self, name)(x if i == 0 or self.gate is None else Gate.apply(x, self.gate))
        return x


class Gate(torch.autograd.Function):
    """y = x. Backward calls gate(gradient) as it passes."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.gate = gate
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.gate(gradient)
        return gradient, None


@dataclass(frozen=True)
class ChainSetup:
    """A chain, trained as `zero2_models.Setup` trains its model."""

    words: str
    registered: tuple[int, ...] = tuple(range(LAYERS))
    optimizer: str = "SGD"
    parameters: int = sum(m * n for m, n in pairwise(WIDTHS))
    microbatches: int = 1
    steps: int = 2

    def model(self, gate=None):
        return Chain(self.registered, gate)

    def loss(self, model, rank, step):
        x, y = draw(100 + 10 * rank + step, 2, WIDTHS[0]), draw(500 + 10 * rank + step, 2, WIDTHS[-1])
        yield (model(x) * y).sum()
