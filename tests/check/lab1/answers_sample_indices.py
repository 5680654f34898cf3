"""Answers to Lab 1's sample_indices: wrong ones, each with the hint that it must
get, and right ones."""

import random

import torch


def padded(n, key, world_size):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(key))
    return torch.cat([order, order.repeat(world_size)[: -n % world_size]])


# wrong


def pythons_shuffle(n, epoch, rank, world_size, seed=0):
    order = list(range(n))
    random.shuffle(order)
    return torch.tensor((order * world_size)[rank : world_size * -(-n // world_size) : world_size])


def deals_then_shuffles(n, epoch, rank, world_size, seed=0):
    mine = torch.arange(world_size * -(-n // world_size))[rank::world_size] % n
    return mine[
        torch.randperm(len(mine), generator=torch.Generator().manual_seed(1000 * seed + epoch))
    ]


def torchs_own_adds_seed_and_epoch(n, epoch, rank, world_size, seed=0):
    sampler = torch.utils.data.DistributedSampler(range(n), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return torch.tensor(list(sampler))


BUFFERS = {}


def one_buffer_per_rank(n, epoch, rank, world_size, seed=0):
    mine = in_runs(n, epoch, rank, world_size, seed)
    return BUFFERS.setdefault((n, rank), torch.empty_like(mine)).copy_(mine)


def a_scalar_where_one_rank_has_one(n, epoch, rank, world_size, seed=0):
    return in_runs(n, epoch, rank, world_size, seed).squeeze()


def not_written(n, epoch, rank, world_size, seed=0):
    raise NotImplementedError


# right


def in_runs(n, epoch, rank, world_size, seed=0):
    """Each rank a contiguous piece of the padded permutation."""
    return padded(n, 1000 * seed + epoch, world_size).view(world_size, -1)[rank]


def by_index(n, epoch, rank, world_size, seed=0):
    """Place j of rank r is place (j N + r) mod n of the permutation."""
    order = padded(n, seed + 10_000 * epoch, 1)
    return order[(torch.arange(-(-n // world_size)) * world_size + rank) % n]


def with_pythons_own_generator(n, epoch, rank, world_size, seed=0):
    order = random.Random(f"{seed} {epoch}").sample(range(n), n)
    while len(order) % world_size:
        order.append(order[len(order) - n])
    return torch.tensor(order[rank::world_size])


def as_torch_does(n, epoch, rank, world_size, seed=0):
    """DistributedSampler adds seed and epoch, so the seed is made larger first."""
    return torchs_own_adds_seed_and_epoch(n, epoch, rank, world_size, 1000 * seed)


WRONG = {
    pythons_shuffle: "not repeatable",
    deals_then_shuffles: "dealt before it is shuffled",
    torchs_own_adds_seed_and_epoch: "seed and epoch added",
    one_buffer_per_rank: "used again by a later call",
    a_scalar_where_one_rank_has_one: "no tensor",
    not_written: "not written",
}

RIGHT = [in_runs, by_index, with_pythons_own_generator, as_torch_does]
