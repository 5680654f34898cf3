"""Answers to Lab 4's Zero2: wrong ones, each with the hint that it must get, and right ones.

The wrong ones are `ByHand`, a right one, but for a method or two; edits of lib's are in the
exercise's MISTAKES.
"""

from collections import deque

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives, zero


class OwnZero1:
    """A student's, as in the notebook."""

    def __init__(
        self, parameters, make_optimizer, group=None,
        reduce_scatter=collectives.reduce_scatter, all_gather=collectives.all_gather,
    ):  # fmt: skip
        self.group, self.reduce_scatter, self.all_gather = group, reduce_scatter, all_gather
        self.parameters = [p for p in parameters if p.requires_grad]
        self.rank, self.N = dist.get_rank(group), dist.get_world_size(group)
        n = sum(p.numel() for p in self.parameters)
        self.full = self.parameters[0].new_zeros(zero.padded_size(n, self.N))
        for p, view in self.views(self.full):
            view.copy_(p.detach())
            p.data = view
        self.shard = self.own_shard().requires_grad_()
        self.optimizer = make_optimizer([self.shard])

    def own_shard(self):
        return self.full.chunk(self.N)[self.rank].detach()

    def views(self, buffer):
        begin = 0
        for p in self.parameters:
            yield p, buffer[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()

    def flatten_gradients(self):
        buffer = torch.zeros_like(self.full)
        for p, view in self.views(buffer):
            if p.grad is not None:
                view.copy_(p.grad / self.N)
            p.grad = None
        return buffer

    def add_gradient(self, shard):
        self.shard.grad = shard if self.shard.grad is None else self.shard.grad + shard

    def average_gradients(self):
        self.add_gradient(self.reduce_scatter(self.flatten_gradients(), self.group))

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.full.copy_(self.all_gather(self.shard.detach(), self.group))


class OwnShard(OwnZero1):
    """Its shard is a tensor of its own, and that is gathered."""

    def own_shard(self):
        return super().own_shard().clone()


class ByHand(zero.Zero1):
    """As in the notebook: its flats are a student's Zero1s."""

    flat_type = zero.flats_of(OwnZero1)

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.index_of = {p: i for i, flat in enumerate(self.in_order) for p in flat.parameters}
        self.begin_backward()
        for parameter in self.index_of:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_ready)

    def begin_backward(self):
        self.missing = [set(flat.parameters) for flat in self.in_order]
        self.n_sent = 0
        self.in_flight = []

    def gradient_is_ready(self, parameter):
        self.missing[self.index_of[parameter]].remove(parameter)
        while self.n_sent < len(self.in_order) and not self.missing[self.n_sent]:
            self.send_next()

    def send_next(self):
        self.make_room()
        flat = self.in_order[self.n_sent]
        self.in_flight.append((flat, self.start(flat, self.line(flat))))
        self.n_sent += 1

    def make_room(self):
        if len(self.in_flight) == 2:
            self.finish_oldest()

    def line(self, flat):
        return flat.flatten_gradients()

    def start(self, flat, line):
        return collectives.start(self.reduce_scatter, line, flat.group)

    def finish_oldest(self):
        flat, work = self.in_flight.pop(0)
        flat.add_gradient(work.wait())

    def average_gradients(self):
        self.send_rest()
        while self.in_flight:
            self.finish_oldest()
        self.begin_backward()

    def send_rest(self):
        while self.n_sent < len(self.in_order):
            self.send_next()


# right


class OverOwnShards(ByHand):
    flat_type = zero.flats_of(OwnShard)


class Clearing(OwnZero1):
    """Its step clears the shard's gradient, which Lab 4's Zero1 may do."""

    def step(self):
        super().step()
        self.optimizer.zero_grad()


class OverClearing(ByHand):
    flat_type = zero.flats_of(Clearing)


class OverLibs(ByHand):
    """Its flats are lib's, as where the student's Zero1 has not passed."""

    flat_type = zero.flats_of(zero.Zero1)


