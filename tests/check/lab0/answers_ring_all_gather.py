"""Answers to Lab 0's ring_all_gather: wrong ones, each with the hint that it must
get, and right ones."""

import torch
import torch.distributed as dist

from lib.collectives import p2p, ring


def _ring(group):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    return rank, world_size, (rank + 1) % world_size, (rank - 1) % world_size


def _places(chunk, out, world_size):
    """The whole and its chunks' places."""
    if out is None:
        out = chunk.new_full((world_size * len(chunk),), -1)
    return out, out.tensor_split(world_size)


def a_round_too_few(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 2):
        p2p.send_recv(
            places[(rank - step) % world_size],
            right,
            left,
            group,
            out=places[(rank - step - 1) % world_size],
        )
    return out


def forgets_its_own(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    for step in range(world_size - 1):
        passing = chunk if step == 0 else places[(rank - step) % world_size]
        p2p.send_recv(passing, right, left, group, out=places[(rank - step - 1) % world_size])
    return out


def sends_its_own_every_round(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        coming = places[(rank - step - 1) % world_size]
        coming.copy_(
            p2p.send_recv(chunk, right, left, group, out=torch.empty_like(places[left]))[
                : len(coming)
            ]
        )
    return out


def in_order_of_arrival(chunk, group=None, out=None):
    _, world_size, right, left = _ring(group)
    came = [chunk]
    for _ in range(world_size - 1):
        came.append(p2p.send_recv(came[-1], right, left, group))
    return torch.cat(came)


def one_buffer(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    sizes = [len(place) for place in _places(chunk, out, world_size)[1]]
    buffer, chunks, passing = chunk.new_empty(max(sizes)), [chunk] * world_size, chunk
    for step in range(world_size - 1):
        coming = (rank - 1 - step) % world_size
        chunks[coming] = p2p.send_recv(passing, right, left, group, out=buffer[: sizes[coming]])
        passing = chunks[coming].clone()
    whole = torch.cat(chunks)
    return whole if out is None else out.copy_(whole)


def ignores_out(chunk, group=None, out=None):
    return with_send_recv(chunk, group, None if out is None else out.clone())


def chunks_of_one_size(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    chunks = {rank: chunk}
    for step in range(world_size - 1):
        chunks[(rank - step - 1) % world_size] = p2p.send_recv(
            chunks[(rank - step) % world_size], right, left, group
        )
    whole = torch.cat([chunks[r] for r in range(world_size)])
    return whole if out is None else out.copy_(whole)


def a_float32_whole(chunk, group=None, out=None):
    _, world_size, _, _ = _ring(group)
    return with_send_recv(
        chunk, group, torch.empty(world_size * len(chunk)) if out is None else out
    )


def forgets_to_return(chunk, group=None, out=None):
    with_send_recv(chunk, group, out)


def returns_a_list(chunk, group=None, out=None):
    return list(with_send_recv(chunk, group, out).tensor_split(dist.get_world_size(group)))


def receives_into_its_chunk(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    if len(out) % world_size:
        return with_send_recv(chunk, group, out)
    for step in range(world_size - 1):
        chunk.copy_(p2p.send_recv(chunk, right, left, group))
        places[(rank - step - 1) % world_size].copy_(chunk)
    return out


def passes_on_all_it_has(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        have = torch.cat([places[(rank - s) % world_size] for s in range(step + 1)])
        coming = [places[(rank - 1 - s) % world_size] for s in range(step + 1)]
        received = p2p.send_recv(
            have, right, left, group, out=have.new_empty(sum(map(len, coming)))
        )
        for place, piece in zip(
            coming, received.split([len(place) for place in coming]), strict=True
        ):
            place.copy_(piece)
    return out


def sends_to_everyone(chunk, group=None, out=None):
    rank, world_size, _, _ = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    others = [r for r in range(world_size) if r != rank]
    p2p.exchange([(chunk, r) for r in others], [(places[r], r) for r in others], group)
    return out


def all_send_first(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        p2p.send(places[(rank - step) % world_size], right, group)
        p2p.recv(places[(rank - step - 1) % world_size], left, group)
    return out


def all_receive_first(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        p2p.recv(places[(rank - step - 1) % world_size], left, group)
        p2p.send(places[(rank - step) % world_size], right, group)
    return out


def forgets_the_group(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out, places = _places(chunk, out, world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        p2p.send_recv(
            places[(rank - step) % world_size],
            right,
            left,
            out=places[(rank - step - 1) % world_size],
        )
    return out


def calls_all_gather(chunk, group=None, out=None):
    chunks = [torch.empty_like(chunk) for _ in range(dist.get_world_size(group))]
    dist.all_gather(chunks, chunk, group=group)
    return torch.cat(chunks)


def calls_lib(chunk, group=None, out=None):
    return ring.ring_all_gather(chunk, group, out)


def a_round_too_many(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out = with_send_recv(chunk, group, out)
    places = out.tensor_split(world_size)
    p2p.send_recv(places[right], right, left, group, out=places[rank])
    return out


def has_no_chunk(chunk, group=None, out=None):
    return out if len(chunk) == 0 else with_send_recv(chunk, group, out)


def to_the_left(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out = chunk.new_empty(world_size * len(chunk)) if out is None else out
    places = out.tensor_split(world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        leaving, coming = places[(rank + step) % world_size], places[(rank + step + 1) % world_size]
        p2p.send_recv(leaving, left, right, group, out=coming)
    return out


def with_send_recv(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    out = chunk.new_empty(world_size * len(chunk)) if out is None else out
    places = out.tensor_split(world_size)
    places[rank].copy_(chunk)
    for step in range(world_size - 1):
        leaving, coming = places[(rank - step) % world_size], places[(rank - step - 1) % world_size]
        p2p.send_recv(leaving, right, left, group, out=coming)
    return out


def with_a_dict_and_dist(chunk, group=None, out=None):
    rank, world_size, right, left = _ring(group)
    to = right if group is None else dist.get_global_rank(group, right)
    frm = left if group is None else dist.get_global_rank(group, left)
    sizes = (
        [len(chunk)] * world_size if out is None else [len(c) for c in out.tensor_split(world_size)]
    )
    have, newest = {rank: chunk.clone()}, rank
    for _ in range(world_size - 1):
        coming = (newest - 1) % world_size
        have[coming] = chunk.new_zeros(sizes[coming])
        works = [
            dist.irecv(have[coming], frm, group=group),
            dist.isend(have[newest], to, group=group),
        ]
        for work in works:
            work.wait()
        newest = coming
    whole = torch.cat([have[r] for r in range(world_size)])
    if out is None:
        return whole
    out[:] = whole
    return out


WRONG = {
    a_round_too_few: "a round too few",
    forgets_its_own: "a round too few",
    a_round_too_many: "a round too many",
    has_no_chunk: "right only where there is something",
    to_the_left: "the other way round",
    sends_its_own_every_round: "the same chunk every round",
    in_order_of_arrival: "order of arrival",
    one_buffer: "one buffer for all",
    ignores_out: "out not filled",
    chunks_of_one_size: "right only when N divides n",
    a_float32_whole: "a buffer of another dtype",
    forgets_to_return: "nothing returned",
    returns_a_list: "nothing returned",
    receives_into_its_chunk: "the parcel is the input",
    passes_on_all_it_has: "all that it has, every round",
    sends_to_everyone: "not a ring",
    all_send_first: "everyone sends first",
    all_receive_first: "a receive without its send",
    forgets_the_group: "ranks of the world, not of the group",
    calls_all_gather: "called what it builds",
    calls_lib: "called what it builds",
}

RIGHT = [with_send_recv, with_a_dict_and_dist]
