"""Answers to Lab 3's sequence, function by function: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist

from lib import collectives
from lib import tensor_parallel as tp
from lib.buckets import flatten, unflatten


def turn(x):
    """(B, T, D) <-> (T, B, D)"""
    return x.transpose(0, 1).contiguous()


class Pair(torch.autograd.Function):
    """Any forward, and any backward."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, dy):
        return ctx.back(dy), None, None


def ranks(group):
    return dist.get_rank(group), dist.get_world_size(group)


def mine(x, group):
    rank, N = ranks(group)
    return x.chunk(N, 1)[rank].contiguous()


def alone(x, group):
    """(B, T/N, D) -> (B, T, D), zeros but for this rank's tokens."""
    rank, N = ranks(group)
    return torch.cat([x if r == rank else torch.zeros_like(x) for r in range(N)], 1)


# gather_sequence: right


def turned(x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter):
    return Pair.apply(x, lambda x: turn(all_gather(turn(x), group)), lambda dy: turn(reduce_scatter(turn(dy), group)))


def chunks_on_the_batch(x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter):
    N = dist.get_world_size(group)
    return Pair.apply(
        x,
        lambda x: torch.cat(all_gather(x, group).chunk(N), 1),
        lambda dy: reduce_scatter(torch.cat(dy.chunk(N, 1)), group),
    )


# gather_sequence: wrong


def gathers_sequences(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: all_gather(x, group), lambda dy: reduce_scatter(dy, group))


def gathers_and_views(x, group, all_gather, reduce_scatter):
    B, _, D = x.shape
    whole = lambda x: all_gather(x, group).view(B, -1, D)
    return Pair.apply(x, whole, lambda dy: turn(reduce_scatter(turn(dy), group)))


def views_in_backward(x, group, all_gather, reduce_scatter):
    B, _, D = x.shape
    back = lambda dy: reduce_scatter(dy.reshape(-1, B, D), group).view(B, -1, D)
    return Pair.apply(x, lambda x: turn(all_gather(turn(x), group)), back)


def the_last_rank_first(x, group, all_gather, reduce_scatter):
    there = lambda x: torch.cat(turn(all_gather(turn(x), group)).chunk(ranks(group)[1], 1)[::-1], 1)
    return Pair.apply(x, there, lambda dy: mine(dy, group))


def its_own_first(x, group, all_gather, reduce_scatter):
    rank, _ = ranks(group)
    there = lambda x: turn(all_gather(turn(x), group)).roll(-rank * x.shape[1], 1)
    return Pair.apply(x, there, lambda dy: mine(dy, group))


def only_its_own(x, group, all_gather, reduce_scatter):
    def there(x):
        all_gather(turn(x), group)
        return alone(x, group)

    return Pair.apply(x, there, lambda dy: turn(reduce_scatter(turn(dy), group)))


def cuts_in_backward(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: turn(all_gather(turn(x), group)), lambda dy: mine(dy, group))


def means_in_backward(x, group, all_gather, reduce_scatter):
    back = lambda dy: turn(reduce_scatter(turn(dy), group)) / dist.get_world_size(group)
    return Pair.apply(x, lambda x: turn(all_gather(turn(x), group)), back)


def not_an_autograd_function(x, group, all_gather, reduce_scatter):
    return turn(all_gather(turn(x.detach()), group))


def all_reduces_in_backward(x, group, all_gather, reduce_scatter):
    back = lambda dy: mine(collectives.all_reduce(dy.clone(), group), group)
    return Pair.apply(x, lambda x: turn(all_gather(turn(x), group)), back)


def gathers_twice(x, group, all_gather, reduce_scatter):
    def there(x):
        all_gather(turn(x), group)
        return turn(all_gather(turn(x), group))

    return Pair.apply(x, there, lambda dy: turn(reduce_scatter(turn(dy), group)))


def sequences_in_backward(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: turn(all_gather(turn(x), group)), lambda dy: reduce_scatter(dy, group))


def forgets_to_turn_back(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: all_gather(turn(x), group), lambda dy: turn(reduce_scatter(dy, group)))


def gather_in_place(x, group, all_gather, reduce_scatter):
    y = turned(x, group, all_gather, reduce_scatter)
    x.data.zero_()
    return y


def gather_of_the_world(x, group, all_gather, reduce_scatter):
    shift = (dist.get_rank() - dist.get_rank(group)) * x.shape[1]
    there = lambda x: turn(all_gather(turn(x), group)).roll(shift, 1)
    return Pair.apply(x, there, lambda dy: turn(reduce_scatter(turn(dy), group)))


def gather_without_group(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: turn(all_gather(turn(x))), lambda dy: turn(reduce_scatter(turn(dy))))


def gather_for_two(x, group, all_gather, reduce_scatter):
    def there(x):
        whole = turn(all_gather(turn(x), group))
        if dist.get_world_size(group) == 1:
            return whole
        return torch.cat([whole[:, : x.shape[1]], whole[:, -x.shape[1] :]], 1)

    return Pair.apply(x, there, lambda dy: turn(reduce_scatter(turn(dy), group)))