class Counting(zero.Zero1):
    """Counts the missing gradients, a hook for each flat; what has left is an iterator."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.begin()
        for index, flat in enumerate(self.in_order):
            for p in flat.parameters:
                p.register_post_accumulate_grad_hook(lambda _, index=index: self.ready(index))

    def begin(self):
        self.missing = [len(flat.parameters) for flat in self.in_order]
        self.waiting, self.works = deque(self.in_order), deque()

    def ready(self, index: int) -> None:
        self.missing[index] -= 1
        complete = [n == 0 for n in self.missing[len(self.missing) - len(self.waiting) :]] + [False]
        for _ in range(complete.index(False)):
            self.send()

    def send(self):
        if len(self.works) > 1:
            self.keep()
        flat = self.waiting.popleft()
        self.works.append(
            (flat, collectives.start(self.reduce_scatter, flat.flatten_gradients(), self.group))
        )

    def keep(self):
        flat, work = self.works.popleft()
        mean = work.wait()
        flat.shard.grad = mean if flat.shard.grad is None else flat.shard.grad + mean

    def average_gradients(self):
        while self.waiting:
            self.send()
        while self.works:
            self.keep()
        self.begin()


# wrong


def returns_libs(*args, **named):
    return zero.Zero2(*args, **named)


class InheritsLibs(zero.Zero2):
    pass


class NeverBeginsAnew(ByHand):
    def average_gradients(self):
        self.send_rest()
        while self.in_flight:
            self.finish_oldest()


class CountsOn(ByHand):
    """What is missing begins anew, self.n_sent does not."""

    def average_gradients(self):
        left = self.n_sent
        super().average_gradients()
        self.n_sent = max(left, len(self.in_order))


class ForgetsTheSets(ByHand):
    """From the second backward on, every set is empty at once."""

    def gradient_is_ready(self, parameter):
        self.missing[self.index_of[parameter]].discard(parameter)
        while self.n_sent < len(self.in_order) and not self.missing[self.n_sent]:
            self.send_next()

    def average_gradients(self):
        self.send_rest()
        while self.in_flight:
            self.finish_oldest()
        self.n_sent = 0


class NothingToSend(ByHand):
    """A rank without gradients returns early."""

    def average_gradients(self):
        if any(
            len(missing) < len(flat.parameters)
            for missing, flat in zip(self.missing, self.in_order, strict=True)
        ):
            super().average_gradients()


class InOrderOfCompletion(ByHand):
    def gradient_is_ready(self, parameter):
        index = self.index_of[parameter]
        self.missing[index].remove(parameter)
        if not self.missing[index]:
            self.send(index)

    def send(self, index: int) -> None:
        self.n_sent = index
        self.send_next()
        self.missing[index] = {None}

    def send_rest(self):
        for index, missing in enumerate(self.missing):
            if missing != {None}:
                self.send(index)


class OnTheClass(ByHand):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        type(self).newest = self.in_order

    def line(self, flat):
        return self.newest[self.n_sent].flatten_gradients()


class LeavesWithTheFirst(ByHand):
    def gradient_is_ready(self, parameter):
        if self.index_of[parameter] == self.n_sent:
            self.send_next()


class SendsTwice(ByHand):
    def start(self, flat, line):
        super().start(flat, torch.zeros_like(line)).wait()
        return super().start(flat, line)


class NeverDrops(ByHand):
    def line(self, flat):
        gradients = [p.grad for p in flat.parameters]
        line = flat.flatten_gradients()
        for p, gradient in zip(flat.parameters, gradients, strict=True):
            p.grad = gradient
        return line


class DropsAtTheEnd(NeverDrops):
    def average_gradients(self):
        super().average_gradients()
        for parameter in self.index_of:
            parameter.grad = None


class DividesInStep(ByHand):
    def line(self, flat):
        return flat.flatten_gradients() * flat.world_size

    def step(self):
        for flat in self.flats:
            flat.shard.grad /= flat.world_size
        super().step()


class LooksAtItsOwnFlatOnly(ByHand):
    def gradient_is_ready(self, parameter):
        missing = self.missing[self.index_of[parameter]]
        missing.remove(parameter)
        while self.n_sent < len(self.in_order) and not missing:
            self.send_next()


class NotWritten(ByHand):
    def gradient_is_ready(self, parameter):
        raise NotImplementedError


WRONG = {
    returns_libs: "called what it builds",
    InheritsLibs: "called what it builds",
    NeverBeginsAnew: "left over from the backward before",
    CountsOn: "left over from the backward before",
    ForgetsTheSets: "left over from the backward before",
    NothingToSend: "the rest is not sent",
    InOrderOfCompletion: "in the order of completion",
    OnTheClass: "shared by two calls",
    LeavesWithTheFirst: "a flat is sent too early",
    LooksAtItsOwnFlatOnly: "a flat is sent too early",
    SendsTwice: "other messages",
    NeverDrops: "gradients not dropped",
    DropsAtTheEnd: "gradients not dropped",
    DividesInStep: "no mean in the shard",
    NotWritten: "not written",
}

RIGHT = [ByHand, OverOwnShards, OverClearing, OverLibs, Counting, as_an_answer(zero.Zero2)]
