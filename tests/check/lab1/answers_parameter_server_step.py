"""Answers to Lab 1's parameter_server_step: wrong ones, each with the hint that it must get, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib.collectives import p2p
from lib.data_parallel import parameter_server


def forget(parameters):
    for p in parameters:
        p.grad = None


def others(group):
    return range(1, dist.get_world_size(group))


def pull(parameters, group):
    for p in parameters:
        if dist.get_rank(group) == 0:
            for rank in others(group):
                p2p.send(p.data, rank, group)
        else:
            p2p.recv(p.data, 0, group)


def zeros_where_none(parameters):
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)


def push(parameters, group, divide=None):
    zeros_where_none(parameters)
    for p in parameters:
        if dist.get_rank(group) > 0:
            p2p.send(p.grad, 0, group)
            continue
        for rank in others(group):
            p.grad += p2p.recv(torch.empty_like(p.grad), rank, group)
        p.grad /= divide or dist.get_world_size(group)


def update(optimizer):
    if optimizer is not None:
        optimizer.step()


# wrong


def calls_lib(parameters, optimizer, backward, group=None):
    parameter_server.parameter_server_step(parameters, optimizer, backward, group)


def by_all_reduce(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    backward()
    zeros_where_none(parameters)
    for p in parameters:
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)
    update(optimizer)


def every_rank_updates(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    backward()
    push(parameters, group)
    optimizer.step()


def none_is_no_gradient(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    backward()
    if dist.get_rank(group) == 0:
        zeros_where_none(parameters)
    push_all = [p.grad.clone() for p in parameters]
    push(parameters, group)
    update(optimizer)
    return push_all


def leaves_unused_out(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    backward()
    push([p for p in parameters if p.grad is not None], group)
    update(optimizer)


def forgets_the_group(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, None)
    backward()
    push(parameters, None)
    update(optimizer)


def rank_0_only_serves(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    if dist.get_rank(group) > 0:
        backward()
    push(parameters, group, divide=dist.get_world_size(group) - 1)
    update(optimizer)


def pulls_only_once(parameters, optimizer, backward, group=None):
    forget(parameters)
    if optimizer is None or not optimizer.state:
        if not hasattr(parameters[0], "pulled"):
            pull(parameters, group)
        parameters[0].pulled = True
    backward()
    push(parameters, group)
    update(optimizer)


def never_pulls(parameters, optimizer, backward, group=None):
    forget(parameters)
    backward()
    push(parameters, group)
    update(optimizer)


def keeps_old_gradients(parameters, optimizer, backward, group=None):
    pull(parameters, group)
    backward()
    push(parameters, group)
    update(optimizer)


def does_not_divide(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    backward()
    push(parameters, group, divide=1)
    update(optimizer)


def divides_by_the_others(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    backward()
    push(parameters, group, divide=dist.get_world_size(group) - 1)
    update(optimizer)


def replaces_its_own(parameters, optimizer, backward, group=None):
    """Receives into .grad itself: the last rank's is left."""
    forget(parameters)
    pull(parameters, group)
    backward()
    zeros_where_none(parameters)
    for p in parameters:
        if dist.get_rank(group) > 0:
            p2p.send(p.grad, 0, group)
        else:
            for rank in others(group):
                p2p.recv(p.grad, rank, group)
            p.grad /= dist.get_world_size(group)
    update(optimizer)


def does_not_update(parameters, optimizer, backward, group=None):
    forget(parameters)
    pull(parameters, group)
    backward()
    push(parameters, group)


def updates_by_hand(parameters, optimizer, backward, group=None):
    """Without the momentum that the optimizer has: right in the first step."""
    forget(parameters)
    pull(parameters, group)
    backward()
    push(parameters, group)
    if optimizer is not None:
        for p in parameters:
            p.data -= optimizer.param_groups[0]["lr"] * p.grad


