"""Answers to Lab 1's unequal_shards, function by function: wrong ones, each with the hint it must get, right ones."""

import torch
import torch.distributed as dist

from lib import collectives
from lib.data_parallel import uneven


def summed(number, group):
    total = torch.tensor([float(number)], dtype=torch.float64)
    dist.all_reduce(total, group=group)
    return total.item()


# weighted_loss: wrong


def own_mean(loss_sum, count, group=None):
    return loss_sum * (1 / count)


def own_mean_or_zero(loss_sum, count, group=None):
    return loss_sum / max(count, 1)


def own_mean_as_tensors(loss_sum, count, group=None):
    return loss_sum / torch.tensor(float(count))


def forgets_n(loss_sum, count, group=None):
    return loss_sum / summed(count, group)


def weights_a_sum(loss_sum, count, group=None):
    return loss_sum * count / summed(count, group)


def weights_a_sum_times_n(loss_sum, count, group=None):
    return loss_sum * count * dist.get_world_size(group) / summed(count, group)


def forgets_that_it_is_in_place(loss_sum, count, group=None):
    collectives.all_reduce(torch.tensor([count]), group)
    return loss_sum * dist.get_world_size(group) / max(count, 1)


def size_of_the_world(loss_sum, count, group=None):
    return loss_sum * dist.get_world_size() / summed(count, group)


def averages_the_counts(loss_sum, count, group=None):
    world_size = dist.get_world_size(group)
    mean_count = summed(count, group) / world_size
    return loss_sum * world_size / mean_count


def the_sum_as_it_is(loss_sum, count, group=None):
    return loss_sum


def divides_by_n(loss_sum, count, group=None):
    return loss_sum / dist.get_world_size(group)


def all_reduces_the_loss(loss_sum, count, group=None):
    loss = loss_sum * 1
    with torch.no_grad():
        collectives.all_reduce(loss, group)
    return loss * dist.get_world_size(group) / summed(count, group)


def a_detached_loss(loss_sum, count, group=None):
    return torch.tensor(loss_sum.item() * dist.get_world_size(group) / summed(count, group))


def skips_where_there_is_nothing(loss_sum, count, group=None):
    if count == 0:
        return loss_sum
    return loss_sum * dist.get_world_size(group) / summed(count, group)


def forgets_the_group(loss_sum, count, group=None):
    return loss_sum * dist.get_world_size(group) / summed(count, None)


def a_number(loss_sum, count, group=None):
    return loss_sum.item() * dist.get_world_size(group) / summed(count, group)


def returns_nothing(loss_sum, count, group=None):
    loss_sum * dist.get_world_size(group) / summed(count, group)


def shares_the_loss_too(loss_sum, count, group=None):
    both = torch.tensor([float(count), loss_sum.item()])
    dist.all_reduce(both, group=group)
    return loss_sum * dist.get_world_size(group) / both[0].item()


def gathers_the_counts(loss_sum, count, group=None):
    counts = [torch.zeros(1) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, torch.tensor([float(count)]), group=group)
    return loss_sum * len(counts) / sum(counts).item()


def a_line_of_one(loss_sum, count, group=None):
    total = torch.tensor([count])
    dist.all_reduce(total, group=group)
    return loss_sum * dist.get_world_size(group) / total


def a_float64_loss(loss_sum, count, group=None):
    return loss_sum.double() * dist.get_world_size(group) / summed(count, group)


def calls_libs_loss(loss_sum, count, group=None):
    return uneven.weighted_loss(loss_sum, count, group)


def not_written(loss_sum, count, group=None):
    raise NotImplementedError


# weighted_loss: right


def n_times_sum_over_total(loss_sum, count, group=None):
    total = torch.tensor([count])
    collectives.all_reduce(total, group)
    return dist.get_world_size(group) * loss_sum / total.item()


def sum_over_mean_count(loss_sum, count, group=None):
    mean = torch.tensor(count, dtype=torch.float32)
    collectives.ring_all_reduce(mean.view(1), group)
    return loss_sum / float(mean / dist.get_world_size(group))


def weights_its_own_mean(loss_sum, count, group=None):
    total = summed(count, group)
    mean = loss_sum / count if count else loss_sum
    return mean * (count * dist.get_world_size(group) / total)


# until_all_done: wrong


def any_rank(has, group, op=dist.ReduceOp.MAX):
    flag = torch.tensor([int(has)])
    dist.all_reduce(flag, op, group=group)
    return bool(flag)


def a_plain_loop(batches, group=None):
    yield from batches


def until_one_is_done(batches, group=None):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        if not any_rank(batch is not None, group, dist.ReduceOp.MIN):
            return
        yield batch


def leaves_when_it_is_done(batches, group=None):
    for batch in batches:
        any_rank(True, group)
        yield batch
    any_rank(False, group)


def asks_once_only(batches, group=None):
    yield from batches
    while any_rank(False, group):
        yield None


def all_ranks_of_the_world(batches, group=None):
    yield from in_rounds(batches)


