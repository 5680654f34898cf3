"""Answers to Lab 5's reduce_gradients: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives, moe


def split(model):
    """(dense parameters, experts'), those that are trained."""
    experts = moe.expert_parameters(model)
    ids = {id(p) for p in experts}
    dense = [p for p in model.parameters() if id(p) not in ids]
    return [p for p in dense if p.requires_grad], [p for p in experts if p.requires_grad]


def reduced(parameters, group, all_reduce, divisor):
    """The right answer for one kind, but for what is given."""
    if not parameters:
        return
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    line = torch.cat([p.grad.flatten() for p in parameters])
    all_reduce(line, group)
    for p, piece in zip(parameters, (line / divisor).split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(piece.view_as(p))


def reduce_with(
    model, expert_dp_group, world, all_reduce, dense_by=None, experts_by=None, dense_over=(), experts_over=()
):
    """The right answer, but for what is given: () stands for the right group, None for the right divisor."""
    dense, experts = split(model)
    W = dist.get_world_size(world)
    reduced(dense, world if dense_over == () else dense_over, all_reduce, dense_by or W)
    reduced(experts, expert_dp_group if experts_over == () else experts_over, all_reduce, experts_by or W)


# right


def as_in_the_notebook(model, expert_dp_group, world=None, all_reduce=collectives.all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce)


def experts_first_divided_before(model, expert_dp_group, world=None, all_reduce=collectives.all_reduce):
    """Divides before it sums; new gradients in place of the old ones."""
    W = dist.get_world_size(world)
    for parameters, group in zip(split(model)[::-1], (expert_dp_group, world), strict=True):
        zeros = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        pieces = [(z if p.grad is None else p.grad).reshape(-1) / W for p, z in zip(parameters, zeros, strict=True)]
        if pieces:
            line = all_reduce(torch.cat(pieces), group)
            begin = 0
            for p in parameters:
                p.grad = line[begin : begin + p.numel()].reshape(p.shape).clone()
                begin += p.numel()


def alone_it_sends_nothing(model, expert_dp_group, world=None, all_reduce=collectives.all_reduce):
    def only_with_others(line, group):
        return all_reduce(line, group) if dist.get_world_size(group) > 1 else line

    reduce_with(model, expert_dp_group, world, only_with_others)


# wrong


def experts_divided_by_dp(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce, experts_by=dist.get_world_size(expert_dp_group))


def experts_divided_by_ep(model, expert_dp_group, world, all_reduce):
    ep = dist.get_world_size(world) // dist.get_world_size(expert_dp_group)
    W = dist.get_world_size(world)
    reduce_with(model, expert_dp_group, world, all_reduce, experts_by=ep if 1 < ep < W else W)


def experts_over_the_world(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce, experts_over=world)


def all_over_the_world(model, expert_dp_group, world, all_reduce):
    parameters = [p for p in model.parameters() if p.requires_grad]
    reduced(parameters, world, all_reduce, dist.get_world_size(world))


def groups_exchanged(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce, dense_over=expert_dp_group, experts_over=world)


def dense_over_the_experts_group(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce, dense_over=expert_dp_group)


def dense_mean_over_the_experts_group(model, expert_dp_group, world, all_reduce):
    dp = dist.get_world_size(expert_dp_group)
    reduce_with(model, expert_dp_group, world, all_reduce, dense_by=dp, dense_over=expert_dp_group)


def dense_divided_by_dp(model, expert_dp_group, world, all_reduce):
    dp = dist.get_world_size(expert_dp_group)
    reduce_with(model, expert_dp_group, world, all_reduce, dense_by=dp, experts_by=dp)


def not_divided(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce, 1, 1)


def dense_not_divided(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce, dense_by=1)


def divided_twice(model, expert_dp_group, world, all_reduce):
    W = dist.get_world_size(world)
    reduce_with(model, expert_dp_group, world, all_reduce, W**2, W**2)


def by_the_world_s_size(model, expert_dp_group, world, all_reduce):
    N = dist.get_world_size()
    reduce_with(model, expert_dp_group, world, all_reduce, N, N)


def without_world(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, None, all_reduce)


def parameters_averaged(model, expert_dp_group, world, all_reduce):
    W = dist.get_world_size(world)
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        for p in parameters:
            all_reduce(p.data, group)
            p.data /= W


def not_written_back(model, expert_dp_group, world, all_reduce):
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        if parameters:
            all_reduce(torch.cat([p.grad.flatten() for p in parameters]), group)


def unused_skipped(model, expert_dp_group, world, all_reduce):
    W = dist.get_world_size(world)
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        reduced([p for p in parameters if p.grad is not None], group, all_reduce, W)


def unused_one_by_one(model, expert_dp_group, world, all_reduce):
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        for p in parameters:
            if p.grad is not None:
                all_reduce(p.grad, group)
                p.grad /= dist.get_world_size(world)


def unused_not_expected(model, expert_dp_group, world, all_reduce):
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        line = torch.cat([p.grad.flatten() for p in parameters])
        all_reduce(line, group)


def unused_stays_none(model, expert_dp_group, world, all_reduce):
    unused = [p for p in model.parameters() if p.grad is None]
    reduce_with(model, expert_dp_group, world, all_reduce)
    for p in unused:
        p.grad = None


def frozen_too(model, expert_dp_group, world, all_reduce):
    W, experts = dist.get_world_size(world), moe.expert_parameters(model)
    ids = {id(p) for p in experts}
    reduced([p for p in model.parameters() if id(p) not in ids], world, all_reduce, W)
    reduced(experts, expert_dp_group, all_reduce, W)


def always_two_lines(model, expert_dp_group, world, all_reduce):
    W = dist.get_world_size(world)
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        line = torch.cat([p.grad.flatten() for p in parameters])
        all_reduce(line, group)
        for p, piece in zip(parameters, (line / W).split([p.numel() for p in parameters]), strict=True):
            p.grad.copy_(piece.view_as(p))


def written_back_reversed(model, expert_dp_group, world, all_reduce):
    W = dist.get_world_size(world)
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        if parameters:
            for p in parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            line = torch.cat([p.grad.flatten() for p in parameters])
            all_reduce(line, group)
            for p, piece in zip(parameters[::-1], (line / W).split([p.numel() for p in parameters[::-1]]), strict=True):
                p.grad.copy_(piece.view_as(p))


def one_by_one(model, expert_dp_group, world, all_reduce):
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        for p in parameters:
            reduced([p], group, all_reduce, dist.get_world_size(world))


def lib_s_all_reduce(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, collectives.all_reduce)


def twice_over(model, expert_dp_group, world, all_reduce):
    """The dense ones travel once more, in vain."""
    dense, _ = split(model)
    all_reduce(torch.zeros(sum(p.numel() for p in dense)), world)
    reduce_with(model, expert_dp_group, world, all_reduce)


def parameters_nudged(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce)
    for p in model.parameters():
        p.data.add_(1)


def calls_libs(model, expert_dp_group, world, all_reduce):
    moe.reduce_gradients(model, expert_dp_group, world, all_reduce)


def not_yet(model, expert_dp_group, world=None, all_reduce=collectives.all_reduce):
    raise NotImplementedError


WRONG = {
    calls_libs: "called lib's",
    without_world: "the group is not passed on",
    parameters_averaged: "the parameter, not its gradient",
    always_two_lines: "no experts here",
    unused_not_expected: "a parameter without gradient",
    frozen_too: "frozen ones too",
    experts_over_the_world: "experts mixed",
    experts_divided_by_dp: "experts divided by dp",
    dense_over_the_experts_group: "the rest over the experts' group",
    by_the_world_s_size: "another group's size",
    not_divided: "not divided",
    divided_twice: "divided twice",
    not_written_back: "nothing written back",
    unused_skipped: "sizes that differ between ranks",
    written_back_reversed: "pieces in the wrong places",
    lib_s_all_reduce: "not what it was given",
    one_by_one: "one message per parameter",
    twice_over: "other elements",
    groups_exchanged: "the rest over the experts' group",
    dense_mean_over_the_experts_group: "the rest over the experts' group",
    all_over_the_world: "experts mixed",
    experts_divided_by_ep: "experts divided by dp",
    dense_divided_by_dp: "another group's size",
    dense_not_divided: "not divided",
    unused_one_by_one: "sizes that differ between ranks",
    unused_stays_none: "a parameter without gradient",
    parameters_nudged: "the parameter, not its gradient",
    not_yet: "not written",
}
RIGHT = [
    as_in_the_notebook,
    experts_first_divided_before,
    alone_it_sends_nothing,
    as_an_answer(moe.reduce_gradients),
]