def sends_the_update_back(parameters, optimizer, backward, group=None):
    keeps_old_gradients(parameters, optimizer, lambda: (forget(parameters), backward()), group)
    pull(parameters, group)


def pulls_down_a_tree(parameters, optimizer, backward, group=None):
    forget(parameters)
    rank, world_size, distance = dist.get_rank(group), dist.get_world_size(group), 1
    while distance < world_size:
        for p in parameters:
            if rank < distance and rank + distance < world_size:
                p2p.send(p.data, rank + distance, group)
            elif distance <= rank < 2 * distance:
                p2p.recv(p.data, rank - distance, group)
        distance *= 2
    backward()
    push(parameters, group)
    update(optimizer)


def gossips(parameters, optimizer, backward, group=None):
    """Right, but an empty message goes round among the others."""
    keeps_old_gradients(parameters, optimizer, lambda: (forget(parameters), backward()), group)
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    nothing = torch.empty(0)
    if 0 < rank < last:
        p2p.send(nothing, rank + 1, group)
    if rank > 1:
        p2p.recv(nothing, rank - 1, group)


def not_written(parameters, optimizer, backward, group=None):
    raise NotImplementedError


# right


def in_one_flat_message(parameters, optimizer, backward, group=None):
    rank, sizes = dist.get_rank(group), [p.numel() for p in parameters]
    flat = torch.cat([p.detach().flatten() for p in parameters])
    for other in others(group):
        if rank == 0:
            p2p.send(flat, other, group)
        elif rank == other:
            p2p.recv(flat, 0, group)
    for p, piece in zip(parameters, flat.split(sizes), strict=True):
        p.data.copy_(piece.view_as(p))
        p.grad = None
    backward()
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    if rank > 0:
        p2p.send(flat, 0, group)
        return
    flat = sum([p2p.recv(torch.empty_like(flat), other, group) for other in others(group)], flat)
    for p, piece in zip(parameters, flat.div(dist.get_world_size(group)).split(sizes), strict=True):
        p.grad = piece.view_as(p)
    optimizer.step()


def with_dist(parameters, optimizer, backward, group=None):
    """torch's send and recv, which take ranks of the world; rank 0 serves one rank after the other."""
    rank = dist.get_rank(group)
    world = lambda r: r if group is None else dist.get_global_rank(group, r)
    forget(parameters)
    for r in others(group) if rank == 0 else []:
        for p in parameters:
            dist.send(p.detach(), world(r), group=group)
    for p in parameters if rank > 0 else []:
        dist.recv(p.data, world(0), group=group)
    backward()
    zeros_where_none(parameters)
    if rank > 0:
        for p in parameters:
            dist.send(p.grad, world(0), group=group)
        return
    for p in parameters:
        p.grad /= dist.get_world_size(group)
    for r in others(group):
        for p in parameters:
            theirs = torch.zeros_like(p)
            dist.recv(theirs, world(r), group=group)
            p.grad.add_(theirs, alpha=1 / dist.get_world_size(group))
    optimizer.step()


WRONG = {
    calls_lib: "called what it builds",
    by_all_reduce: "called what it builds",
    every_rank_updates: "only rank 0 updates",
    none_is_no_gradient: "a parameter without gradient",
    leaves_unused_out: "a receive without its send",
    forgets_the_group: "ranks of the world, not of the group",
    rank_0_only_serves: "backward, once",
    pulls_only_once: "one update behind",
    never_pulls: "not pulled",
    keeps_old_gradients: "gradients of the step before",
    does_not_divide: "not divided",
    divides_by_the_others: "another divisor",
    replaces_its_own: "a gradient is missing",
    does_not_update: "no update",
    updates_by_hand: "another update",
    sends_the_update_back: "sent back as well",
    pulls_down_a_tree: "not a star",
    gossips: "the others talk",
    not_written: "not written",
}

RIGHT = [in_one_flat_message, with_dist, as_an_answer(parameter_server.parameter_server_step)]
