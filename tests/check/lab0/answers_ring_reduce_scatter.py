"""Answers to Lab 0's ring_reduce_scatter: wrong ones, each with the hint that it must get,
and right ones."""

import torch
import torch.distributed as dist

from lib.collectives import p2p, ring


def _ring(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    return rank, world_size, (rank + 1) % world_size, (rank - 1) % world_size


def a_round_too_few(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(max(world_size - 2, 1)):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
    return partial


def last_sum_not_added(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        received = p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
        partial = received + mine if step < world_size - 2 else received
    return partial


def textbook_chunk(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = list(tensor.clone().tensor_split(world_size))
    for step in range(world_size - 1):
        out, into = (rank - step) % world_size, (rank - step - 1) % world_size
        chunks[into] += p2p.send_recv(
            chunks[out], right, left, group, out=torch.empty_like(chunks[into])
        )
    return chunks[(rank + 1) % world_size]


def returns_the_chunk_it_never_finished(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = list(tensor.clone().tensor_split(world_size))
    for step in range(world_size - 1):
        out, into = (rank - step) % world_size, (rank - step - 1) % world_size
        chunks[into] += p2p.send_recv(
            chunks[out], right, left, group, out=torch.empty_like(chunks[into])
        )
    return chunks[rank]


def passes_its_own_chunk_on(tensor, group=None):
    """Right on two ranks: with more, each message should carry the sum so far."""
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(
            chunks[(rank - 1 - step) % world_size], right, left, group, out=torch.empty_like(mine)
        )
    return partial


def counts_chunks_the_wrong_way(tensor, group=None):
    """Right on two ranks: round s of the textbook needs r - s, not r + s."""
    rank, world_size, right, left = _ring(group)
    chunks = list(tensor.clone().tensor_split(world_size))
    for step in range(world_size - 1):
        out, into = (rank - 1 + step) % world_size, (rank + step) % world_size
        chunks[into] += p2p.send_recv(
            chunks[out], right, left, group, out=torch.empty_like(chunks[into])
        )
    return chunks[rank]


def divides_by_the_world_size(tensor, group=None):
    return with_send_recv(tensor, group) / dist.get_world_size(group)


def returns_its_own_chunk(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        p2p.send_recv(
            chunks[(rank - 1 - step) % world_size], right, left, group, out=torch.empty_like(mine)
        )
    return chunks[rank].clone()


def adds_its_own_again(tensor, group=None):
    rank, world_size, _, _ = _ring(group)
    return with_send_recv(tensor, group) + tensor.tensor_split(world_size)[rank]


def returns_the_whole_tensor(tensor, group=None):
    rank, world_size, _, _ = _ring(group)
    out = tensor.clone()
    out.tensor_split(world_size)[rank].copy_(with_send_recv(tensor, group))
    return out


def forgets_to_return(tensor, group=None):
    with_send_recv(tensor, group)


def drops_the_remainder(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    size = len(tensor) // world_size
    partial = tensor[(rank - 1) % world_size * size :][:size]
    for step in range(world_size - 1):
        mine = tensor[(rank - 2 - step) % world_size * size :][:size]
        partial = mine + p2p.send_recv(partial, right, left, group)
    return partial


def buffers_of_one_size(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = (
            p2p.send_recv(partial, right, left, group, out=torch.empty_like(chunks[0]))[: len(mine)]
            + mine
        )
    return partial


def pads(tensor, group=None):
    rank, world_size, _, _ = _ring(group)
    size = -(-len(tensor) // world_size)
    sizes = [len(chunk) for chunk in tensor.tensor_split(world_size)]
    padded = tensor.new_zeros(world_size, size)
    for row, chunk in zip(padded, tensor.tensor_split(world_size), strict=True):
        row[: len(chunk)] = chunk
    return with_send_recv(padded.reshape(-1), group)[: sizes[rank]]


def float32_buffers(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty(mine.shape))
    return partial


def adds_into_the_input(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        out, into = chunks[(rank - 1 - step) % world_size], chunks[(rank - 2 - step) % world_size]
        into += p2p.send_recv(out, right, left, group, out=torch.empty_like(into))
    return chunks[rank].clone()


def alone_it_returns_a_view(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
    return partial


def whole_tensors_round_the_ring(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    passing, summed = tensor, tensor.clone()
    for _ in range(world_size - 1):
        passing = p2p.send_recv(passing, right, left, group)
        summed += passing
    return summed.tensor_split(world_size)[rank].clone()


def straight_to_the_owner(tensor, group=None):
    rank, world_size, _, _ = _ring(group)
    chunks = tensor.tensor_split(world_size)
    summed = chunks[rank].clone()
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        summed += p2p.send_recv(chunks[to], to, frm, group, out=torch.empty_like(summed))
    return summed


def all_send_first(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        p2p.send(partial, right, group)
        partial = mine + p2p.recv(torch.empty_like(mine), left, group)
    return partial


def rank_0_never_receives(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        if rank == 0:
            p2p.send(partial, right, group)
            continue
        received = p2p.recv(torch.empty_like(mine), left, group)
        if rank < world_size - 1:
            p2p.send(partial, right, group)
        partial = mine + received
    p2p.recv(torch.empty_like(partial), left, group)
    return partial


def forgets_the_group(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, out=torch.empty_like(mine))
    return partial


def rank_of_the_world(tensor, group=None):
    rank, world_size = dist.get_rank(), dist.get_world_size(group)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.tensor_split(world_size)
    partial = chunks[(rank - 1) % world_size]
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
    return partial


def calls_all_reduce(tensor, group=None):
    out = tensor.clone()
    dist.all_reduce(out, group=group)
    return out.tensor_split(dist.get_world_size(group))[dist.get_rank(group)].clone()


def calls_lib(tensor, group=None):
    return ring.ring_reduce_scatter(tensor, group)


def with_send_recv(tensor, group=None):
    rank, world_size, right, left = _ring(group)
    chunks = tensor.tensor_split(world_size)
    partial = chunks[rank - 1]  # the chunk that is finished one rank further on
    for step in range(world_size - 1):
        mine = chunks[(rank - 2 - step) % world_size]
        partial = mine + p2p.send_recv(partial, right, left, group, out=torch.empty_like(mine))
    return partial if world_size > 1 else partial.clone()


def with_a_clone_and_isend(tensor, group=None):
    """The textbook's numbering, shifted by one, in place in a clone."""
    rank, world_size, right, left = _ring(group)
    to = right if group is None else dist.get_global_rank(group, right)
    frm = left if group is None else dist.get_global_rank(group, left)
    chunks = tensor.clone().tensor_split(world_size)
    for step in range(world_size - 1):
        leaving, growing = (
            chunks[(rank - 1 - step) % world_size],
            chunks[(rank - 2 - step) % world_size],
        )
        received = torch.zeros_like(growing)
        sending = dist.isend(leaving, to, group=group)
        dist.recv(received, frm, group=group)
        sending.wait()
        growing += received
    return chunks[rank].clone()


def with_blocking_calls_and_no_empty_messages(tensor, group=None):
    """Rank 0 sends first, the others receive first; a chunk without elements is not sent at all."""
    rank, world_size, right, left = _ring(group)
    sums = {c: chunk.clone() for c, chunk in enumerate(tensor.tensor_split(world_size))}
    for step in range(world_size - 1):
        out, into = (rank - 1 - step) % world_size, (rank - 2 - step) % world_size
        received = torch.empty_like(sums[into])
        send = lambda out=out: p2p.send(sums[out], right, group) if len(sums[out]) else None
        receive = lambda r=received: p2p.recv(r, left, group) if len(r) else None
        for action in (send, receive) if rank == 0 else (receive, send):
            action()
        sums[into] = sums[into] + received
    return sums[rank]


WRONG = {
    a_round_too_few: "a round too few",
    last_sum_not_added: "a round too few",
    passes_its_own_chunk_on: "a round too few",
    textbook_chunk: "another rank's chunk",
    returns_the_chunk_it_never_finished: "nothing was added",
    counts_chunks_the_wrong_way: "chunk numbers out of step",
    divides_by_the_world_size: "divided by N",
    returns_its_own_chunk: "nothing was added",
    adds_its_own_again: "counted twice",
    returns_the_whole_tensor: "the whole tensor",
    forgets_to_return: "nothing returned",
    drops_the_remainder: "right only when N divides n",
    buffers_of_one_size: "right only when N divides n",
    pads: "padded",
    float32_buffers: "a buffer of another dtype",
    adds_into_the_input: "the input as a buffer",
    alone_it_returns_a_view: "not a copy",
    whole_tensors_round_the_ring: "whole tensors in the ring",
    straight_to_the_owner: "not a ring",
    all_send_first: "everyone sends first",
    rank_0_never_receives: "a receive without its send",
    forgets_the_group: "ranks of the world, not of the group",
    rank_of_the_world: "ranks of the world, not of the group",
    calls_all_reduce: "called what it builds",
    calls_lib: "called what it builds",
}

RIGHT = [with_send_recv, with_a_clone_and_isend, with_blocking_calls_and_no_empty_messages]
