"""Answers to Lab 1's naive_data_parallel, function by function: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist
from torch import nn

from lib import collectives
from lib.data_parallel import naive, replicate


def tensors(module):
    return [*module.parameters(), *module.buffers()]


# broadcast_parameters: wrong


@torch.no_grad()
def rebinds_a_name(module, group=None):
    for p in tensors(module):
        p = collectives.broadcast(p.clone(), 0, group)


def does_nothing(module, group=None):
    pass


@torch.no_grad()
def parameters_only(module, group=None):
    for p in module.parameters():
        collectives.broadcast(p, 0, group)


@torch.no_grad()
def trained_only(module, group=None):
    for p in [p for p in module.parameters() if p.requires_grad] + list(module.buffers()):
        collectives.broadcast(p, 0, group)


@torch.no_grad()
def trained_parameters_only(module, group=None):
    for p in module.parameters():
        if p.requires_grad:
            collectives.broadcast(p, 0, group)


@torch.no_grad()
def matrices_only(module, group=None):
    for p in tensors(module):
        if p.ndim == 2:
            collectives.broadcast(p, 0, group)


@torch.no_grad()
def averages_them(module, group=None):
    for p in tensors(module):
        collectives.all_reduce(p, group)
        p.copy_(p / dist.get_world_size(group))


@torch.no_grad()
def from_the_last_rank(module, group=None):
    for p in tensors(module):
        collectives.broadcast(p, dist.get_world_size(group) - 1, group)


@torch.no_grad()
def only_rank_0_calls(module, group=None):
    if dist.get_rank(group) == 0:
        for p in tensors(module):
            dist.broadcast(p, group=group, group_src=0)


@torch.no_grad()
def everyone_is_the_root(module, group=None):
    for p in tensors(module):
        collectives.broadcast(p, dist.get_rank(group), group)


@torch.no_grad()
def forgets_the_group(module, group=None):
    for p in tensors(module):
        collectives.broadcast(p, 0)


@torch.no_grad()
def rank_0_of_the_world(module, group=None):
    for p in tensors(module):
        dist.broadcast(p, 0, group=group)


def writes_to_leaves(module, group=None):
    for p in tensors(module):
        p.copy_(collectives.broadcast(p.clone(), 0, group))


@torch.no_grad()
def new_parameters(module, group=None):
    for name, p in list(module.named_parameters()):
        owner = module.get_submodule(name.rpartition(".")[0])
        received = collectives.broadcast(p.clone(), 0, group)
        setattr(owner, name.rpartition(".")[2], nn.Parameter(received, p.requires_grad))
    for b in module.buffers():
        collectives.broadcast(b, 0, group)


@torch.no_grad()
def new_data(module, group=None):
    for p in tensors(module):
        p.data = collectives.broadcast(p.clone(), 0, group)


def in_float32(module, group=None):
    a_tree_each(module.float(), group)


def freezes_them(module, group=None):
    for p in tensors(module):
        collectives.broadcast(p.requires_grad_(False), 0, group)


@torch.no_grad()
def by_the_state_dict(module, group=None):
    for tensor in module.state_dict().values():
        collectives.broadcast(tensor, 0, group)


@torch.no_grad()
def gathers_them(module, group=None):
    for p in tensors(module):
        everyones = [torch.empty_like(p) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyones, p.detach(), group=group)
        p.copy_(everyones[0])


@torch.no_grad()
def sums_with_zeros(module, group=None):
    for p in tensors(module):
        if dist.get_rank(group):
            p.zero_()
        collectives.all_reduce(p, group)


def calls_lib(module, group=None):
    replicate.broadcast_parameters(module, group)


def no_broadcast_yet(module, group=None):
    raise NotImplementedError


# broadcast_parameters: right


def a_tree_each(module, group=None):
    for tensor in [*module.parameters(), *module.buffers()]:
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


def sums_only(parameters, group, all_reduce):
    for p in trained(parameters):
        all_reduce(grad(p), group)


def before_and_after(parameters, group, all_reduce):
    for p in trained(parameters):
        grad(p).div_(dist.get_world_size(group))
        all_reduce(p.grad, group)
        p.grad /= dist.get_world_size(group)


def size_of_the_world(parameters, group, all_reduce):
    for p in trained(parameters):
        all_reduce(grad(p), group)
        p.grad /= dist.get_world_size()


def by_how_many_parameters(parameters, group, all_reduce):
    for p in trained(parameters):
        all_reduce(grad(p), group)
        p.grad /= len(parameters)


@torch.no_grad()
def the_parameters_themselves(parameters, group, all_reduce):
    for p in trained(parameters):
        grad(p)
        all_reduce(p, group)
        p /= dist.get_world_size(group)


@torch.no_grad()
def updates_them_too(parameters, group, all_reduce):
    one_by_one(parameters, group, all_reduce)
    for p in trained(parameters):
        p -= 0.1 * p.grad


def skips_what_has_none(parameters, group, all_reduce):
    for p in parameters:
        if p.grad is not None:
            all_reduce(p.grad, group)
            p.grad /= dist.get_world_size(group)


def zeros_that_it_forgets(parameters, group, all_reduce):
    for p in trained(parameters):
        g = torch.zeros_like(p) if p.grad is None else p.grad
        all_reduce(g, group)
        g /= dist.get_world_size(group)


def does_not_expect_none(parameters, group, all_reduce):
    for p in trained(parameters):
        p.grad /= dist.get_world_size(group)
        all_reduce(p.grad, group)


def frozen_ones_too(parameters, group, all_reduce):
    for p in parameters:
        all_reduce(grad(p), group)
        p.grad /= dist.get_world_size(group)


def sends_frozen_ones(parameters, group, all_reduce):
    for p in parameters:
        g = torch.zeros_like(p) if p.grad is None else p.grad
        all_reduce(g, group)
        if p.requires_grad:
            p.grad = g / dist.get_world_size(group)


def takes_what_it_returns(parameters, group, all_reduce):
    for p in trained(parameters):
        p.grad = all_reduce(grad(p) / dist.get_world_size(group), group)


def divides_what_it_returns(parameters, group, all_reduce):
    for p in trained(parameters):
        p.grad = all_reduce(grad(p), group) / dist.get_world_size(group)


def on_copies(parameters, group, all_reduce):
    for p in trained(parameters):
        g = grad(p).clone()
        all_reduce(g, group)
        g /= dist.get_world_size(group)


def divides_and_forgets_to_sum(parameters, group, all_reduce):
    for p in trained(parameters):
        g = grad(p) / dist.get_world_size(group)
        all_reduce(g.clone(), group)
        p.grad = g


def without_group(parameters, group, all_reduce):
    for p in trained(parameters):
        all_reduce(grad(p))
        p.grad /= dist.get_world_size(group)


def asks_for_the_mean(parameters, group, all_reduce):
    for p in trained(parameters):
        all_reduce(grad(p), op=dist.ReduceOp.AVG, group=group)


def an_imported_all_reduce(parameters, group, all_reduce):
    for p in trained(parameters):
        dist.all_reduce(grad(p), group=group)
        p.grad /= dist.get_world_size(group)


def calls_libs_average(parameters, group, all_reduce):
    naive.average_gradients(parameters, group, all_reduce)


def sends_them_twice(parameters, group, all_reduce):
    for p in trained(parameters):
        all_reduce(grad(p).clone(), group)
    one_by_one(parameters, group, all_reduce)


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


WRONG = {
    "broadcast_parameters": {
        rebinds_a_name: "nothing is delivered",
        does_nothing: "nothing is delivered",
        parameters_only: "buffers forgotten",
        trained_only: "frozen ones forgotten",
        trained_parameters_only: "frozen ones forgotten",
        matrices_only: "some are left out",
        averages_them: "the sum or the mean of all",
        from_the_last_rank: "another rank's",
        only_rank_0_calls: "not every rank takes part",
        everyone_is_the_root: "not every rank takes part",
        forgets_the_group: "not every rank takes part",
        rank_0_of_the_world: "a root of the world, not of the group",
        writes_to_leaves: "in place on a leaf",
        new_parameters: "another tensor in its place",
        new_data: "another tensor in its place",
        in_float32: "another tensor in its place",
        freezes_them: "requires_grad changed",
        by_the_state_dict: "tied ones twice",
        gathers_them: "everyone sends",
        sums_with_zeros: "everyone sends",
        calls_lib: "called lib's",
        no_broadcast_yet: "not written",
    },
    "average_gradients": {
        sums_only: "not divided",
        before_and_after: "divided twice",
        size_of_the_world: "the world's size, not the group's",
        by_how_many_parameters: "another divisor",
        the_parameters_themselves: "the parameter, not its gradient",
        updates_them_too: "the parameter, not its gradient",
        skips_what_has_none: "skipped on some ranks",
        zeros_that_it_forgets: "a parameter without gradient",
        does_not_expect_none: "a parameter without gradient",
        frozen_ones_too: "frozen ones too",
        sends_frozen_ones: "frozen ones too",
        takes_what_it_returns: "what all_reduce returns",
        divides_what_it_returns: "what all_reduce returns",
        on_copies: "nothing written back",
        divides_and_forgets_to_sum: "nothing written back",
        without_group: "the group is not passed on",
        asks_for_the_mean: "an op for all_reduce",
        an_imported_all_reduce: "not the all_reduce it was given",
        calls_libs_average: "called lib's",
        sends_them_twice: "sent more than once",
        no_mean_yet: "not written",
    },
}
RIGHT = {
    "broadcast_parameters": [a_tree_each, from_rank_0_to_each, a_flat_one_per_dtype],
    "average_gradients": [one_by_one, divides_first, from_last_to_first_in_place],
}
