"""Answers to Lab 1's OverlappedDataParallel: wrong ones, each with the hint that it must get, and
right ones.

The wrong ones differ from `Counting`, a right one, in one method.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer
from torch import nn

from lib import collectives
from lib.data_parallel import bucketed, replicate
from lib.training.buckets import flatten, plan_buckets, unflatten


class Counting(nn.Module):
    """Counts, bucket by bucket, the gradients that are still missing."""

    def __init__(self, module, group=None, all_reduce=collectives.all_reduce, capacity=2**22):
        super().__init__()
        self.module, self.group, self.all_reduce, self.capacity = (
            module,
            group,
            all_reduce,
            capacity,
        )
        self.make_equal()
        self.buckets = self.plan([p for p in module.parameters() if p.requires_grad])
        self.syncs = True
        self.reset()
        self.add_hooks()

    def make_equal(self):
        replicate.broadcast_parameters(self.module, self.group)

    def plan(self, parameters):
        return plan_buckets(parameters, self.capacity)

    def add_hooks(self):
        for i, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda _, i=i: self.ready(i))

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.works = []

    def forward(self, *inputs):
        return self.module(*inputs)

    @contextlib.contextmanager
    def no_sync(self):
        self.syncs = False
        try:
            yield
        finally:
            self.syncs = True

    def ready(self, i):
        if self.syncs:
            self.missing[i] -= 1
            self.start_complete()

    def start_complete(self):
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:
            self.start(self.buckets[len(self.works)])

    def start(self, bucket):
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = flatten([p.grad for p in bucket])
        self.works.append((bucket, flat, collectives.start(self.all_reduce, flat, self.group)))

    def average_gradients(self):
        for bucket in self.buckets[len(self.works) :]:
            self.start(bucket)
        self.finish()
        self.reset()

    def finish(self):
        for bucket, flat, work in self.works:
            work.wait()
            self.put_back(flat / dist.get_world_size(self.group), bucket)

    def put_back(self, mean, bucket):
        unflatten(mean, [p.grad for p in bucket])


# wrong


def returns_libs(module, group=None, all_reduce=collectives.all_reduce, capacity=2**22):
    return bucketed.OverlappedDataParallel(module, group, all_reduce, capacity)


class InheritsLibs(bucketed.OverlappedDataParallel):
    pass


class NoBuffers(Counting):
    def make_equal(self):
        for p in self.module.parameters():
            collectives.broadcast(p.data, 0, self.group)


class HooksOnFrozen(Counting):
    def plan(self, parameters):
        return plan_buckets(self.module.parameters(), self.capacity)


class HookBeforeGrad(Counting):
    """register_hook is called with the gradient, before `.grad` has it."""

    def add_hooks(self):
        for i, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_hook(lambda _, i=i: self.ready(i))

    def start(self, bucket):
        flat = flatten([p.grad for p in bucket])
        self.works.append((bucket, flat, collectives.start(self.all_reduce, flat, self.group)))


class NoneIsNoGradient(Counting):
    def start(self, bucket):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket])
        self.works.append((bucket, flat, collectives.start(self.all_reduce, flat, self.group)))


class LeavesUnusedOut(Counting):
    """Sends only what this rank has a gradient for."""

    def start(self, bucket):
        bucket = [p for p in bucket if p.grad is not None]
        if bucket:
            super().start(bucket)
        else:
            self.works.append(([], torch.empty(0), collectives.start(lambda: None)))

    def put_back(self, mean, bucket):
        if bucket:
            super().put_back(mean, bucket)


class OnlyCompleteBuckets(Counting):
    def average_gradients(self):
        self.finish()
        self.reset()


class InOrderOfCompletion(Counting):
    def start_complete(self):
        for bucket, missing in zip(self.buckets, self.missing, strict=True):
            if missing == 0 and all(bucket is not started for started, _, _ in self.works):
                self.start(bucket)

    def average_gradients(self):
        for bucket in self.buckets:
            if all(bucket is not started for started, _, _ in self.works):
                self.start(bucket)
        self.finish()
        self.reset()


class LeavesWithTheFirst(Counting):
    """A bucket leaves with its first gradient instead of its last."""

    def ready(self, i):
        if self.syncs and i == len(self.works):
            self.start(self.buckets[i])


class SendsItTwice(Counting):
    def start(self, bucket):
        super().start(bucket)
        self.works[-1][2].wait()
        again = torch.zeros_like(self.works[-1][1])
        collectives.start(self.all_reduce, again, self.group).wait()


class WithoutNoSync(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.inner = Counting(*args)
        self.module = self.inner.module

    def forward(self, *inputs):
        return self.inner(*inputs)

    def average_gradients(self):
        self.inner.average_gradients()


class NoSyncDoesNothing(Counting):
    @contextlib.contextmanager
    def no_sync(self):
        yield


class CountsInsideNoSync(Counting):
    def ready(self, i):
        self.missing[i] -= 1
        if self.syncs:
            self.start_complete()

    def start_complete(self):
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] <= 0:
            self.start(self.buckets[len(self.works)])


class SilentAfterAnError(Counting):
    @contextlib.contextmanager
    def no_sync(self):
        self.syncs = False
        yield
        self.syncs = True


class OneForEachHook(Counting):
    """A bucket that was complete before its turn waits for the next hook."""

    def start_complete(self):
        if len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:
            self.start(self.buckets[len(self.works)])


class KeepsTheLastFlats(Counting):
    def reset(self):
        self.last = getattr(self, "works", [])
        super().reset()


class ZerosAreNotStored(Counting):
    """Unused parameters contribute zeros, but their .grad stays None."""

    def start(self, bucket):
        flat = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket])
        self.works.append((bucket, flat, collectives.start(self.all_reduce, flat, self.group)))

    def put_back(self, mean, bucket):
        unflatten(mean, [torch.empty_like(p) if p.grad is None else p.grad for p in bucket])


class DividesBeforeTheWait(Counting):
    def finish(self):
        for bucket, flat, work in self.works:
            mean = flat / dist.get_world_size(self.group)
            work.wait()
            self.put_back(mean, bucket)


class InFloat32(Counting):
    def start(self, bucket):
        for p in bucket:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = flatten([p.grad for p in bucket]).float()
        self.works.append((bucket, flat, collectives.start(self.all_reduce, flat, self.group)))


class OneStateForAll(Counting):
    state: ClassVar = {}

    def reset(self):
        self.state.update(missing=[len(bucket) for bucket in self.buckets], works=[])

    missing = property(lambda self: self.state["missing"])
    works = property(lambda self: self.state["works"])


class KeepsEveryFlat(Counting):
    def reset(self):
        self.kept = [*getattr(self, "kept", []), *getattr(self, "works", [])]
        super().reset()


class WaitsForAGradient(Counting):
    """A rank that did not go backward sends nothing."""

    def average_gradients(self):
        if any(p.grad is not None for bucket in self.buckets for p in bucket):
            super().average_gradients()


class WithoutModule(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.inner = Counting(*args)
        self.forward, self.no_sync, self.average_gradients = (
            self.inner,
            self.inner.no_sync,
            self.inner.average_gradients,
        )


class NotWritten(Counting):
    def average_gradients(self):
        raise NotImplementedError


# right


class WithSets(replicate.Replicated):
    """On lib's `Replicated`; names what is missing, and runs bucket by bucket with the
    function of section 4."""

    def __init__(self, module, group=None, all_reduce=collectives.all_reduce, capacity=2**22):
        super().__init__(module, group, all_reduce)
        self.buckets = plan_buckets(self.trained(), capacity)
        self.alone, self.ready, self.works = False, set(), []
        for p in self.trained():
            p.register_post_accumulate_grad_hook(self.hook)

    @contextlib.contextmanager
    def no_sync(self):
        self.alone = True
        try:
            yield
        finally:
            self.alone = False

    def hook(self, p):
        if self.alone:
            return
        self.ready.add(p)
        while self.works != self.buckets and self.ready.issuperset(self.buckets[len(self.works)]):
            self.begin()
            if len(self.works) == len(self.buckets):
                break

    def begin(self):
        bucket = self.buckets[len(self.works)]
        self.works.append(
            collectives.start(bucketed.reduce_bucket, bucket, self.group, self.all_reduce)
        )

    def average_gradients(self):
        while len(self.works) < len(self.buckets):
            self.begin()
        for work in self.works:
            work.wait()
        self.ready.clear()
        self.works.clear()


class WithItsOwnThread(Counting):
    """One thread of concurrent.futures in place of collectives.start."""

    def reset(self):
        super().reset()
        self.thread = ThreadPoolExecutor(1)

    def start(self, bucket):
        for p in bucket:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = torch.cat([p.grad.flatten() for p in bucket])
        self.works.append((bucket, flat, self.thread.submit(self.all_reduce, flat, self.group)))

    def finish(self):
        for bucket, flat, work in self.works:
            work.result()
            flat /= dist.get_world_size(self.group)
            for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = piece.view_as(p)
        self.thread.shutdown()


WRONG = {
    returns_libs: "called what it builds",
    InheritsLibs: "called what it builds",
    NoBuffers: "weights not made equal",
    HooksOnFrozen: "hooks on frozen parameters",
    HookBeforeGrad: "the hook comes before the gradient",
    NoneIsNoGradient: "a parameter without gradient",
    LeavesUnusedOut: "zeros left out",
    OnlyCompleteBuckets: "what is left is not sent",
    InOrderOfCompletion: "in the order of completion",
    LeavesWithTheFirst: "a bucket leaves too early",
    SendsItTwice: "sent twice, or frozen ones too",
    WithoutNoSync: "no_sync is missing",
    NoSyncDoesNothing: "no_sync still sends",
    CountsInsideNoSync: "no_sync counts",
    InFloat32: "rounded on the way",
    OneStateForAll: "shared by two calls",
    KeepsEveryFlat: "kept from step to step",
    KeepsTheLastFlats: "kept beside the gradients",
    OneForEachHook: "one bucket for each hook",
    SilentAfterAnError: "no_sync after an error",
    ZerosAreNotStored: "a parameter without gradient",
    DividesBeforeTheWait: "copied back too early",
    WaitsForAGradient: "zeros left out",
    WithoutModule: "another name",
    NotWritten: "not written",
}

RIGHT = [Counting, WithSets, WithItsOwnThread, as_an_answer(bucketed.OverlappedDataParallel)]
