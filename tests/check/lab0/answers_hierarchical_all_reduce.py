"""Answers to Lab 0's hierarchical_all_reduce: wrong ones, each with the hint that it must
get, and right ones."""

import torch
import torch.distributed as dist

from lib.collectives import hierarchical, p2p, ring


def inside_only(tensor, inside, across):
    ring.ring_all_reduce(tensor, inside)


def across_only(tensor, inside, across):
    ring.ring_all_reduce(tensor, across)


def forgets_what_came_across(tensor, inside, across):
    chunk = ring.ring_reduce_scatter(tensor, inside)
    ring.ring_all_reduce(chunk.clone(), across)
    ring.ring_all_gather(chunk, inside, out=tensor)


def last_step_missing(tensor, inside, across):
    chunk = ring.ring_reduce_scatter(tensor, inside)
    ring.ring_all_reduce(chunk, across)
    tensor.tensor_split(dist.get_world_size(inside))[dist.get_rank(inside)].copy_(chunk)


def forgets_the_result(tensor, inside, across):
    three_steps(tensor.clone(), inside, across)


def returns_a_new_tensor(tensor, inside, across):
    return three_steps(tensor.clone(), inside, across)


def divides(tensor, inside, across):
    three_steps(tensor, inside, across)
    tensor /= dist.get_world_size(inside) * dist.get_world_size(across)


def adds_inside_again(tensor, inside, across):
    ring.ring_all_reduce(tensor, inside)
    ring.ring_all_reduce(tensor, across)
    ring.ring_all_reduce(tensor, inside)


def gathers_across(tensor, inside, across):
    chunk = ring.ring_reduce_scatter(tensor, inside)
    ring.ring_all_reduce(chunk, across)
    ring.ring_all_gather(chunk, across, out=tensor)


def drops_the_remainder(tensor, inside, across):
    size = len(tensor) // dist.get_world_size(inside) * dist.get_world_size(inside)
    three_steps(tensor[:size], inside, across)


def whole_tensor_across(tensor, inside, across):
    ring.ring_all_reduce(tensor, inside)
    ring.ring_all_reduce(tensor, across)


def all_reduces_inside_first(tensor, inside, across):
    ring.ring_all_reduce(tensor, inside)
    chunk = tensor.tensor_split(dist.get_world_size(inside))[dist.get_rank(inside)].clone()
    ring.ring_all_reduce(chunk, across)
    ring.ring_all_gather(chunk, inside, out=tensor)


def a_star_across(tensor, inside, across):
    """Right: the M ranks of a place sum their chunk at the first of them."""
    chunk = ring.ring_reduce_scatter(tensor, inside)
    others = range(1, dist.get_world_size(across))
    if dist.get_rank(across):
        p2p.send(chunk, 0, across)
        p2p.recv(chunk, 0, across)
    else:
        for frm in others:
            chunk += p2p.recv(torch.empty_like(chunk), frm, across)
        for to in others:
            p2p.send(chunk, to, across)
    ring.ring_all_gather(chunk, inside, out=tensor)


def gathers_and_adds_across(tensor, inside, across):
    chunk = ring.ring_reduce_scatter(tensor, inside)
    whole = ring.ring_all_gather(chunk, across)
    return ring.ring_all_gather(
        whole.view(dist.get_world_size(across), -1).sum(0), inside, out=tensor
    )


def divides_by_the_world(tensor, inside, across):
    return three_steps(tensor, inside, across).div_(dist.get_world_size())


def swaps_the_levels(tensor, inside, across):
    three_steps(tensor, across, inside)


def a_leader_for_each_node(tensor, inside, across):
    """Rank 0 of each node collects, the leaders all-reduce, and each hands out the result."""
    rank, R = dist.get_rank(inside), dist.get_world_size(inside)
    if rank:
        p2p.send(tensor, 0, inside)
        p2p.recv(tensor, 0, inside)
        return
    for frm in range(1, R):
        tensor += p2p.recv(torch.empty_like(tensor), frm, inside)
    ring.ring_all_reduce(tensor, across)
    for to in range(1, R):
        p2p.send(tensor, to, inside)


def flat_ring(tensor, inside, across):
    ring.ring_all_reduce(tensor)


def only_first_node_goes_across(tensor, inside, across):
    chunk = ring.ring_reduce_scatter(tensor, inside)
    if dist.get_rank(across) == 0:
        ring.ring_all_reduce(chunk, across)
    ring.ring_all_gather(chunk, inside, out=tensor)


def calls_all_reduce(tensor, inside, across):
    dist.all_reduce(tensor, group=inside)
    dist.all_reduce(tensor, group=across)


def calls_lib(tensor, inside, across):
    return hierarchical.hierarchical_all_reduce(tensor, inside, across)


def three_steps(tensor, inside, across):
    chunk = ring.ring_reduce_scatter(tensor, inside)  # (n/R,)  summed over my node
    ring.ring_all_reduce(chunk, across)  # (n/R,)  summed over all nodes
    ring.ring_all_gather(chunk, inside, out=tensor)  # (n,)
    return tensor


def from_messages(tensor, inside, across):
    """Reduce-scatter and all-gather straight to the owners, inside and again across."""
    _both_levels(tensor, [inside, across])


def _both_levels(tensor, groups):
    if not groups:
        return
    group = groups[0]
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(world_size)
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        received = p2p.send_recv(chunks[to], to, frm, group, out=torch.empty_like(chunks[rank]))
        chunks[rank].add_(received)
    _both_levels(chunks[rank], groups[1:])
    for step in range(1, world_size):
        to, frm = (rank + step) % world_size, (rank - step) % world_size
        p2p.send_recv(chunks[rank], to, frm, group, out=chunks[frm])


WRONG = {
    inside_only: "the nodes are not joined",
    across_only: "one place of every node",
    forgets_what_came_across: "the nodes are not joined",
    last_step_missing: "the last step is missing",
    forgets_the_result: "not in place",
    returns_a_new_tensor: "not in place",
    divides: "divided by N",
    adds_inside_again: "counted twice",
    gathers_across: "gathered over the wrong group",
    drops_the_remainder: "right only when N divides n",
    whole_tensor_across: "the whole tensor crosses",
    all_reduces_inside_first: "all-reduced inside",
    gathers_and_adds_across: "gathered and added across",
    divides_by_the_world: "divided by N",
    swaps_the_levels: "the two levels are swapped",
    a_leader_for_each_node: "one rank carries it all",
    flat_ring: "outside of both groups",
    only_first_node_goes_across: "a receive without its send",
    calls_all_reduce: "called what it builds",
    calls_lib: "called what it builds",
}

RIGHT = [three_steps, from_messages, a_star_across]
