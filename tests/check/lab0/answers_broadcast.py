"""Answers to Lab 0's broadcast: wrong ones, each with the hint that it must get, and right ones,
unlike each other."""

import torch.distributed as dist

from lib.collectives import p2p, tree


def _tree(tensor, src, group, rounds=None, least=1):
    """The binomial tree; rounds: how many (None: all)."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    v, distance, done = (rank - src) % world_size, least, 0
    while distance < world_size and done != rounds:
        if v < distance and v + distance < world_size:
            p2p.send(tensor, (rank + distance) % world_size, group)
        elif distance <= v < 2 * distance:
            p2p.recv(tensor, (rank - distance) % world_size, group)
        distance, done = 2 * distance, done + 1


def delivers_nothing(tensor, src, group=None):
    return tensor


def receives_into_a_new_tensor(tensor, src, group=None):
    out = tensor.clone()
    _tree(out, src, group)
    return out


def receives_and_forgets(tensor, src, group=None):
    out = tensor.clone()
    _tree(out, src, group)


def only_the_neighbour(tensor, src, group=None):
    _tree(tensor, src, group, rounds=1)


def a_round_too_few(tensor, src, group=None):
    _tree(tensor, src, group, rounds=max(1, dist.get_world_size(group).bit_length() - 1))


def always_from_rank_0(tensor, src, group=None):
    _tree(tensor, 0, group)


def forgets_the_way_back(tensor, src, group=None):
    """Numbers the ranks from 0, and translates as if from the root: the root
    receives from itself."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    distance = 1
    while distance < world_size:
        if rank < distance and rank + distance < world_size:
            p2p.send(tensor, (rank + distance + src) % world_size, group)
        elif distance <= rank < 2 * distance:
            p2p.recv(tensor, (rank - distance + src) % world_size, group)
        distance *= 2
    return tensor


def passes_on_too_early(tensor, src, group=None):
    """Every rank hands its tensor to the right at once; only the root's neighbour
    gets the root's."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    received = p2p.send_recv(tensor, (rank + 1) % world_size, (rank - 1) % world_size, group)
    if rank != src:
        tensor.copy_(received)


def powers_of_two_only(tensor, src, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    v, distance = (rank - src) % world_size, 1
    while distance < world_size:
        if v < distance:
            p2p.send(tensor, (v + distance + src) % world_size, group)
        elif v < 2 * distance:
            p2p.recv(tensor, (v - distance + src) % world_size, group)
        distance *= 2


def without_modulo(tensor, src, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    distance = 1
    while distance < world_size:
        if src <= rank < src + distance:
            p2p.send(tensor, rank + distance, group)
        elif src + distance <= rank < src + 2 * distance:
            p2p.recv(tensor, rank - distance, group)
        distance *= 2


def forgets_the_group(tensor, src, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    v, distance = (rank - src) % world_size, 1
    while distance < world_size:
        if v < distance and v + distance < world_size:
            p2p.send(tensor, (v + distance + src) % world_size)
        elif distance <= v < 2 * distance:
            p2p.recv(tensor, (v - distance + src) % world_size)
        distance *= 2


def floods(tensor, src, group=None):
    """Everyone who has it sends it to the two ranks after it, whether they have it or not."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    v = (rank - src) % world_size
    for back in (1, 2):
        if v >= back:
            p2p.recv(tensor, (rank - back) % world_size, group)
    for on in (1, 2):
        if v + on < world_size:
            p2p.send(tensor, (rank + on) % world_size, group)


def a_star(tensor, src, group=None):
    if dist.get_rank(group) != src:
        p2p.recv(tensor, src, group)
        return
    for rank in range(dist.get_world_size(group)):
        if rank != src:
            p2p.send(tensor, rank, group)


def a_star_all_at_once(tensor, src, group=None):
    others = [rank for rank in range(dist.get_world_size(group)) if rank != src]
    root = dist.get_rank(group) == src
    p2p.exchange(
        [(tensor, r) for r in others] if root else [], [] if root else [(tensor, src)], group
    )


def a_chain(tensor, src, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    v = (rank - src) % world_size
    if v > 0:
        p2p.recv(tensor, (rank - 1) % world_size, group)
    if v < world_size - 1:
        p2p.send(tensor, (rank + 1) % world_size, group)


def everybody_receives(tensor, src, group=None):
    p2p.recv(tensor, (dist.get_rank(group) - 1) % dist.get_world_size(group), group)


def calls_broadcast(tensor, src, group=None):
    dist.broadcast(tensor, group=group, group_src=src)


def calls_lib(tensor, src, group=None):
    tree.broadcast(tensor, src, group)


def doubling(tensor, src, group=None):
    _tree(tensor, src, group)
    return tensor


def halving(tensor, src, group=None):
    """The far half first: who has it gives it to the middle of the ranks that it answers for."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    # first has it and answers for first .. last-1
    v, first, last = (rank - src) % world_size, 0, world_size
    while last - first > 1:
        middle = (first + last + 1) // 2
        if v == first:
            p2p.send(tensor, (middle + src) % world_size, group)
        elif v == middle:
            p2p.recv(tensor, (first + src) % world_size, group)
        first, last = (first, middle) if v < middle else (middle, last)


def with_dist(tensor, src, group=None):
    """The parent is v without its highest bit; the children are v + 2^s for every higher bit."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    world = lambda v: (
        (v + src) % world_size
        if group is None
        else dist.get_global_rank(group, (v + src) % world_size)
    )
    v = (rank - src) % world_size
    if v:
        dist.recv(tensor, world(v - (1 << (v.bit_length() - 1))), group=group)
    for bit in range(v.bit_length(), world_size.bit_length()):
        if v + (1 << bit) < world_size:
            dist.isend(tensor, world(v + (1 << bit)), group=group).wait()


WRONG = {
    delivers_nothing: "nothing is delivered",
    receives_into_a_new_tensor: "nothing is delivered",
    receives_and_forgets: "nothing is delivered",
    only_the_neighbour: "only part of the tree",
    a_round_too_few: "only part of the tree",
    always_from_rank_0: "rank 0 as the root",
    forgets_the_way_back: "rank 0 as the root",
    passes_on_too_early: "sent before it came",
    powers_of_two_only: "a receive without its send",
    without_modulo: "ranks of the world, not of the group",
    forgets_the_group: "ranks of the world, not of the group",
    floods: "sent more than once",
    a_star: "a star",
    a_star_all_at_once: "a star",
    a_chain: "a chain",
    everybody_receives: "a receive without its send",
    calls_broadcast: "called what it builds",
    calls_lib: "called what it builds",
}

RIGHT = [doubling, halving, with_dist]
