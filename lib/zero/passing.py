"""Be told when backward passes a place: between the modules of a model, where their tensors go by.

    forward     x --[ after ]--> module --[ before ]--> y         nothing happens: the tensors go through
    backward  g_x <-[ after ]--  module <-[ before ]--- g_y
                        2. module is done   1. module begins

autograd runs what was made last first, and adds to the parameters' `.grad` as soon as it can: so when the gradients of
all of a module's inputs are there, those of its parameters are too.
"""

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten


class Passing(torch.autograd.Function):
    """The identity on any number of tensors; in backward, calls `then()` once, when all their gradients are there."""

    @staticmethod
    def forward(ctx, then, *tensors):
        ctx.then = then
        return tensors

    @staticmethod
    def backward(ctx, *gradients):
        ctx.then()
        return None, *gradients


def on_backward(then, values):
    """`values`, any nest of tuples, lists and dicts, such that backward through its tensors calls `then()`.

    Never called where no tensor in it needs a gradient: tokens do not, nor does anything under torch.no_grad().
    """
    leaves, nest = tree_flatten(values)
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.requires_grad]
    if places and torch.is_grad_enabled():
        for i, passed in zip(places, Passing.apply(then, *(leaves[i] for i in places)), strict=True):
            leaves[i] = passed
    return tree_unflatten(leaves, nest)
