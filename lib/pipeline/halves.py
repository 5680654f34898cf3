"""Backward in two halves without computing anything twice: the gradients of linear layers' weights
are delayed.

    forward    y = x w + b

    I          grad x = grad y w^T               now: the previous layer waits for it
    W          grad w = x^T grad y               later: x and grad y are kept until then
               grad b = sum of grad y's rows

Here w is (n_in, n_out), and F.linear's argument `weight` is w^T. This is the split backward: I is
also called dgrad, and BACKWARD_INPUT in torch.distributed.pipelining; W is wgrad, and
BACKWARD_WEIGHT.

autograd computes both at once. Inside `DeferredWgrad`, F.linear, which every nn.Linear calls,
becomes an autograd function whose backward computes only grad x and appends (weight, bias, x,
grad y) to a list. I is then an ordinary backward over such functions: it frees the graph, and only
the list remains. W computes what is in the list.

The gradients of parameters that are not weights of F.linear (the weights of norms, embeddings,
parameters that a stage uses directly) are computed in I, because autograd's kernels compute them
together with grad x. That is little work. So after I and W all gradients are complete, however a
stage uses its parameters, but only the weights and biases of F.linear wait for W.

Under autocast the matmul may run in a dtype that neither x nor w has. Both halves then multiply in
that dtype too, as autograd would, and their results are cast to the dtype of x and of w.

(Asking autograd once for each half, with `torch.autograd.grad(..., inputs=...)`, would pass through
the whole graph twice: W would compute every grad y again, which is nearly all of I's work, and
the whole graph would live until W.)

Source: Qi et al. 2024 ("Zero Bubble Pipeline Parallelism", arXiv 2401.10241), whose fork of
Megatron has such a list too, `WeightGradStore`.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class DeferredWgrad(TorchFunctionMode):
    """Defers the gradients of weights (wgrad): when an F.linear that ran inside runs backward, it
    appends to the list `deferred` what its weight's gradient needs. Use it for forward, and for I,
    in which recomputation runs forward again."""

    def __init__(self, deferred):
        super().__init__()
        self.deferred = deferred

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.linear:
            return self._linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _linear(self, x, weight, bias=None):
        # frozen, or not a leaf, so that autograd has to continue through it
        if not (weight.requires_grad and weight.is_leaf):
            return F.linear(x, weight, bias)
        # The weight is passed in a tuple, so that autograd does not see it: otherwise the weight's
        # hooks would run in I, where it has no gradient. But if no other input requires grad, as
        # for the first layer's x, autograd would not record this function: hence the anchor.
        anchor = torch.empty(0, requires_grad=True)
        return DeferredWgradLinear.apply(x, anchor, (weight, bias), self.deferred)


class DeferredWgradLinear(torch.autograd.Function):
    """F.linear for x (..., n_in), weight (n_out, n_in), bias (n_out,) or None; backward returns
    grad x and appends (weight, bias, x, grad y) to `deferred`."""

    @staticmethod
    def forward(ctx, x, anchor, parameters, deferred):
        y = F.linear(x, *parameters)  # (..., n_out), in autocast's dtype if that is on
        ctx.save_for_backward(x.to(y.dtype))
        ctx.parameters, ctx.deferred, ctx.dtype = parameters, deferred, x.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        (x,), (weight, bias) = ctx.saved_tensors, ctx.parameters
        # x, and not the graph that it came from
        ctx.deferred.append((weight, bias, x.detach(), grad_y))
        # (..., n_in)
        grad_x = (
            (grad_y @ weight.to(grad_y.dtype)).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        )
        return grad_x, None, None, None


def weight_gradients(deferred):
    """W: compute the gradients of each entry's weight and bias, add them to `.grad`, and empty the
    list."""
    while deferred:
        weight, bias, x, grad_y = deferred.pop(0)
        x, grad_y = x.flatten(0, -2), grad_y.flatten(0, -2)  # (rows, n_in), (rows, n_out)
        gradients = {weight: grad_y.T @ x}  # (n_out, n_in)
        if bias is not None and bias.requires_grad:
            gradients[bias] = grad_y.sum(0)  # (n_out,)
        # backward of a leaf adds to its .grad, and calls its hooks as any backward does.
        torch.autograd.backward(
            list(gradients), [g.to(parameter.dtype) for parameter, g in gradients.items()]
        )
