"""An autograd function whose forward and backward are handed in: so answers differ in one
of them alone."""

import torch


class Pair(torch.autograd.Function):
    """Any forward, and any backward."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, dy):
        return ctx.back(dy), None, None