def counts_them(batches, group=None):
    turns = torch.tensor([len(batches)])
    dist.all_reduce(turns, dist.ReduceOp.MAX, group=group)
    for i in range(turns.item()):
        yield batches[i] if i < len(batches) else None


def next_of_an_iterable(batches, group=None):
    while any_rank((batch := next(batches, None)) is not None, group):
        yield batch


def is_it_true(batches, group=None):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        if not any_rank(1 if batch else 0, group):
            return
        yield batch


def next_without_default(batches, group=None):
    batches = iter(batches)
    while True:
        batch = next(batches)
        if not any_rank(batch is not None, group):
            return
        yield batch


def forgets_to_yield(batches, group=None):
    batches = iter(batches)
    while any_rank(next(batches, None) is not None, group):
        pass


def none_at_the_end(batches, group=None):
    batches, more = iter(batches), True
    while more:
        batch = next(batches, None)
        more = any_rank(batch is not None, group)
        yield batch


def never_ends(batches, group=None):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        any_rank(batch is not None, group)
        yield batch


def the_last_one_again(batches, group=None):
    batches, last = iter(batches), torch.zeros(2, dtype=torch.int64)
    while True:
        batch = next(batches, None)
        if not any_rank(batch is not None, group):
            return
        last = last if batch is None else batch
        yield last


def looks_and_forgets(batches, group=None):
    batches = iter(batches)
    while any_rank(next(batches, None) is not None, group):
        yield next(batches, None)


def fetches_all(batches, group=None):
    batches = list(batches)
    for i in range(100):
        batch = batches[i] if i < len(batches) else None
        if not any_rank(batch is not None, group):
            return
        yield batch


def says_how_often_too(batches, group=None):
    batches = iter(batches)
    for turn in range(100):
        batch = next(batches, None)
        flags = torch.tensor([int(batch is not None), turn])
        dist.all_reduce(flags, group=group)
        if flags[0] == 0:
            return
        yield batch


def returns_libs(batches, group=None):
    return uneven.until_all_done(batches, group)


def yields_from_libs(batches, group=None):
    yield from uneven.until_all_done(batches, group)


def no_turns_yet(batches, group=None):
    raise NotImplementedError


# until_all_done: right


def in_rounds(batches, group=None):
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        has_one = torch.tensor([float(batch is not None)])
        collectives.all_reduce(has_one, group)
        if has_one.item() == 0:
            break
        yield batch


def looks_one_ahead(batches, group=None):
    batches = iter(batches)
    batch = next(batches, None)
    while any_rank(batch is not None, group):
        coming = next(batches, None)
        yield batch
        batch = coming


class Turns:
    """An iterator by hand."""

    def __init__(self, batches, group):
        self.batches, self.group = iter(batches), group

    def __iter__(self):
        return self

    def __next__(self):
        try:
            batch = next(self.batches)
        except StopIteration:
            batch = None
        if not any_rank(batch is not None, self.group):
            raise StopIteration
        return batch


def an_iterator(batches, group=None):
    return Turns(batches, group)


WRONG = {
    "weighted_loss": {
        own_mean: "a mean of means",
        own_mean_or_zero: "a mean of means",
        own_mean_as_tensors: "a mean of means",
        forgets_n: "N forgotten",
        weights_a_sum: "weighted twice",
        weights_a_sum_times_n: "weighted twice",
        forgets_that_it_is_in_place: "its own count for the total",
        size_of_the_world: "the world's size, not the group's",
        averages_the_counts: "the counts averaged",
        the_sum_as_it_is: "counts not used",
        divides_by_n: "counts not used",
        all_reduces_the_loss: "the loss itself all-reduced",
        a_detached_loss: "cut from the graph",
        skips_where_there_is_nothing: "a rank without examples left out",
        forgets_the_group: "a rank without examples left out",
        a_number: "nothing returned",
        returns_nothing: "nothing returned",
        shares_the_loss_too: "more than the count",
        gathers_the_counts: "more than the count",
        a_line_of_one: "another shape or dtype",
        a_float64_loss: "another shape or dtype",
        calls_libs_loss: "called lib's",
        not_written: "not written",
    },
    "until_all_done": {
        a_plain_loop: "stops by itself",
        until_one_is_done: "stops with the first",
        leaves_when_it_is_done: "not all take part",
        asks_once_only: "stops by itself",
        all_ranks_of_the_world: "not all take part",
        counts_them: "a list in mind",
        next_of_an_iterable: "a list in mind",
        is_it_true: "the truth of a batch",
        next_without_default: "next at the end",
        forgets_to_yield: "nothing yielded",
        none_at_the_end: "one turn too many",
        never_ends: "one turn too many",
        the_last_one_again: "not None",
        looks_and_forgets: "batches lost",
        fetches_all: "all fetched first",
        says_how_often_too: "more than one number",
        returns_libs: "called lib's",
        yields_from_libs: "called lib's",
        no_turns_yet: "not written",
    },
}
RIGHT = {
    "weighted_loss": [n_times_sum_over_total, sum_over_mean_count, weights_its_own_mean],
    "until_all_done": [in_rounds, looks_one_ahead, an_iterator],
}
