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
    for p, piece in zip(
        parameters, (line / divisor).split([p.numel() for p in parameters]), strict=True
    ):
        p.grad.copy_(piece.view_as(p))


def reduce_with(
    model,
    expert_dp_group,
    world,
    all_reduce,
    dense_by=None,
    experts_by=None,
    dense_over=(),
    experts_over=(),
):
    """The right answer, but for what is given: () stands for the right group, None for the
    right divisor."""
    dense, experts = split(model)
    W = dist.get_world_size(world)
    reduced(dense, world if dense_over == () else dense_over, all_reduce, dense_by or W)
    reduced(
        experts,
        expert_dp_group if experts_over == () else experts_over,
        all_reduce,
        experts_by or W,
    )


# right


def as_in_the_notebook(model, expert_dp_group, world=None, all_reduce=collectives.all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce)


def experts_first_divided_before(
    model, expert_dp_group, world=None, all_reduce=collectives.all_reduce
):
    """Divides before it sums; new gradients in place of the old ones."""
    W = dist.get_world_size(world)
    for parameters, group in zip(split(model)[::-1], (expert_dp_group, world), strict=True):
        zeros = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        pieces = [
            (z if p.grad is None else p.grad).reshape(-1) / W
            for p, z in zip(parameters, zeros, strict=True)
        ]
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


def dense_mean_over_the_experts_group(model, expert_dp_group, world, all_reduce):
    dp = dist.get_world_size(expert_dp_group)
    reduce_with(model, expert_dp_group, world, all_reduce, dense_by=dp, dense_over=expert_dp_group)


def parameters_averaged(model, expert_dp_group, world, all_reduce):
    W = dist.get_world_size(world)
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        for p in parameters:
            all_reduce(p.data, group)
            p.data /= W


def not_written_back(model, expert_dp_group, world, all_reduce):
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        if parameters:
            for p in parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce(torch.cat([p.grad.flatten() for p in parameters]), group)


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


def lib_s_all_reduce(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, collectives.all_reduce)


def parameters_nudged(model, expert_dp_group, world, all_reduce):
    reduce_with(model, expert_dp_group, world, all_reduce)
    for p in model.parameters():
        p.data.add_(1)


def early_without_gradients(model, expert_dp_group, world, all_reduce):
    """A rank that has no gradient at all goes home."""
    if any(p.grad is not None for p in model.parameters() if p.requires_grad):
        reduce_with(model, expert_dp_group, world, all_reduce)


LINES = {}


def views_of_a_line_that_is_kept(model, expert_dp_group, world, all_reduce):
    for parameters, group in zip(split(model), (world, expert_dp_group), strict=True):
        if parameters:
            line = torch.cat(
                [
                    torch.zeros(p.numel()).double() if p.grad is None else p.grad.view(-1)
                    for p in parameters
                ]
            )
            line = LINES.setdefault(line.numel(), line).copy_(
                all_reduce(line, group) / dist.get_world_size(world)
            )
            for p, piece in zip(
                parameters, line.split([p.numel() for p in parameters]), strict=True
            ):
                p.grad = piece.view_as(p)


def calls_libs(model, expert_dp_group, world, all_reduce):
    moe.reduce_gradients(model, expert_dp_group, world, all_reduce)


def not_yet(model, expert_dp_group, world=None, all_reduce=collectives.all_reduce):
    raise NotImplementedError


WRONG = {
    calls_libs: "called what it builds",
    parameters_averaged: "the parameter, not its gradient",
    parameters_nudged: "the parameter, not its gradient",
    unused_not_expected: "a parameter without gradient",
    unused_stays_none: "a parameter without gradient",
    unused_one_by_one: "sizes that differ between ranks",
    dense_mean_over_the_experts_group: "the rest over the experts' group",
    not_written_back: "nothing written back",
    lib_s_all_reduce: "not what it was given",
    early_without_gradients: "a rank without gradients",
    views_of_a_line_that_is_kept: "shared by two calls",
    not_yet: "not written",
}
RIGHT = [
    as_in_the_notebook,
    experts_first_divided_before,
    alone_it_sends_nothing,
    as_an_answer(moe.reduce_gradients),
]