def calls_libs_gather(x, group, all_gather, reduce_scatter):
    return tp.gather_sequence(x, group, all_gather, reduce_scatter)


def no_gather_yet(x, group, all_gather, reduce_scatter):
    raise NotImplementedError


# scatter_sequence: right


def turned_back(x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter):
    return Pair.apply(x, lambda x: turn(reduce_scatter(turn(x), group)), lambda dy: turn(all_gather(turn(dy), group)))


def chunks_one_after_another(
    x, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter
):
    N = dist.get_world_size(group)
    return Pair.apply(
        x,
        lambda x: reduce_scatter(torch.stack(x.chunk(N, 1)), group)[0],
        lambda dy: torch.cat(all_gather(dy[None], group).unbind(), 1),
    )


# scatter_sequence: wrong


def scatters_sequences(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: reduce_scatter(x, group), lambda dy: all_gather(dy, group))


def views_and_scatters(x, group, all_gather, reduce_scatter):
    B, T, D = x.shape
    there = lambda x: reduce_scatter(x.reshape(T, B, D), group).transpose(0, 1).contiguous()
    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def scatters_and_views(x, group, all_gather, reduce_scatter):
    B, _, D = x.shape
    there = lambda x: reduce_scatter(turn(x), group).view(B, -1, D)
    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def every_nth(x, group, all_gather, reduce_scatter):
    N = dist.get_world_size(group)
    there = lambda x: turn(reduce_scatter(turn(torch.cat([x[:, r::N] for r in range(N)], 1)), group))
    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def cuts_only(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: mine(x, group), lambda dy: turn(all_gather(turn(dy), group)))


def takes_the_mean(x, group, all_gather, reduce_scatter):
    N = dist.get_world_size(group)
    there = lambda x: turn(reduce_scatter(turn(x), group)) / N
    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def zeros_in_backward(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: turn(reduce_scatter(turn(x), group)), lambda dy: alone(dy, group))


def backward_times_n(x, group, all_gather, reduce_scatter):
    N = dist.get_world_size(group)
    return Pair.apply(
        x, lambda x: turn(reduce_scatter(turn(x), group)), lambda dy: N * turn(all_gather(turn(dy), group))
    )


def without_a_function(x, group, all_gather, reduce_scatter):
    return turn(reduce_scatter(turn(x.detach()), group))


def g_and_cut(x, group, all_gather, reduce_scatter):
    return tp.reduce_from_group(x, group).chunk(dist.get_world_size(group), 1)[dist.get_rank(group)]


def reduces_and_cuts(x, group, all_gather, reduce_scatter):
    there = lambda x: mine(collectives.all_reduce(x.clone(), group), group)
    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def scatters_in_pieces(x, group, all_gather, reduce_scatter):
    there = lambda x: torch.cat([turn(reduce_scatter(turn(one), group)) for one in x.split(1)])
    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def stays_turned(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: reduce_scatter(turn(x), group), lambda dy: turn(all_gather(dy, group)))


def scatter_in_place(x, group, all_gather, reduce_scatter):
    y = turned_back(x, group, all_gather, reduce_scatter)
    x.data.zero_()
    return y


def scatter_of_the_world(x, group, all_gather, reduce_scatter):
    def there(x):
        part = turn(reduce_scatter(turn(x), group))
        whole = turn(all_gather(turn(part), group))
        return whole.chunk(dist.get_world_size(group), 1)[dist.get_rank() % dist.get_world_size(group)].contiguous()

    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def scatter_without_group(x, group, all_gather, reduce_scatter):
    return Pair.apply(x, lambda x: turn(reduce_scatter(turn(x))), lambda dy: turn(all_gather(turn(dy))))


def scatter_for_two(x, group, all_gather, reduce_scatter):
    def there(x):
        part = turn(reduce_scatter(turn(x), group))
        return part if dist.get_world_size(group) <= 2 else part + 1

    return Pair.apply(x, there, lambda dy: turn(all_gather(turn(dy), group)))


def calls_libs_scatter(x, group, all_gather, reduce_scatter):
    return tp.scatter_sequence(x, group, all_gather, reduce_scatter)


def no_scatter_yet(x, group, all_gather, reduce_scatter):
    raise NotImplementedError


# sum_gradients: right


def trained(parameters):
    parameters = [p for p in parameters if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return parameters


def one_bucket(parameters, group=None, all_reduce=collectives.all_reduce):
    gradients = [p.grad for p in trained(parameters)]
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat, gradients)


@torch.no_grad()
def new_gradients(parameters, group=None, all_reduce=collectives.all_reduce):
    wanted = [p for p in parameters if p.requires_grad]
    flat = torch.cat([(p * 0 if p.grad is None else p.grad).reshape(-1) for p in wanted])
    all_reduce(tensor=flat, group=group)
    start = 0
    for p in wanted:
        p.grad = flat[start : start + p.numel()].reshape(p.shape)
        start += p.numel()


