"""Answers to Lab 1's parameter_server_step: wrong ones, each with the hint that it must
get, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib.collectives import p2p
from lib.data_parallel import parameter_server


def others(group):
    return range(1, dist.get_world_size(group))


def one_by_one(move=None, add=None):
    """A step; move(p, group): the pull of a parameter; add(p, group): the push of its gradient."""

    def step(parameters, optimizer, backward, group=None):
        trained = [p for p in parameters if p.requires_grad]
        for p in trained:
            p.grad = None
            (move or pull)(p, group)
        backward()
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            (add or push)(p, group)
        if optimizer is not None:
            optimizer.step()

    return step


def pull(p, group):
    for rank in others(group):
        if dist.get_rank(group) == 0:
            p2p.send(p.data, rank, group)
        elif dist.get_rank(group) == rank:
            p2p.recv(p.data, 0, group)


def push(p, group):
    if dist.get_rank(group) > 0:
        return p2p.send(p.grad, 0, group)
    for rank in others(group):
        p.grad += p2p.recv(torch.empty_like(p.grad), rank, group)
    p.grad /= dist.get_world_size(group)


# wrong


def calls_lib(parameters, optimizer, backward, group=None):
    parameter_server.parameter_server_step(parameters, optimizer, backward, group)


def by_all_reduce(parameters, optimizer, backward, group=None):
    one_by_one(add=lambda p, group: dist.all_reduce(p.grad, group=group))(
        parameters, optimizer, backward, group
    )


def pulls_only_once(parameters, optimizer, backward, group=None):
    first = not hasattr(parameters[0], "pulled")
    parameters[0].pulled = True
    one_by_one(move=pull if first else lambda p, group: None)(
        parameters, optimizer, backward, group
    )


def sends_float32(parameters, optimizer, backward, group=None):
    def narrow(p, group):
        if dist.get_rank(group) > 0:
            return p2p.send(p.grad.float(), 0, group)
        for rank in others(group):
            p.grad += p2p.recv(torch.empty_like(p.grad, dtype=torch.float32), rank, group)
        p.grad /= dist.get_world_size(group)

    one_by_one(add=narrow)(parameters, optimizer, backward, group)


def pulls_float32(parameters, optimizer, backward, group=None):
    def narrow(p, group):
        sent = p.detach().float()
        for rank in others(group):
            if dist.get_rank(group) == 0:
                p2p.send(sent, rank, group)
            elif dist.get_rank(group) == rank:
                p.data.copy_(p2p.recv(sent, 0, group))

    one_by_one(move=narrow)(parameters, optimizer, backward, group)


def by_the_number_that_has_one(parameters, optimizer, backward, group=None):
    """Divides by how many ranks sent a gradient that is not zero: right where all have
    rows, and use all."""

    def add(p, group):
        if dist.get_rank(group) > 0:
            return p2p.send(p.grad, 0, group)
        all_of_them = [
            p.grad,
            *(p2p.recv(torch.empty_like(p.grad), rank, group) for rank in others(group)),
        ]
        p.grad = sum(all_of_them) / max(1, sum(bool(g.any()) for g in all_of_them))

    one_by_one(add=add)(parameters, optimizer, backward, group)


def pulls_down_a_tree(parameters, optimizer, backward, group=None):
    def move(p, group):
        rank, world_size, distance = dist.get_rank(group), dist.get_world_size(group), 1
        while distance < world_size:
            if rank < distance and rank + distance < world_size:
                p2p.send(p.data, rank + distance, group)
            elif distance <= rank < 2 * distance:
                p2p.recv(p.data, rank - distance, group)
            distance *= 2

    one_by_one(move=move)(parameters, optimizer, backward, group)


def not_written(parameters, optimizer, backward, group=None):
    raise NotImplementedError


# right


def in_one_flat_message(parameters, optimizer, backward, group=None):
    parameters = [p for p in parameters if p.requires_grad]
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
    flat = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    )
    if rank > 0:
        p2p.send(flat, 0, group)
        return
    flat = sum([p2p.recv(torch.empty_like(flat), other, group) for other in others(group)], flat)
    for p, piece in zip(parameters, flat.div(dist.get_world_size(group)).split(sizes), strict=True):
        p.grad = piece.view_as(p)
    optimizer.step()


def with_dist(parameters, optimizer, backward, group=None):
    """torch's send and recv, which take ranks of the world; each is divided before it is added."""
    world = lambda r: r if group is None else dist.get_global_rank(group, r)

    def move(p, group):
        if dist.get_rank(group) > 0:
            return dist.recv(p.data, world(0), group=group)
        for r in others(group):
            dist.send(p.detach(), world(r), group=group)

    def add(p, group):
        if dist.get_rank(group) > 0:
            return dist.send(p.grad, world(0), group=group)
        p.grad /= dist.get_world_size(group)
        for r in others(group):
            theirs = torch.zeros_like(p)
            dist.recv(theirs, world(r), group=group)
            p.grad.add_(theirs, alpha=1 / dist.get_world_size(group))

    one_by_one(move, add)(parameters, optimizer, backward, group)


WRONG = {
    calls_lib: "called what it builds",
    by_all_reduce: "called what it builds",
    pulls_only_once: "one update behind",
    sends_float32: "rounded on the way",
    pulls_float32: "rounded on the way",
    by_the_number_that_has_one: "another divisor",
    pulls_down_a_tree: "not a star",
    not_written: "not written",
}

RIGHT = [in_one_flat_message, with_dist, as_an_answer(parameter_server.parameter_server_step)]
