"""Answers to Lab 3's sequence written otherwise than lib's: wrong ones, each with its hint,
and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer
from forth_and_back import Pair

from lib import collectives
from lib import tensor_parallel as tp
from lib.training.buckets import flatten, unflatten


def turn(x):
    """(B, T, D) <-> (T, B, D)"""
    return x.transpose(0, 1).contiguous()


class Last(torch.autograd.Function):
    """Goes back as the last call that was begun."""

    @staticmethod
    def forward(ctx, x, there, back):
        Last.how = back
        return there(x)

    @staticmethod
    def backward(ctx, dy):
        return Last.how(dy), None, None


def ways(group, all_gather, reduce_scatter, of=turn):
    """G's forward and S's forward."""
    return lambda x: of(all_gather(of(x), group)), lambda x: of(reduce_scatter(of(x), group))


def mine(x, group):
    return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def both(change):
    """[a wrong gather_sequence, a wrong scatter_sequence]: change(x, join, cut, group), forward,
    backward as it is."""

    def gather(x, group, all_gather, reduce_scatter):
        join, cut = ways(group, all_gather, reduce_scatter)
        return change(x, join, cut, group)

    def scatter(x, group, all_gather, reduce_scatter):
        join, cut = ways(group, all_gather, reduce_scatter)
        return change(x, cut, join, group)

    gather.__name__, scatter.__name__ = f"{change.__name__}_G", f"{change.__name__}_S"
    return gather, scatter


def keeps_it_on_the_class(x, there, back, group):
    return Last.apply(x, there, back)


BUFFERS = {}


def into_the_same_buffers(x, there, back, group):
    def kept(x):
        y = there(x)
        return BUFFERS.setdefault(y.shape, torch.empty_like(y)).copy_(y).detach()

    return Pair.apply(x, kept, back)


def in_float32(x, there, back, group):
    return Pair.apply(x, lambda x: there(x.float()).double(), back)


def gradients_in_float32(x, there, back, group):
    return Pair.apply(x, there, lambda dy: back(dy.float()).double())


def without_a_function(x, there, back, group):
    return there(x.detach())


def overwrites_x(x, there, back, group):
    y = Pair.apply(x, there, back)
    x.data.zero_()
    return y


def for_two_ranks(x, there, back, group):
    return Pair.apply(x, lambda x: there(x) + (dist.get_world_size(group) > 2), back)


def ranks_of_the_world(x, there, back, group):
    shift = dist.get_rank() - dist.get_rank(group)
    return Pair.apply(x, lambda x: there(x).roll(shift, 1), back)


def alone_one_sequence(x, there, back, group):
    return Pair.apply(x, there, back) if dist.get_world_size(group) > 1 else x[:1]


def tokens_reversed(x, there, back, group):
    return Pair.apply(x, lambda x: there(x).flip(1), lambda dy: back(dy.flip(1)))


def stays_turned(x, there, back, group):
    return Pair.apply(x, lambda x: turn(there(x)), lambda dy: back(turn(dy)))


def one_sequence_at_a_time(x, there, back, group):
    return Pair.apply(x, lambda x: torch.cat([there(one) for one in x.split(1)]), back)


def not_yet(x, there, back, group):
    raise NotImplementedError


BOTH = {
    both(change): hint
    for change, hint in {
        keeps_it_on_the_class: "shared by two calls",
        into_the_same_buffers: "used again by a later call",
        in_float32: "rounded on the way",
        gradients_in_float32: "rounded on the way",
        without_a_function: "without a backward",
        overwrites_x: "changed what it was given",
        for_two_ranks: "right on two ranks only",
        ranks_of_the_world: "ranks of the world, not of the group",
        alone_one_sequence: "one rank alone",
        tokens_reversed: "tokens in other places",
        stays_turned: "another shape",
        one_sequence_at_a_time: "other calls",
        not_yet: "not written",
    }.items()
}


# gather_sequence


def turned(
    x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter
):
    return Pair.apply(x, *ways(group, all_gather, reduce_scatter))


def chunks_on_the_batch(
    x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter
):
    N = dist.get_world_size(group)
    return Pair.apply(
        x,
        lambda x: torch.cat(all_gather(x, group).chunk(N), 1),
        lambda dy: reduce_scatter(torch.cat(dy.chunk(N, 1)), group),
    )


def nothing_to_send_alone(
    x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter
):
    return x if dist.get_world_size(group) == 1 else turned(x, group, all_gather, reduce_scatter)


def all_reduces_in_backward(x, group, all_gather, reduce_scatter):
    join, _ = ways(group, all_gather, reduce_scatter)
    return Pair.apply(x, join, lambda dy: mine(collectives.all_reduce(dy.clone(), group), group))


def gather_without_group(x, group, all_gather, reduce_scatter):
    return turned(x, None, all_gather, reduce_scatter)


def calls_libs_gather(x, group, all_gather, reduce_scatter):
    return tp.gather_sequence(x, group, all_gather, reduce_scatter)


# scatter_sequence


def turned_back(
    x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter
):
    return Pair.apply(x, *ways(group, all_gather, reduce_scatter)[::-1])


def chunks_one_after_another(
    x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter
):
    N = dist.get_world_size(group)
    return Pair.apply(
        x,
        lambda x: reduce_scatter(torch.stack(x.chunk(N, 1)), group)[0],
        lambda dy: torch.cat(all_gather(dy[None], group).unbind(), 1),
    )


def reduces_and_cuts(x, group, all_gather, reduce_scatter):
    join, _ = ways(group, all_gather, reduce_scatter)
    return Pair.apply(x, lambda x: mine(collectives.all_reduce(x.clone(), group), group), join)


def scatter_without_group(x, group, all_gather, reduce_scatter):
    return turned_back(x, None, all_gather, reduce_scatter)


def calls_libs_scatter(x, group, all_gather, reduce_scatter):
    return tp.scatter_sequence(x, group, all_gather, reduce_scatter)


# sum_gradients


def trained(parameters):
    parameters = [p for p in parameters if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return parameters


def summed(gradients, group, all_reduce):
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat, gradients)


def one_bucket(parameters, group=None, all_reduce=collectives.all_reduce):
    summed([p.grad for p in trained(parameters)], group, all_reduce)


@torch.no_grad()
def new_gradients(parameters, group=None, all_reduce=collectives.all_reduce):
    wanted = [p for p in parameters if p.requires_grad]
    flat = torch.cat([(p * 0 if p.grad is None else p.grad).reshape(-1) for p in wanted])
    all_reduce(tensor=flat, group=group)
    for p, piece in zip(wanted, flat.split([p.numel() for p in wanted]), strict=True):
        p.grad = piece.reshape(p.shape)


def does_not_expect_none(parameters, group, all_reduce):
    all_reduce(torch.cat([p.grad.flatten() for p in parameters if p.requires_grad]), group)


def leaves_none(parameters, group, all_reduce):
    wanted = [p for p in parameters if p.requires_grad]
    summed([torch.zeros_like(p) if p.grad is None else p.grad for p in wanted], group, all_reduce)


def nothing_here_nothing_to_do(parameters, group, all_reduce):
    if any(p.grad is not None for p in parameters):
        one_bucket(parameters, group, all_reduce)


def frozen_ones_too(parameters, group, all_reduce):
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    summed([p.grad for p in parameters], group, all_reduce)


@torch.no_grad()
def the_parameters_too(parameters, group, all_reduce):
    one_bucket(parameters, group, all_reduce)
    for p in trained(parameters):
        p -= p.grad


@torch.no_grad()
def sums_in_float32(parameters, group, all_reduce):
    singles = [p.grad.float() for p in trained(parameters)]
    summed(singles, group, all_reduce)
    for p, single in zip(trained(parameters), singles, strict=True):
        p.grad.copy_(single)


def an_imported_all_reduce(parameters, group, all_reduce):
    one_bucket(parameters, group)


def forgets_the_group(parameters, group, all_reduce):
    one_bucket(parameters, None, all_reduce)


def calls_libs_sum(parameters, group, all_reduce):
    tp.sum_gradients(parameters, group, all_reduce)


def no_sum_yet(parameters, group, all_reduce):
    raise NotImplementedError


def goes_through_them_twice(parameters, group=None, all_reduce=collectives.all_reduce):
    for p in parameters:
        if p.requires_grad and p.grad is None:
            p.grad = torch.zeros_like(p)
    trained = [p for p in parameters if p.requires_grad]
    if trained:
        flat = torch.cat([p.grad.reshape(-1) for p in trained])
        all_reduce(flat, group)
        for p, piece in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            p.grad.copy_(piece.view_as(p))


def into_a_reshaped_copy(parameters, group=None, all_reduce=collectives.all_reduce):
    trained = [p for p in parameters if p.requires_grad]
    for p in trained:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    flat = torch.cat([p.grad.reshape(-1) for p in trained])
    all_reduce(flat, group)
    for p, piece in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad.reshape(-1).copy_(piece)


def sends_a_view(x, group=None, all_gather=collectives.all_gather,
                 reduce_scatter=collectives.reduce_scatter):  # fmt: skip
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return all_gather(x.transpose(0, 1), group).transpose(0, 1)

        @staticmethod
        def backward(ctx, dy):
            return reduce_scatter(dy.transpose(0, 1).contiguous(), group).transpose(0, 1)

    return Gather.apply(x)


WRONG = {
    "gather_sequence": {
        all_reduces_in_backward: "not what it was given",
        gather_without_group: "the group is not passed on",
        calls_libs_gather: "called what it builds",
        sends_a_view: "not contiguous",
        **{gather: hint for (gather, _), hint in BOTH.items()},
    },
    "scatter_sequence": {
        reduces_and_cuts: "not what it was given",
        scatter_without_group: "the group is not passed on",
        calls_libs_scatter: "called what it builds",
        **{scatter: hint for (_, scatter), hint in BOTH.items()},
    },
    "sum_gradients": {
        goes_through_them_twice: "gone through twice",
        into_a_reshaped_copy: "a gradient that is not contiguous",
        does_not_expect_none: "a parameter without gradient",
        leaves_none: "a parameter without gradient",
        nothing_here_nothing_to_do: "sizes that differ between ranks",
        frozen_ones_too: "frozen ones too",
        the_parameters_too: "the parameter for its gradient",
        sums_in_float32: "rounded on the way",
        an_imported_all_reduce: "not what it was given",
        forgets_the_group: "the group is not passed on",
        calls_libs_sum: "called what it builds",
        no_sum_yet: "not written",
    },
}
RIGHT = {
    "gather_sequence": [
        turned,
        chunks_on_the_batch,
        nothing_to_send_alone,
        as_an_answer(tp.gather_sequence),
    ],
    "scatter_sequence": [turned_back, chunks_one_after_another, as_an_answer(tp.scatter_sequence)],
    "sum_gradients": [one_bucket, new_gradients, as_an_answer(tp.sum_gradients)],
}
