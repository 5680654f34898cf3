"""Answers to Lab 0's ring_all_reduce: wrong ones, each with the hint that it must
get, and right ones."""

import torch
import torch.distributed as dist

from lib.collectives import p2p, ring


def _ring(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    return rank, world_size, (rank + 1) % world_size, (rank - 1) % world_size


def _reduce_scatter(tensor, group, rounds=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1 if rounds is None else rounds):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
    return partial.clone()


def _all_gather(chunk, group, out, adding=False):
    rank, world_size, right, left = _ring(group)
    places = out.tensor_split(world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        coming = places[(rank - step - 1) % world_size]
        received = p2p.send_recv(
            places[(rank - step) % world_size], right, left, group, out=torch.empty_like(coming)
        )
        coming.copy_(coming + received if adding else received)


def a_round_too_few(tensor, group=None):
    """The sum of N-1 ranks, each chunk at its place."""
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[(rank - 2) % world_size].clone() if world_size > 2 else None
    if partial is None:
        return with_the_two_halves(tensor, group)
    for step in range(world_size - 2):
        mine = chunks[(rank - 3 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
    _all_gather(partial[: len(chunks[rank])].clone(), group, tensor)


def last_sum_not_added(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        received = p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
        partial = received + mine if step < world_size - 2 else received
    _all_gather(partial.clone(), group, tensor)


def returns_a_new_tensor(tensor, group=None):
    out = torch.empty_like(tensor)
    _all_gather(_reduce_scatter(tensor, group), group, out)
    return out


def only_scatters(tensor, group=None):
    rank, world_size, _, _ = _ring(group)
    tensor.tensor_split(world_size)[rank].copy_(_reduce_scatter(tensor, group))


def forgets_the_result(tensor, group=None):
    _all_gather(_reduce_scatter(tensor, group), group, torch.empty_like(tensor))


def divides(tensor, group=None):
    with_the_two_halves(tensor, group)
    tensor /= dist.get_world_size(group)


def second_pass_adds(tensor, group=None):
    _all_gather(_reduce_scatter(tensor, group), group, tensor, adding=True)


def sums_twice(tensor, group=None):
    with_the_two_halves(tensor, group)
    with_the_two_halves(tensor, group)


def gathers_in_rotated_places(tensor, group=None):
    """The textbook's reduce-scatter ends with chunk r+1; here it is put where chunk r belongs."""
    rank, world_size, right, left = _ring(group)
    chunks = list(tensor.clone().tensor_split(world_size))
    for step in range(world_size - 1):
        into = (rank - step - 1) % world_size
        chunks[into] += p2p.send_recv(
            chunks[(rank - step) % world_size],
            right,
            left,
            group,
            out=torch.empty_like(chunks[into]),
        )
    _all_gather(chunks[right], group, tensor)


def only_rank_0(tensor, group=None):
    """A chain of sums that ends on rank 0."""
    rank, world_size, _, _ = _ring(group)
    if rank < world_size - 1:
        tensor += p2p.recv(torch.empty_like(tensor), rank + 1, group)
    if rank > 0:
        p2p.send(tensor, rank - 1, group)


def drops_the_remainder(tensor, group=None):
    n, (_, world_size, _, _) = len(tensor), _ring(group)
    whole = tensor[: n // world_size * world_size]
    if len(whole):
        with_the_two_halves(whole, group)


def pads(tensor, group=None):
    n, (_, world_size, _, _) = len(tensor), _ring(group)
    padded = torch.cat([tensor, tensor.new_zeros(-n % world_size)])
    with_the_two_halves(padded, group)
    tensor.copy_(padded[:n])


def float32_buffers(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        into = chunks[(rank - 2 - step) % world_size]
        into += p2p.send_recv(
            chunks[(rank - 1 - step) % world_size], right, left, group, out=torch.empty(len(into))
        )
    _all_gather(chunks[rank].clone(), group, tensor)


def whole_tensors_round_the_ring(tensor, group=None):
    _, world_size, right, left = _ring(group)
    passing = tensor.clone()
    for _ in range(world_size - 1):
        passing = p2p.send_recv(passing, right, left, group)
        tensor += passing


def a_star(tensor, group=None):
    rank, world_size, _, _ = _ring(group)
    if rank > 0:
        p2p.send(tensor, 0, group)
        p2p.recv(tensor, 0, group)
        return
    for frm in range(1, world_size):
        tensor += p2p.recv(torch.empty_like(tensor), frm, group)
    for to in range(1, world_size):
        p2p.send(tensor, to, group)


def straight_to_the_owners(tensor, group=None):
    rank, world_size, _, _ = _ring(group)
    chunks = tensor.tensor_split(world_size)
    others = [(rank + step) % world_size for step in range(1, world_size)]
    boxes = [torch.empty_like(chunks[rank]) for _ in others]
    p2p.exchange([(chunks[r], r) for r in others], list(zip(boxes, others, strict=True)), group)
    for box in boxes:
        chunks[rank].add_(box)
    p2p.exchange([(chunks[rank], r) for r in others], [(chunks[r], r) for r in others], group)


def all_send_first(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        p2p.send(chunks[(rank - 1 - step) % world_size], right, group)
        into = chunks[(rank - 2 - step) % world_size]
        into += p2p.recv(torch.empty_like(into), left, group)
    _all_gather(chunks[rank].clone(), group, tensor)


def rank_0_leaves_early(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunk = _reduce_scatter(tensor, group)
    places = tensor.tensor_split(world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1 if rank else world_size - 2):
        p2p.send_recv(
            places[(rank - step) % world_size],
            right,
            left,
            group,
            out=places[(rank - step - 1) % world_size],
        )


def forgets_the_group_in_the_second_half(tensor, group=None):
    ring.ring_all_gather(ring.ring_reduce_scatter(tensor, group), out=tensor)


def forgets_the_group_of_the_messages(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        into = chunks[(rank - 2 - step) % world_size]
        into += p2p.send_recv(
            chunks[(rank - 1 - step) % world_size], right, left, out=torch.empty_like(into)
        )
    _all_gather(chunks[rank].clone(), group, tensor)


def calls_all_reduce(tensor, group=None):
    dist.all_reduce(tensor, group=group)


def calls_lib(tensor, group=None):
    return ring.ring_all_reduce(tensor, group)


def with_the_two_halves(tensor, group=None):
    _all_gather(_reduce_scatter(tensor, group), group, tensor)
    return tensor


def on_top_of_libs_halves(tensor, group=None):
    ring.ring_all_gather(ring.ring_reduce_scatter(tensor, group), group, out=tensor)


def in_one_loop(tensor, group=None):
    """The textbook's: rank r begins with chunk r, ends with r+1, and gathers from there, all in the
    tensor itself."""
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        leaving, coming = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        received = p2p.send_recv(leaving, right, left, group, out=torch.empty_like(coming))
        if step < world_size - 1:
            coming += received
        else:
            coming.copy_(received)


WRONG = {
    a_round_too_few: "a round too few",
    last_sum_not_added: "a round too few",
    returns_a_new_tensor: "not in place",
    only_scatters: "the second pass is missing",
    forgets_the_result: "not in place",
    divides: "divided by N",
    second_pass_adds: "the second pass adds",
    sums_twice: "the second pass adds",
    gathers_in_rotated_places: "chunks in the wrong places",
    only_rank_0: "only one rank has it",
    drops_the_remainder: "right only when N divides n",
    pads: "padded",
    float32_buffers: "a buffer of another dtype",
    whole_tensors_round_the_ring: "whole tensors in the ring",
    a_star: "one rank carries it all",
    straight_to_the_owners: "not a ring",
    all_send_first: "everyone sends first",
    rank_0_leaves_early: "a receive without its send",
    forgets_the_group_in_the_second_half: "the group is not passed on",
    forgets_the_group_of_the_messages: "ranks of the world, not of the group",
    calls_all_reduce: "called what it builds",
    calls_lib: "called what it builds",
}

RIGHT = [with_the_two_halves, on_top_of_libs_halves, in_one_loop]
