"""Answers to Lab 1's unequal_shards, function by function: wrong ones, each with the hint it must
get, right ones."""

import torch
import torch.distributed as dist

from lib import collectives
from lib.data_parallel import sampler

SUM = collectives.all_reduce


def summed(number, group, all_reduce):
    total = torch.tensor([float(number)], dtype=torch.float64)
    all_reduce(total, group)
    return total.item()


# weighted_loss: wrong


def all_reduces_the_loss(loss_sum, count, group=None, all_reduce=SUM):
    loss = loss_sum * 1
    with torch.no_grad():
        all_reduce(loss, group)
    return loss * dist.get_world_size(group) / summed(count, group, all_reduce)


def gathers_the_counts(loss_sum, count, group=None, all_reduce=SUM):
    counts = [torch.zeros(1) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, torch.tensor([float(count)]), group=group)
    return loss_sum * len(counts) / sum(counts).item()


class Scaled(torch.autograd.Function):
    """The factor of the last call goes backward, whichever call it was."""

    @staticmethod
    def forward(ctx, loss_sum, factor):
        Scaled.factor = factor
        return loss_sum * factor

    @staticmethod
    def backward(ctx, slope):
        return slope * Scaled.factor, None


def a_factor_on_the_class(loss_sum, count, group=None, all_reduce=SUM):
    return Scaled.apply(loss_sum, dist.get_world_size(group) / summed(count, group, all_reduce))


def calls_libs_loss(loss_sum, count, group=None, all_reduce=SUM):
    return sampler.weighted_loss(loss_sum, count, group, all_reduce)


def not_written(loss_sum, count, group=None, all_reduce=SUM):
    raise NotImplementedError


# weighted_loss: right


def n_times_sum_over_total(loss_sum, count, group=None, all_reduce=SUM):
    total = torch.tensor([count])
    all_reduce(total, group)
    return dist.get_world_size(group) * loss_sum / total.item()


def sum_over_mean_count(loss_sum, count, group=None, all_reduce=SUM):
    mean = torch.tensor(count, dtype=torch.float32)
    all_reduce(mean.view(1), group=group)
    return loss_sum / (mean.item() / dist.get_world_size(group))


def weights_its_own_mean(loss_sum, count, group=None, all_reduce=SUM):
    total = summed(count, group, all_reduce)
    mean = loss_sum / count if count else loss_sum
    return mean * (count * dist.get_world_size(group) / total)


# until_all_done: wrong


def a_plain_loop(batches, group=None, all_reduce=SUM):
    yield from batches


def asks_once_only(batches, group=None, all_reduce=SUM):
    yield from batches
    while summed(0, group, all_reduce):
        yield None


def counts_them_first(batches, group=None, all_reduce=SUM):
    turns = torch.tensor([sum(1 for _ in batches)])
    all_reduce(turns, group, dist.ReduceOp.MAX)
    batches = iter(batches)
    for _ in range(turns.item()):
        yield next(batches, None)


CURRENT = []


def one_iterator_in_a_global(batches, group=None, all_reduce=SUM):
    CURRENT[:] = [iter(batches)]
    while True:
        batch = next(CURRENT[0], None)
        if not summed(batch is not None, group, all_reduce):
            return
        yield batch


def returns_libs(batches, group=None, all_reduce=SUM):
    return sampler.until_all_done(batches, group, all_reduce)


def no_turns_yet(batches, group=None, all_reduce=SUM):
    raise NotImplementedError


# until_all_done: right


def in_rounds(batches, group=None, all_reduce=SUM):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        if not summed(batch is not None, group, all_reduce):
            break
        yield batch


def looks_one_ahead(batches, group=None, all_reduce=SUM):
    batches = iter(batches)
    batch = next(batches, None)
    while summed(batch is not None, group, all_reduce):
        coming = next(batches, None)
        yield batch
        batch = coming


class Turns:
    """An iterator by hand."""

    def __init__(self, batches, *wire):
        self.batches, self.wire = iter(batches), wire

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self.batches, None)
        if not summed(batch is not None, *self.wire):
            raise StopIteration
        return batch


def an_iterator(batches, group=None, all_reduce=SUM):
    return Turns(batches, group, all_reduce)


WRONG = {
    "weighted_loss": {
        all_reduces_the_loss: "the loss itself all-reduced",
        gathers_the_counts: "not what it was given",
        a_factor_on_the_class: "one number for all calls",
        calls_libs_loss: "called lib's",
        not_written: "not written",
    },
    "until_all_done": {
        a_plain_loop: "stops by itself",
        asks_once_only: "stops by itself",
        counts_them_first: "batches lost",
        one_iterator_in_a_global: "one iterator for all loops",
        returns_libs: "called lib's",
        no_turns_yet: "not written",
    },
}
RIGHT = {
    "weighted_loss": [n_times_sum_over_total, sum_over_mean_count, weights_its_own_mean],
    "until_all_done": [in_rounds, looks_one_ahead, an_iterator],
}
