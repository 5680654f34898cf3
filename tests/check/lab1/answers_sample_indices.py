"""Answers to Lab 1's sample_indices: wrong ones, each with the hint that it must get, and right ones."""

import random

import torch


def shuffled(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def key(seed, epoch):
    return 1000 * seed + epoch


def padded(order, world_size):
    missing = -len(order) % world_size
    return torch.cat([order, order.repeat(world_size)[:missing]])


def dealt(order, rank, world_size):
    return padded(order, world_size)[rank::world_size]


# wrong


def forgets_to_return(n, epoch, rank, world_size, seed=0):
    list(dealt(shuffled(n, key(seed, epoch)), rank, world_size))


def a_list(n, epoch, rank, world_size, seed=0):
    return dealt(shuffled(n, key(seed, epoch)), rank, world_size).tolist()


def without_a_generator(n, epoch, rank, world_size, seed=0):
    return dealt(torch.randperm(n), rank, world_size)


def pythons_shuffle(n, epoch, rank, world_size, seed=0):
    order = list(range(n))
    random.shuffle(order)
    return dealt(torch.tensor(order), rank, world_size)


def shuffled_again_on_its_rank(n, epoch, rank, world_size, seed=0):
    mine = dealt(shuffled(n, key(seed, epoch)), rank, world_size)
    return mine[torch.randperm(len(mine))]


def all_of_it(n, epoch, rank, world_size, seed=0):
    return shuffled(n, key(seed, epoch))


def first_part_for_all(n, epoch, rank, world_size, seed=0):
    return padded(shuffled(n, key(seed, epoch)), world_size)[: -(-n // world_size)]


def padded_with_minus_one(n, epoch, rank, world_size, seed=0):
    order = torch.cat([shuffled(n, key(seed, epoch)), torch.full((-n % world_size,), -1)])
    return order[rank::world_size]


def counted_from_one(n, epoch, rank, world_size, seed=0):
    return dealt(shuffled(n, key(seed, epoch)) + 1, rank, world_size)


def drops_the_tail(n, epoch, rank, world_size, seed=0):
    each = n // world_size
    return shuffled(n, key(seed, epoch))[rank * each : (rank + 1) * each]


def seeded_by_rank(n, epoch, rank, world_size, seed=0):
    return dealt(shuffled(n, key(seed, epoch) + rank), rank, world_size)


def overlapping_parts(n, epoch, rank, world_size, seed=0):
    each = -(-n // world_size)
    return padded(shuffled(n, key(seed, epoch)), world_size)[rank : rank + each]


def padded_with_the_last(n, epoch, rank, world_size, seed=0):
    order = shuffled(n, key(seed, epoch))
    return torch.cat([order, order[-1:].repeat(-n % world_size)])[rank::world_size]


def padded_once(n, epoch, rank, world_size, seed=0):
    order = shuffled(n, key(seed, epoch))
    return torch.cat([order, order[: -n % world_size]])[rank::world_size]


def padded_always(n, epoch, rank, world_size, seed=0):
    order = shuffled(n, key(seed, epoch))
    missing = world_size - n % world_size
    return torch.cat([order, order.repeat(world_size)[:missing]])[rank::world_size]


def not_padded(n, epoch, rank, world_size, seed=0):
    return shuffled(n, key(seed, epoch))[rank::world_size]


def not_padded_in_runs(n, epoch, rank, world_size, seed=0):
    return shuffled(n, key(seed, epoch)).tensor_split(world_size)[rank]


def not_shuffled(n, epoch, rank, world_size, seed=0):
    return dealt(torch.arange(n), rank, world_size)


def not_shuffled_in_runs(n, epoch, rank, world_size, seed=0):
    return padded(torch.arange(n), world_size).view(world_size, -1)[rank]


def epoch_ignored(n, epoch, rank, world_size, seed=0):
    return dealt(shuffled(n, seed), rank, world_size)


def deals_then_shuffles(n, epoch, rank, world_size, seed=0):
    mine = dealt(torch.arange(n), rank, world_size)
    return mine[shuffled(len(mine), key(seed, epoch))]


def rolled_on(n, epoch, rank, world_size, seed=0):
    return dealt(shuffled(n, seed).roll(epoch), rank, world_size)


def seed_ignored(n, epoch, rank, world_size, seed=0):
    return dealt(shuffled(n, epoch), rank, world_size)


def seeds_everything(n, epoch, rank, world_size, seed=0):
    torch.manual_seed(key(seed, epoch))
    return dealt(torch.randperm(n), rank, world_size)


def not_written(n, epoch, rank, world_size, seed=0):
    raise NotImplementedError


# right


def in_runs(n, epoch, rank, world_size, seed=0):
    """Each rank a contiguous piece of the padded permutation."""
    return padded(shuffled(n, key(seed, epoch)), world_size).view(world_size, -1)[rank]


def by_index(n, epoch, rank, world_size, seed=0):
    """Place j of rank r is place (j N + r) mod n of the permutation."""
    order, each = shuffled(n, seed + 10_000 * epoch), -(-n // world_size)
    return order[(torch.arange(each) * world_size + rank) % n]


def with_pythons_own_generator(n, epoch, rank, world_size, seed=0):
    order = list(range(n))
    random.Random(f"{seed} {epoch}").shuffle(order)
    while len(order) % world_size:
        order.append(order[len(order) - n])
    return torch.tensor(order[rank::world_size])


def as_torch_does(n, epoch, rank, world_size, seed=0):
    class Examples:
        def __len__(self):
            return n

    sampler = torch.utils.data.DistributedSampler(Examples(), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return torch.tensor(list(sampler))


WRONG = {
    forgets_to_return: "no tensor",
    a_list: "no tensor",
    without_a_generator: "not repeatable",
    pythons_shuffle: "not repeatable",
    shuffled_again_on_its_rank: "not repeatable",
    all_of_it: "everything on every rank",
    first_part_for_all: "everything on every rank",
    padded_with_minus_one: "padded with numbers that are no examples",
    counted_from_one: "padded with numbers that are no examples",
    drops_the_tail: "the tail is dropped",
    seeded_by_rank: "every rank its own permutation",
    overlapping_parts: "every rank its own permutation",
    padded_with_the_last: "one example pads",
    padded_once: "padded once only",
    padded_always: "padded where nothing is missing",
    not_padded: "not padded",
    not_padded_in_runs: "not padded",
    not_shuffled: "not shuffled",
    not_shuffled_in_runs: "not shuffled",
    epoch_ignored: "the epoch is ignored",
    deals_then_shuffles: "dealt before it is shuffled",
    rolled_on: "moved along",
    seed_ignored: "the seed is ignored",
    seeds_everything: "torch.manual_seed",
    not_written: "not written",
}

RIGHT = [in_runs, by_index, with_pythons_own_generator, as_torch_does]
