"""Paced devices: layers that wait instead of computing, so that two cores can show what eight
devices would do.

    a device      [== forward ==][==== backward ====]  its own processor is busy
    a paced rank  [..  sleep  ..][....  sleep   ....]  the machine's cores are free for other ranks

Ranks that compute share the machine's cores: eight of them on two cores are four times slower than
two, and say nothing about eight devices. Ranks that sleep do not disturb each other. All else is
real: parameters, gradients, buckets, messages; so the same wrappers run on it, and its gradients
can be compared with those of one process. With `collectives.slow_link` the network is paced too,
and a step takes as long as a formula says, or the formula is wrong.

    y       = x (1 + mean(w))             forward     x (B, ...), w (n,)
    dL/dx   = g (1 + mean(w))             backward    g = dL/dy
    dL/dw_i = sum(g x) / n                            depends on this rank's rows

The arithmetic is part of the set time, as long as it is shorter. A sleep ends a little late, by
about 0.1 ms, and more on a busy machine, so choose times of milliseconds.
"""

import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import backend


class PacedLayer(nn.Module):
    """x (B, ...) -> (B, ...), of the same shape: a layer of `n_parameters` parameters that takes
    the time it is told.

    forward_seconds, backward_seconds: per row of x, so that a rank with half the rows takes half
    the time. The weight starts at zero, where the layer's output is its input.
    """

    def __init__(self, n_parameters, forward_seconds, backward_seconds):
        """Raises ValueError for a layer without parameters, or for a time below 0."""
        super().__init__()
        if n_parameters < 1 or min(forward_seconds, backward_seconds) < 0:
            raise ValueError(
                f"n_parameters={n_parameters}, forward_seconds={forward_seconds}, "
                f"backward_seconds={backward_seconds}: use at least 1 parameter, and times of 0 or "
                "more"
            )
        self.weight = nn.Parameter(torch.zeros(n_parameters))  # (n,)
        self.forward_seconds, self.backward_seconds = forward_seconds, backward_seconds

    def forward(self, x):
        return Paced.apply(
            x, self.weight, len(x) * self.forward_seconds, len(x) * self.backward_seconds
        )


class Paced(torch.autograd.Function):
    """y = x (1 + mean(w)), each way not before its time is over."""

    @staticmethod
    def forward(ctx, x, weight, forward_seconds, backward_seconds):
        with at_least(forward_seconds):
            ctx.save_for_backward(x, weight)
            ctx.seconds = backward_seconds
            return x * (1 + weight.mean())

    @staticmethod
    def backward(ctx, g):
        with at_least(ctx.seconds):
            x, weight = ctx.saved_tensors
            of_each = (g * x).sum() / weight.numel()  # ()
            return g * (1 + weight.mean()), of_each.repeat(weight.numel()), None, None


class PacedStage(nn.Module):
    """x (b, n) -> (b, n), of the same shape: a pipeline's stage that takes the times it is told,
    per micro-batch.

        forward    y = x w^T,  w (n, n)                                     forward_seconds
        backward   dL/dx = g w,       the half that the previous stage      input_seconds
                                      waits for
                   dL/dw = g^T x,     the half that can be delayed          weight_seconds

    Whole or in halves, a backward takes both: the first wait is where the gradient of y arrives,
    the second where that of w is added to `w.grad`. The weight starts at one: the stage's output is
    its input.
    """

    def __init__(self, n, forward_seconds, input_seconds, weight_seconds):
        """Raises ValueError for rows of no element, or for a time below 0."""
        super().__init__()
        if n < 1 or min(forward_seconds, input_seconds, weight_seconds) < 0:
            raise ValueError(
                f"n={n}, forward_seconds={forward_seconds}, input_seconds={input_seconds}, "
                f"weight_seconds={weight_seconds}: use rows of "
                f"at least 1 element, and times of 0 or more"
            )
        self.weight = nn.Parameter(torch.eye(n))  # (n, n)
        self.weight.register_post_accumulate_grad_hook(lambda _: sleep(weight_seconds))
        self.forward_seconds, self.input_seconds = forward_seconds, input_seconds

    def forward(self, x):
        with at_least(self.forward_seconds):
            y = F.linear(x, self.weight)
            if y.requires_grad:
                y.register_hook(lambda _: sleep(self.input_seconds))
            return y


@contextlib.contextmanager
def at_least(seconds):
    """The block, and then sleep until `seconds` have passed since it began: when what it computes
    with was there."""
    backend.synchronize_stream()
    began = time.monotonic()
    yield
    time.sleep(max(0.0, began + seconds - time.monotonic()))


def sleep(seconds):
    """Sleep from when what has been computed so far is there: on a GPU the host is ahead of it."""
    backend.synchronize_stream()
    time.sleep(seconds)


class Spans(list):
    """What this rank did, and when: [(rank, lane, label, begin, end), ...], as
    `plots.step_timeline` draws it.

        spans = Spans()
        with spans("compute", "backward"):
            loss.backward()

    Times are seconds of a clock that all ranks of a machine share. A lane holds one thing at a
    time.
    """

    @contextlib.contextmanager
    def __call__(self, lane, label):
        began = time.monotonic()
        yield
        self.append((dist.get_rank(), lane, label, began, time.monotonic()))
