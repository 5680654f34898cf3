"""A chain of layers whose backward stops before the first of them, until a bucket is under way.

    forward     layer 0 -> gate -> layer 1 -> layer 2 -> layer 3
    backward    layer 3 -> layer 2 -> layer 1 -> gate -> layer 0

The gate does nothing forward. Backward it tells `watched` (`watched.py`) that one layer is left, and waits for it.
"""

from itertools import pairwise

import torch
from torch import nn

WIDTHS = (3, 4, 5, 6, 7)  # of the chain: layers of 16, 25, 36 and 49 parameters


class Chain(nn.Module):
    """x (B, 3) -> layer 0 -> layer 1 -> layer 2 -> layer 3 -> (B, 7), float64, linear: gradients are whole numbers."""

    def __init__(self, seed, watched=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(m, n) for m, n in pairwise(WIDTHS))
        self.watched = watched
        self.double()
        generator = torch.Generator("cpu").manual_seed(seed)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randint(1, 4, parameter.shape, generator=generator, device="cpu"))

    def forward(self, x):
        h = self.layers[0](x)
        if self.watched is not None:
            h = Gate.apply(h, self.watched)
        for layer in self.layers[1:]:
            h = layer(h)
        return h


class Gate(torch.autograd.Function):
    """y = x. Backward tells `watched` that only the layers before it are still to come."""

    @staticmethod
    def forward(ctx, x, watched):
        ctx.watched = watched
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.watched.last_layer_begins()
        return gradient, None
