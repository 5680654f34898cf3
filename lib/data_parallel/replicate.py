"""The simplest data parallelism: every rank starts with a copy of rank 0's model, and after each
backward one all-reduce per parameter averages the gradients.

    rank 0   w = 0.3  --broadcast-->  0.3
    rank 1   w = 0.9                  0.3        copies that start equal and get equal gradients
    rank 2   w = 0.1                  0.3        stay equal

Buffers, such as the running mean of a batch norm, have no gradients that would keep them equal.
Each rank updates its own from its share of the batch, so they differ after one step. Call
`broadcast_buffers`, which copies rank 0's, before you evaluate or save. (By default, torch's
DistributedDataParallel does it before every forward.) With a batch norm the ranks also do not
compute what a single process computes on the whole batch, because each rank normalises by the
statistics of its share. A layer norm has no such problem, because it treats each example alone.

The gradients are averaged one parameter after the other:

    forward   backward                     all-reduce w0  all-reduce b0  all-reduce w1  ...   update
    [=======] [====================]       [--]           [-]            [--]                 [=]

    g = 1/N (g_0 + g_1 + ... + g_{N-1})  the gradient of the batch's mean loss, for equal shards

With N ranks and P parameters of n elements in all, a step has P all-reduces, and with rings the
ranks together send 2(N-1)n elements. Nothing is computed meanwhile, so the time of a step is the
sum of compute and communication.

Gradient accumulation: a large batch is computed in k micro-batches, with one exchange of gradients.

    micro-batch 0     micro-batch 1     ...  micro-batch k-1
    [forward backward][forward backward]     [forward backward ]   per example 1/k of the messages
     no_sync           no_sync                [= all-reduces =]    and bytes

    1/C sum_i grad s_i = grad (1/C sum_i s_i)  the gradient of the batch: s_i is the sum of
                                               micro-batch i's losses, C the tokens of all k

It also saves memory, because only one micro-batch's activations exist at a time.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group
from lib.training.buckets import check_replicated, gradient


# exercise: lab1.broadcast_parameters
@torch.no_grad()
def broadcast_parameters(module: nn.Module, group: Group = None) -> None:
    """Copy rank 0's parameters and buffers to every rank of `group`, in place. Frozen parameters
    are sent too, and tied ones once.

    Sends: one tree broadcast per tensor, (N-1) n elements over all ranks.
    """
    for tensor in [*module.parameters(), *module.buffers()]:
        collectives.broadcast(tensor, 0, group)


@torch.no_grad()
def broadcast_buffers(module: nn.Module, group: Group = None) -> None:
    """Copy rank 0's buffers to every rank of `group`, in place. Sends: one tree broadcast per
    buffer."""
    for tensor in module.buffers():
        collectives.broadcast(tensor, 0, group)


class Replicated(nn.Module):
    """The base class of the wrappers: `module` with rank 0's values on every rank of `group`.
    Calling it calls `module`.

    all_reduce: all_reduce(tensor, group) sums in place over the ranks. Subclasses define what they
    reduce, and when. Raises ValueError for a model with shards or experts that differ between the
    ranks of `group`, because rank 0's would overwrite the others'.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group = None,
        all_reduce: Collective = collectives.all_reduce,
    ) -> None:
        super().__init__()
        self.module, self.group, self.all_reduce = module, group, all_reduce
        check_replicated(module.parameters(), group)
        broadcast_parameters(module, group)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def trained(self) -> list[nn.Parameter]:
        """The parameters that are trained, in the order of `module.parameters()`, usually that of
        the forward pass. A tied one is listed once."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """A context in which backward only accumulates gradients and sends none of them."""
        return contextlib.nullcontext()  # nothing is sent before `average_gradients` anyway

    def average_gradients(self) -> None:
        """Replace every `.grad` by its mean over the ranks. Call it after backward and before the
        optimizer."""
        raise NotImplementedError


# exercise: lab1.average_gradients
@torch.no_grad()
def average_gradients(
    parameters: Iterable[nn.Parameter],
    group: Group = None,
    all_reduce: Collective = collectives.all_reduce,
) -> None:
    """Replace the gradient of each parameter by its mean over the ranks of `group`.

    parameters: the same on every rank, in the same order. Frozen ones are left alone; one that this
    rank did not use contributes zeros. Sends: one all-reduce per parameter, of its gradient.
    """
    world_size = dist.get_world_size(group)
    for parameter in parameters:
        if parameter.requires_grad:
            mean = gradient(parameter)
            all_reduce(mean, group)
            mean /= world_size  # the sum over ranks becomes the mean


class NaiveDataParallel(Replicated):
    """`module` on every rank. After backward, the gradients are averaged one by one."""

    def average_gradients(self) -> None:
        average_gradients(self.trained(), self.group, self.all_reduce)


# exercise: lab1.accumulate
def accumulate(
    model: Replicated, microbatches: Sequence[Any], counts: Sequence[int], loss_fn: Callable
) -> Tensor:
    """Run backward over k micro-batches, then `model.average_gradients()` once. Returns the mean
    loss per token on this rank, detached, ().

    model: one of this package's wrappers. microbatches: a list, of the same length on every rank.
    counts: the number of tokens in each micro-batch; they may differ, but their sum is the same on
    every rank. loss_fn: loss_fn(model, microbatch) -> (), the sum of the losses of its tokens.
    Raises ValueError for an empty list.
    """
    if not microbatches:
        raise ValueError("no micro-batches: a step needs at least one")
    tokens, mean = sum(counts), torch.zeros(())
    for i, microbatch in enumerate(microbatches):
        is_last = i == len(microbatches) - 1
        # Only the last backward may send, because a bucket that is sent earlier misses the
        # gradients still to come.
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = loss_fn(model, microbatch) / tokens
            loss.backward()
        mean = mean + loss.detach()
    model.average_gradients()
    return mean