# sum_gradients: wrong


def averages(parameters, group, all_reduce):
    one_bucket(parameters, group, all_reduce)
    for p in trained(parameters):
        p.grad /= dist.get_world_size(group)


def sums_twice(parameters, group, all_reduce):
    one_bucket(parameters, group, all_reduce)
    one_bucket(parameters, group, all_reduce)


def never_writes_back(parameters, group, all_reduce):
    all_reduce(torch.cat([p.grad.flatten() for p in trained(parameters)]), group)


def does_not_expect_none(parameters, group, all_reduce):
    flat = torch.cat([p.grad.flatten() for p in parameters if p.requires_grad])
    all_reduce(flat, group)


def skips_what_has_none(parameters, group, all_reduce):
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat, gradients)


def leaves_none(parameters, group, all_reduce):
    wanted = [p for p in parameters if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat, gradients)


def frozen_ones_too(parameters, group, all_reduce):
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    gradients = [p.grad for p in parameters]
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat, gradients)


def sends_frozen_ones(parameters, group, all_reduce):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat, gradients)
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient if p.requires_grad else None


def one_by_one(parameters, group, all_reduce):
    for p in trained(parameters):
        all_reduce(p.grad, group)


def the_other_way_round(parameters, group, all_reduce):
    gradients = [p.grad for p in trained(parameters)]
    flat = flatten(gradients[::-1])
    all_reduce(flat, group)
    unflatten(flat, gradients)


@torch.no_grad()
def the_parameters_too(parameters, group, all_reduce):
    one_bucket(parameters, group, all_reduce)
    for p in trained(parameters):
        p -= p.grad


def an_imported_all_reduce(parameters, group, all_reduce):
    one_bucket(parameters, group)


def forgets_the_group(parameters, group, all_reduce):
    one_bucket(parameters, None, all_reduce)


def calls_libs_sum(parameters, group, all_reduce):
    tp.sum_gradients(parameters, group, all_reduce)


def no_sum_yet(parameters, group, all_reduce):
    raise NotImplementedError


WRONG = {
    "gather_sequence": {
        gathers_sequences: "sequences for tokens",
        gathers_and_views: "a view for a transpose",
        the_last_rank_first: "the order of the tokens",
        only_its_own: "not gathered",
        cuts_in_backward: "backward without the sum",
        means_in_backward: "a mean or a multiple",
        not_an_autograd_function: "no gradient",
        all_reduces_in_backward: "not what it was given",
        gathers_twice: "more than is needed",
        forgets_to_turn_back: "another shape",
        gather_in_place: "changed what it was given",
        gather_of_the_world: "ranks of the world, not of the group",
        gather_without_group: "the group is not passed on",
        gather_for_two: "right on two ranks only",
        calls_libs_gather: "called lib's",
        no_gather_yet: "not written",
        its_own_first: "the order of the tokens",
        views_in_backward: "a view for a transpose",
        sequences_in_backward: "another shape",
    },
    "scatter_sequence": {
        scatters_sequences: "sequences for tokens",
        views_and_scatters: "a view for a transpose",
        every_nth: "the order of the tokens",
        cuts_only: "not summed",
        takes_the_mean: "a mean or a multiple",
        zeros_in_backward: "backward without the gather",
        without_a_function: "no gradient",
        reduces_and_cuts: "not what it was given",
        scatters_in_pieces: "more than is needed",
        stays_turned: "another shape",
        scatter_in_place: "changed what it was given",
        scatter_of_the_world: "ranks of the world, not of the group",
        scatter_without_group: "the group is not passed on",
        scatter_for_two: "right on two ranks only",
        calls_libs_scatter: "called lib's",
        no_scatter_yet: "not written",
        scatters_and_views: "a view for a transpose",
        backward_times_n: "a mean or a multiple",
        g_and_cut: "backward without the gather",
    },
    "sum_gradients": {
        averages: "averaged",
        sums_twice: "summed twice",
        never_writes_back: "nothing written back",
        does_not_expect_none: "a parameter without gradient",
        skips_what_has_none: "sizes that differ between ranks",
        frozen_ones_too: "frozen ones too",
        the_other_way_round: "pieces in the wrong places",
        one_by_one: "one message per parameter",
        the_parameters_too: "the parameter, not its gradient",
        an_imported_all_reduce: "not what it was given",
        forgets_the_group: "the group is not passed on",
        calls_libs_sum: "called lib's",
        no_sum_yet: "not written",
        leaves_none: "a parameter without gradient",
        sends_frozen_ones: "frozen ones too",
    },
}
RIGHT = {
    "gather_sequence": [turned, chunks_on_the_batch],
    "scatter_sequence": [turned_back, chunks_one_after_another],
    "sum_gradients": [one_bucket, new_gradients],
}
