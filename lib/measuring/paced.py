"""Paced devices: layers that wait instead of computing, so that two cores can show what eight
devices would do.

    a device      [== forward ==][==== backward ====]  its own processor is busy
    a paced rank  [..  sleep  ..][....  sleep   ....]  the machine's cores are free for other ranks

Ranks that compute share the machine's cores. Eight of them on two cores are four times slower than
two, so their times say nothing about eight devices. Ranks that sleep do not disturb each other.
Everything else is real: parameters, gradients, buckets and messages. Therefore the same wrappers
run on paced layers, and the gradients can be compared with those of a single process. With
`collectives.slow_link` the network is paced too, so that the time of a step can test a formula.

    y       = x (1 + mean(w))             forward     x (B, ...), w (n,)
    dL/dx   = g (1 + mean(w))             backward    g = dL/dy
    dL/dw_i = sum(g x) / n                            depends on this rank's rows

A PacedLayer computes these three lines. The arithmetic counts as part of the layer's time, provided
that it takes less than that. A sleep ends about 0.1 ms late, and later on a busy machine, so choose
times of milliseconds.
"""

import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import backend


class PacedLayer(nn.Module):
    """x (B, ...) -> (B, ...), of the same shape: a layer of `n_parameters` parameters that takes as
    long as it is told to.

    forward_seconds, backward_seconds: per row of x, so that a rank with half the rows takes half
    the time. The weight starts at zero, so that at first the output equals the input.
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
    """y = x (1 + mean(w)). Neither forward nor backward returns before its time is over."""

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
    """x (b, n) -> (b, n), of the same shape: a pipeline stage that takes as long as it is told to,
    per micro-batch.

        forward    y = x w^T,  w (n, n)                                     forward_seconds
        backward   dL/dx = g w,       the half that the previous stage      input_seconds
                                      waits for
                   dL/dw = g^T x,     the half that can be delayed          weight_seconds

    A backward pass takes both times, whether it runs in one go or in two halves. The first wait is
    in a hook on y, when its gradient arrives, and the second when w's gradient is added to
    `w.grad`. The weight starts as the identity, so that at first the output equals the input.
    """

    def __init__(self, n, forward_seconds, input_seconds, weight_seconds):
        """Raises ValueError for rows without elements, or for a time below 0."""
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
    """Run the block, and sleep until `seconds` have passed since its beginning. On a GPU the block
    begins when its inputs have been computed."""
    backend.synchronize_stream()
    began = time.monotonic()
    yield
    time.sleep(max(0.0, began + seconds - time.monotonic()))


def sleep(seconds):
    """Wait until everything that was launched so far has been computed, and then sleep. Otherwise
    the sleep would begin too early on a GPU, because the host runs ahead of it."""
    backend.synchronize_stream()
    time.sleep(seconds)


class Spans(list):
    """A list of what this rank did, and when: [(rank, lane, label, begin, end), ...], as
    `plots.step_timeline` draws it.

        spans = Spans()
        with spans("compute", "backward"):
            loss.backward()

    Times are seconds of a clock that all ranks of a machine share. Spans of one lane should not
    overlap, because each lane is drawn as one row.
    """

    @contextlib.contextmanager
    def __call__(self, lane, label):
        began = time.monotonic()
        yield
        self.append((dist.get_rank(), lane, label, began, time.monotonic()))
