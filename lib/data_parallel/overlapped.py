"""Overlap: a bucket leaves while backward still computes the next one's gradients (Li et al. 2020).

    this thread     [ forward ][ backward: w3    w2    w1    w0 ][ wait ][ update ]
                                           |hook |hook |hook
    communication                          [= bucket 0 =][= bucket 1 =][= bucket 2 =]
                                                                   ^ only this much is exposed

autograd calls a hook when a parameter's gradient is complete. The hook of a bucket's last gradient starts the bucket's
all-reduce on the communication thread (`collectives.start`).

All ranks must start the same buckets in the same order, but need not use the same parameters: on a rank where bucket 1
is complete and bucket 0 is not, bucket 1 waits. What is still not started when backward has ended, `average_gradients`
starts. So ranks may even skip backward altogether, and contribute zeros.
"""

import contextlib

import torch
import torch.distributed as dist

from lib import collectives
from lib.buckets import CAPACITY, flatten, plan_buckets, unflatten
from lib.data_parallel.replicate import Replicated, gradient


class OverlappedDataParallel(Replicated):
    """`module` on every rank; backward starts the all-reduce of a bucket as soon as its gradients are there.

    all_reduce runs on the communication thread: until `average_gradients` has returned, the group is in use there.
    Raises RuntimeError from backward, if a gradient changes after its bucket has left.
    """

    def __init__(self, module, group=None, all_reduce=collectives.all_reduce, capacity=CAPACITY):
        super().__init__(module, group, all_reduce)
        self.buckets = plan_buckets(self.trained(), capacity)
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.syncs = True
        self._begin_step()
        for parameter in self.bucket_of:
            parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)

    @contextlib.contextmanager
    def no_sync(self):
        """A context in which backward only accumulates gradients: none leaves this rank."""
        before, self.syncs = self.syncs, False
        try:
            yield
        finally:
            self.syncs = before

    def _begin_step(self):
        self.missing = [set(bucket) for bucket in self.buckets]  # per bucket: the gradients that are not ready
        self.started = []  # [(flat, work)], of the buckets 0, 1, ... that have left

    def _gradient_is_ready(self, parameter):
        if not self.syncs:
            return
        bucket = self.bucket_of[parameter]
        if parameter not in self.missing[bucket]:
            raise RuntimeError(
                f"a second backward before average_gradients(): bucket {bucket} has this step's gradient of a "
                f"{tuple(parameter.shape)} parameter already. Call model.average_gradients() after backward; to "
                "accumulate over micro-batches, run all but the last backward inside `with model.no_sync():`"
            )
        self.missing[bucket].remove(parameter)
        while len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
            self._start_next()

    def _start_next(self):
        flat = flatten([gradient(parameter) for parameter in self.buckets[len(self.started)]])  # (n,)
        self.started.append((flat, collectives.start(self.all_reduce, flat, self.group)))

    @torch.no_grad()
    def average_gradients(self):
        """Wait for the buckets, and put the means into `.grad`. Call it after backward, before the optimizer."""
        while len(self.started) < len(self.buckets):
            self._start_next()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            work.wait()
            flat /= dist.get_world_size(self.group)
            unflatten(flat, [gradient(parameter) for parameter in bucket])
        self._begin_step()
