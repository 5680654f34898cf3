"""An autograd function whose forward and backward are handed in: so answers differ in one
of them alone."""

import sys

import cloudpickle
import torch

# Ranks get the class itself, as they get one of a notebook. If they imported this file, they could
# not be used again.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Pair(torch.autograd.Function):
    """Any forward, and any backward."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, dy):
        return ctx.back(dy), None, None
