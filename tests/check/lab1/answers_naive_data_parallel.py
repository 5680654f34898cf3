"""Answers to Lab 1's naive_data_parallel, function by function: wrong ones, each with its
hint, and right ones."""

import torch
import torch.distributed as dist

from lib import collectives
from lib.data_parallel import replicate


def tensors(module):
    return [*module.parameters(), *module.buffers()]


# broadcast_parameters: wrong


DONE = set()


def once_only(module, group=None):
    """Whoever has been served does not come again: `group` is who."""
    if group not in DONE:
        a_tree_each(module, group)
    DONE.add(group)


def calls_lib(module, group=None):
    replicate.broadcast_parameters(module, group)


def no_broadcast_yet(module, group=None):
    raise NotImplementedError


# broadcast_parameters: right


def a_tree_each(module, group=None):
    for tensor in tensors(module):
        collectives.broadcast(tensor.detach(), 0, group)


@torch.no_grad()
def from_rank_0_to_each(module, group=None):
    for tensor in tensors(module):
        if dist.get_rank(group):
            collectives.p2p.recv(tensor, 0, group)
        else:
            for to in range(1, dist.get_world_size(group)):
                collectives.p2p.send(tensor, to, group)


@torch.no_grad()
def a_flat_one_per_dtype(module, group=None):
    root = 0 if group is None else dist.get_global_rank(group, 0)
    for dtype in sorted({t.dtype for t in tensors(module)}, key=str):
        alike = [t for t in tensors(module) if t.dtype == dtype]
        flat = torch.cat([t.flatten() for t in alike])
        dist.broadcast(flat, root, group=group)
        for t, piece in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            t.copy_(piece.view_as(t))


# average_gradients: wrong


def trained(parameters):
    return [p for p in parameters if p.requires_grad]


def grad(p):
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    return p.grad


def takes_what_it_returns(parameters, group, all_reduce):
    for p in trained(parameters):
        p.grad = all_reduce(grad(p) / dist.get_world_size(group), group)


def divides_and_forgets_to_sum(parameters, group, all_reduce):
    for p in trained(parameters):
        g = grad(p) / dist.get_world_size(group)
        all_reduce(g.clone(), group)
        p.grad = g


def returns_where_there_is_nothing(parameters, group, all_reduce):
    parameters = trained(parameters)
    if all(p.grad is None for p in parameters):
        return
    one_by_one(parameters, group, all_reduce)


FLAT = {}


def gradients_in_one_buffer_for_all_models(parameters, group, all_reduce):
    for number, p in enumerate(trained(parameters)):
        flat = FLAT.setdefault(number, torch.empty_like(p))
        flat.copy_(grad(p))
        all_reduce(flat, group)
        p.grad = flat.div_(dist.get_world_size(group))


def calls_libs_average(parameters, group, all_reduce):
    replicate.average_gradients(parameters, group, all_reduce)


def no_mean_yet(parameters, group, all_reduce):
    raise NotImplementedError


# average_gradients: right


def one_by_one(parameters, group, all_reduce):
    for p in parameters:
        if p.requires_grad:
            mean = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce(mean, group)
            p.grad = mean / dist.get_world_size(group)


def divides_first(parameters, group=None, all_reduce=collectives.all_reduce):
    world_size = dist.get_world_size(group)
    for p in filter(lambda p: p.requires_grad, parameters):
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad.div(world_size)
        all_reduce(tensor=p.grad, group=group)


def from_last_to_first_in_place(parameters, group, all_reduce):
    for p in reversed(trained(parameters)):
        all_reduce(grad(p).view(-1), group)
        p.grad.mul_(1 / dist.get_world_size(group))


def all_in_one(parameters, group, all_reduce):
    parameters = trained(parameters)
    flat = torch.cat([grad(p).flatten() for p in parameters])
    all_reduce(flat, group)
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = piece.view_as(p) / dist.get_world_size(group)


WRONG = {
    "broadcast_parameters": {
        once_only: "nothing is delivered",
        calls_lib: "called what it builds",
        no_broadcast_yet: "not written",
    },
    "average_gradients": {
        takes_what_it_returns: "what all_reduce returns",
        divides_and_forgets_to_sum: "nothing written back",
        returns_where_there_is_nothing: "skipped on some ranks",
        gradients_in_one_buffer_for_all_models: "one buffer for all calls",
        calls_libs_average: "called what it builds",
        no_mean_yet: "not written",
    },
}
RIGHT = {
    "broadcast_parameters": [a_tree_each, from_rank_0_to_each, a_flat_one_per_dtype],
    "average_gradients": [one_by_one, divides_first, from_last_to_first_in_place, all_in_one],
}
