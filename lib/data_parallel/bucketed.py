"""Data parallelism with buckets: several gradients share one all-reduce, which can start while
backward still computes the gradients of the next bucket (Li et al. 2020).

    naive      [-][-][--][-][--][-][-][--]      P messages, alpha each
    buckets    [-----][------][-----]           as many bytes, alpha a few times

A bucket's gradients are copied into a flat buffer and back. This takes far less time than sending
the same bytes over the network.

Overlap: a bucket is sent while backward still computes the gradients of the next one.

    this thread     [ forward ][ backward: w3    w2    w1    w0 ][ wait ][ update ]
                                           |hook |hook |hook
    communication                          [= bucket 0 =][= bucket 1 =][= bucket 2 =]
                                                                   ^ only this much is exposed

autograd calls a hook when a parameter's gradient is complete. Each bucket has a flat buffer with a
slot for each of its parameters. The hook writes g/N into the slot, because the sum of g/N over the
ranks is the mean. The last hook of a bucket starts the bucket's all-reduce on the communication
thread (`collectives.start`). In the end the slots become the parameters' `.grad`, so nothing is
copied back (torch's DistributedDataParallel: `gradient_as_bucket_view=True`).

All ranks must start the same buckets in the same order, although they need not use the same
parameters. So on a rank where bucket 1 is complete and bucket 0 is not, bucket 1 waits, and
after backward, `average_gradients` starts all buckets that have not been started. A rank may even
skip backward altogether; it then contributes zeros.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lib import collectives
from lib.backend import Collective, Group
from lib.data_parallel.replicate import Replicated
from lib.training.buckets import (
    CAPACITY,
    dense_gradient,
    flatten,
    gradient,
    gradient_came_twice,
    plan_buckets,
    plan_tapered_buckets,
    slots,
    unflatten,
    when_gradient_is_ready,
)


# exercise: lab1.reduce_bucket
@torch.no_grad()
def reduce_bucket(
    parameters: Iterable[nn.Parameter],
    group: Group = None,
    all_reduce: Collective = collectives.all_reduce,
) -> None:
    """Replace the gradients of these parameters by their means over the ranks of `group`. Sends:
    one all-reduce.

    parameters: one bucket, of one dtype; a parameter that this rank did not use contributes zeros.
    """
    gradients = [gradient(parameter) for parameter in parameters]
    flat = flatten(gradients)  # (n,)
    all_reduce(flat, group)
    flat /= dist.get_world_size(group)
    unflatten(flat, gradients)


class BucketedDataParallel(Replicated):
    """`module` on every rank. After backward, the gradients are averaged in buckets of at most
    `capacity` bytes."""

    def __init__(
        self,
        module: nn.Module,
        group: Group = None,
        all_reduce: Collective = collectives.all_reduce,
        capacity: int = CAPACITY,
    ) -> None:
        super().__init__(module, group, all_reduce)
        self.buckets = plan_buckets(self.trained(), capacity)

    def average_gradients(self) -> None:
        for bucket in self.buckets:
            reduce_bucket(bucket, self.group, self.all_reduce)


# exercise: lab1.OverlappedDataParallel
class OverlappedDataParallel(Replicated):
    """`module` on every rank. Backward starts the all-reduce of a bucket as soon as its gradients
    are ready.

    all_reduce runs on the communication thread, so do not use the group for anything else until
    `average_gradients` has returned. start(all_reduce, tensor, group) starts it and returns an
    object with a `wait()`. Pass a different `start` for a transport that runs in the background by
    itself, as `dist.all_reduce(tensor, group=group, async_op=True)` does. The tensors in `.grad`
    are used again in the next step, so clone one that you want to keep. Raises RuntimeError from
    backward if a gradient is computed a second time before `average_gradients`, because its bucket
    may have been sent.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group = None,
        all_reduce: Collective = collectives.all_reduce,
        capacity: int = CAPACITY,
        start: Callable[..., Any] = collectives.start,
    ) -> None:
        super().__init__(module, group, all_reduce)
        self.start = start
        self.buckets = plan_tapered_buckets(self.trained(), capacity)
        # (n,) each
        self.flat_buffers = [
            bucket[0].new_zeros(sum(p.numel() for p in bucket)) for bucket in self.buckets
        ]
        self.bucket_of, self.slot_of = {}, {}
        for i, bucket in enumerate(self.buckets):
            self.bucket_of |= dict.fromkeys(bucket, i)
            self.slot_of |= zip(bucket, slots(self.flat_buffers[i], bucket), strict=True)
        self.syncs = True
        self._begin_step()
        when_gradient_is_ready(self.bucket_of, self._gradient_is_ready)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:  # type: ignore[override]
        """A context in which backward only accumulates gradients and sends none of them."""
        before, self.syncs = self.syncs, False
        try:
            yield
        finally:
            self.syncs = before

    def _begin_step(self):
        # per bucket: the gradients that are not ready
        self.missing = [set(bucket) for bucket in self.buckets]
        self.works = []  # of the buckets 0, 1, ... that have been started

    def _gradient_is_ready(self, parameter):
        if not self.syncs:
            return
        bucket = self.bucket_of[parameter]
        if parameter not in self.missing[bucket]:
            raise gradient_came_twice(
                parameter,
                f"It is in bucket {bucket}. Call model.average_gradients() after backward; to "
                f"accumulate over micro-batches, run all but the last backward inside `with "
                "model.no_sync():`",
                "BucketedDataParallel",
            )
        self._fill_slot(parameter)
        while len(self.works) < len(self.buckets) and not self.missing[len(self.works)]:
            self._start_next()

    @torch.no_grad()
    def _fill_slot(self, parameter):
        slot = self.slot_of[parameter]
        if dense_gradient(parameter) is None:
            slot.zero_()  # not used on this rank
        else:
            torch.div(parameter.grad, dist.get_world_size(self.group), out=slot)  # g/N
        parameter.grad = None  # it is in flight
        self.missing[self.bucket_of[parameter]].remove(parameter)

    def _start_next(self):
        self.works.append(
            self.start(self.all_reduce, self.flat_buffers[len(self.works)], self.group)
        )

    def average_gradients(self) -> None:
        """Wait until the mean is in every `.grad`. Call it after backward, before the optimizer."""
        while len(self.works) < len(self.buckets):
            for parameter in tuple(self.missing[len(self.works)]):
                self._fill_slot(parameter)
            self._start_next()
        for work in self.works:
            work.wait()
        for parameter, slot in self.slot_of.items():
            parameter.grad = slot
        self._begin_step()
