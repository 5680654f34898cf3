"""A chain of layers whose backward passes a gate behind each, where zero2.py looks at what is sent
and what memory is held.

    forward    layer 0 -> gate -> layer 1 -> gate -> ... -> layer 4
    backward   layer 4 -> gate -> layer 3 -> gate -> ... -> layer 0  each layer a flat: 0, 1, ..., 4

    behind flat j     lines j - 1 and j          under way: padded elements each
                      pieces 0 to j - 2          in the shards' .grad: padded/N elements each
                      nothing else               the parameters' .grad are gone

Backward is past a gate when all gradients of the layer behind it are there and have been seen by
their hooks.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from lib import backend
from lib.check.cases import Case, draw

WIDTHS = (3, 4, 5, 6, 7, 8)  # layers of 12, 20, 30, 42 and 56 weights: no two flats are alike
LAYERS = len(WIDTHS) - 1
GATES = LAYERS - 1
EACH = 8  # bytes of a float64


class Chain(nn.Module):
    """x (B, 3) -> (B, 8), float64, linear, without biases. registered: the order in which
    it names its layers."""

    def __init__(self, registered):
        super().__init__()
        layers = [nn.Linear(m, n, bias=False, dtype=torch.float64) for m, n in pairwise(WIDTHS)]
        self.in_order = [f"layer {i}" for i in range(LAYERS)]
        self.gate = lambda gradient: None
        for i in registered:
            layers[i].weight.data = draw(i, WIDTHS[i + 1], WIDTHS[i]) / 4
            self.add_module(self.in_order[i], layers[i])
        self.to(backend.device())

    def forward(self, x):
        for i, name in enumerate(self.in_order):
            x = getattr(self, name)(Gate.apply(x, self.gate) if i else x)
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
    """A chain, trained as `zero_models.Setup` trains its model."""

    words: str
    registered: tuple[int, ...] = tuple(range(LAYERS))
    optimizer: str = "SGD"
    parameters: int = sum(m * n for m, n in pairwise(WIDTHS))
    microbatches: int = 1
    models: int = 1

    def case(self, members):
        return Case(members, self.parameters, what=self.words)

    def model(self):
        return Chain(self.registered)

    def batches(self, rank, step):
        seed = 10 * rank + step
        return [(draw(100 + seed, 2, WIDTHS[0]), draw(500 + seed, 2, WIDTHS[-1]))]

    def loss(self, model, batch):
        x, y = batch
        return (model(x) * y).sum()
