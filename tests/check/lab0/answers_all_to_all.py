"""Answers to Lab 0's all_to_all: wrong ones, each with the hint that it must get, and right ones,
unlike each other."""

import torch
import torch.distributed as dist

from lib.collectives import p2p, pairwise


def _setting(tensor, group, send_counts, recv_counts):
    """rank, N, blocks to send, a new tensor, its blocks"""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    send_counts = send_counts or [len(tensor) // world_size] * world_size
    recv_counts = recv_counts or send_counts
    out = tensor.new_full((sum(recv_counts), *tensor.shape[1:]), -1)
    return rank, world_size, tensor.split(send_counts), out, out.split(recv_counts)


def forgets_its_own(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        p2p.send_recv(blocks[to], to, frm, group, out=places[frm])
    return out


def in_order_of_arrival(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, _, places = _setting(tensor, group, send_counts, recv_counts)
    came = [blocks[rank]]
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        came.append(p2p.send_recv(blocks[to], to, frm, group, out=places[frm]))
    return torch.cat(came)


def sends_the_block_of_its_own_number(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        p2p.send_recv(blocks[rank], to, frm, group, out=places[frm])
    return out


def equal_blocks_only(tensor, group=None, send_counts=None, recv_counts=None):
    return with_send_recv(tensor, group)


def rows_of_one_element(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, _ = _setting(tensor, group, send_counts, recv_counts)
    out = torch.empty(len(out), dtype=tensor.dtype)
    places = out.split(recv_counts or [len(block) for block in blocks])
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        p2p.send_recv(blocks[to], to, frm, group, out=places[frm])
    return out


def a_float32_result(tensor, group=None, send_counts=None, recv_counts=None):
    return with_send_recv(tensor, group, send_counts, recv_counts).float()


def forgets_to_return(tensor, group=None, send_counts=None, recv_counts=None):
    with_send_recv(tensor, group, send_counts, recv_counts)


def everything_to_everyone(tensor, group=None, send_counts=None, recv_counts=None):
    """All ranks' tensors go to all ranks, which pick their blocks. (Uneven ones are left to
    a right answer.)"""
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    if send_counts is not None:
        return with_send_recv(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        everything = p2p.send_recv(tensor, to, frm, group)
        places[frm].copy_(everything.split([len(place) for place in places])[rank])
    return out


def one_receiver_at_a_time(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for receiver in range(world_size):
        if receiver == rank:
            p2p.exchange([], [(places[r], r) for r in range(world_size) if r != rank], group)
        else:
            p2p.send(blocks[receiver], receiver, group)
    return out


def all_send_first(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        p2p.send(blocks[(rank + step) % world_size], (rank + step) % world_size, group)
        p2p.recv(places[(rank - step) % world_size], (rank - step) % world_size, group)
    return out


def both_in_the_same_direction(tensor, group=None, send_counts=None, recv_counts=None):
    """Receives from the rank that it sends to: right on two ranks."""
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        to = (rank + step) % world_size
        p2p.send_recv(blocks[to], to, to, group, out=places[to])
    return out


def forgets_the_group(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        p2p.send_recv(blocks[to], to, frm, out=places[frm])
    return out


def calls_all_to_all(tensor, group=None, send_counts=None, recv_counts=None):
    _, _, _, out, _ = _setting(tensor, group, send_counts, recv_counts)
    dist.all_to_all_single(out, tensor, recv_counts, send_counts, group=group)
    return out


def calls_lib(tensor, group=None, send_counts=None, recv_counts=None):
    return pairwise.all_to_all(tensor, group, send_counts, recv_counts)


def with_send_recv(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        p2p.send_recv(blocks[to], to, frm, group, out=places[frm])
    return out


def backwards_with_dist(tensor, group=None, send_counts=None, recv_counts=None):
    """The nearest ranks last; what has come is put together at the end."""
    rank, world_size, blocks, _, places = _setting(tensor, group, send_counts, recv_counts)
    world = lambda r: r if group is None else dist.get_global_rank(group, r)
    came = {rank: blocks[rank]}
    for step in reversed(range(1, world_size)):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        came[frm] = torch.zeros_like(places[frm])
        receiving = dist.irecv(came[frm], world(frm), group=group)
        dist.isend(blocks[to].contiguous(), world(to), group=group).wait()
        receiving.wait()
    return torch.cat([came[r] for r in range(world_size)])


def blocks_of_elements(tensor, group=None, send_counts=None, recv_counts=None):
    rows = tensor.numel() // dist.get_world_size(group)
    counts = [rows] * dist.get_world_size(group)
    return with_send_recv(tensor, group, send_counts or counts, recv_counts or counts)


def blocks_of_n_rows(tensor, group=None, send_counts=None, recv_counts=None):
    """Without counts, it takes the number of blocks for their rows."""
    counts = [dist.get_world_size(group)] * dist.get_world_size(group)
    return with_send_recv(tensor, group, send_counts or counts, recv_counts or counts)


def partners_by_bits(tensor, group=None, send_counts=None, recv_counts=None):
    rank, world_size, blocks, out, places = _setting(tensor, group, send_counts, recv_counts)
    places[rank].copy_(blocks[rank])
    for step in range(1, world_size):
        p2p.send_recv(blocks[rank ^ step], rank ^ step, rank ^ step, group, out=places[rank ^ step])
    return out


def has_nothing_to_send(tensor, group=None, send_counts=None, recv_counts=None):
    if len(tensor) == 0 and dist.get_world_size(group) > 1:
        return tensor
    return with_send_recv(tensor, group, send_counts, recv_counts)


WRONG = {
    has_nothing_to_send: "nothing for a rank",
    blocks_of_elements: "elements for rows",
    blocks_of_n_rows: "blocks without counts",
    partners_by_bits: "powers of two only",
    forgets_its_own: "a block is missing",
    in_order_of_arrival: "order of arrival",
    sends_the_block_of_its_own_number: "a block for another rank",
    equal_blocks_only: "the counts are not used",
    rows_of_one_element: "the counts are not used",
    a_float32_result: "a buffer of another dtype",
    forgets_to_return: "nothing returned",
    everything_to_everyone: "more than the block",
    one_receiver_at_a_time: "all to one at a time",
    all_send_first: "everyone sends first",
    both_in_the_same_direction: "a receive without its send",
    forgets_the_group: "ranks of the world, not of the group",
    calls_all_to_all: "called what it builds",
    calls_lib: "called what it builds",
}

RIGHT = [with_send_recv, backwards_with_dist]
