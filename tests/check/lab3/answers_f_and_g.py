"""Answers to Lab 3's f_and_g, function by function: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives
from lib import tensor_parallel as tp
from lib.collectives import p2p
from lib.tensor_parallel import mappings


def summed(x, group, all_reduce):
    total = x.clone()
    all_reduce(total, group)
    return total


def mapping(name, forward, backward):
    """y = forward(x, group, all_reduce), dx = backward(dy, group, all_reduce)."""

    def answer(x, group=None, all_reduce=collectives.all_reduce):
        class Mapping(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return forward(x, group, all_reduce)

            @staticmethod
            def backward(ctx, dy):
                return backward(dy, group, all_reduce)

        return Mapping.apply(x)

    answer.__name__ = name
    return answer


def same(x, group, all_reduce):
    return x.view_as(x)


def dy_itself(dy, group, all_reduce):
    return dy


def averaged(x, group, all_reduce):
    return summed(x, group, all_reduce) / dist.get_world_size(group)


def summed_twice(x, group, all_reduce):
    return summed(summed(x, group, all_reduce), group, all_reduce)


def with_the_right_neighbour(x, group, all_reduce):
    rank, N = dist.get_rank(group), dist.get_world_size(group)
    if N == 1:
        return x.clone()
    return x + p2p.send_recv(x.contiguous(), (rank + 1) % N, (rank - 1) % N, group)


def in_the_world(x, group, all_reduce):
    return summed(x, None, all_reduce)


def by_rank_0(x, group, all_reduce):
    return summed(x, group, all_reduce) if dist.get_rank(group) == 0 else x.clone()


def what_it_returns(x, group, all_reduce):
    return all_reduce(x.clone(), group).clone()


def with_libs_all_reduce(x, group, all_reduce):
    return summed(x, group, collectives.all_reduce)


def with_torchs_all_reduce(x, group, all_reduce):
    return summed(x, group, lambda tensor, group: dist.all_reduce(tensor, group=group))


def row_by_row(x, group, all_reduce):
    return torch.stack([summed(row, group, all_reduce) for row in x])


def on_a_flat_copy(x, group, all_reduce):
    total = x.clone()
    all_reduce(total.reshape(-1), group)
    return total


def on_a_view(x, group, all_reduce):
    total = x.clone()
    all_reduce(total.view(-1), group)
    return total


def in_place(x, group, all_reduce):
    all_reduce(x, group)
    return x.view_as(x)


def into_a_copy(x, group, all_reduce):
    all_reduce(x.clone(), group)
    return x.view_as(x)


def gathered(x, group, all_reduce):
    parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def joined(x, group, all_reduce):
    return torch.cat(gathered(x, group, all_reduce), -1)


def gathered_and_added(x, group, all_reduce):
    return sum(gathered(x, group, all_reduce))


def no_all_reduce_at_all(x, group=None, all_reduce=collectives.all_reduce):
    return x


def libs_copy(x, group=None, all_reduce=collectives.all_reduce):
    return tp.copy_to_group(x, group, all_reduce)


def detached(x, group=None, all_reduce=collectives.all_reduce):
    return x.detach().clone()


def overwrites_x(x, group, all_reduce):
    y = x.clone()
    x.zero_()
    return y


def libs_reduce(x, group=None, all_reduce=collectives.all_reduce):
    return tp.reduce_from_group(x, group, all_reduce)


def no_function(x, group=None, all_reduce=collectives.all_reduce):
    total = x.detach().clone()
    all_reduce(total, group)
    return total


def not_written(x, group=None, all_reduce=collectives.all_reduce):
    raise NotImplementedError


# right


def by_a_hook(x, group=None, all_reduce=collectives.all_reduce):
    y = x.view_as(x)
    y.register_hook(lambda dy: summed(dy, group, all_reduce))
    return y


class _Copy(torch.autograd.Function):
    """Everything in ctx, as lib does it; alone, nothing is called."""

    @staticmethod
    def forward(ctx, x, group, all_reduce):
        ctx.group, ctx.all_reduce = group, all_reduce
        return x

    @staticmethod
    def backward(ctx, dy):
        if dist.get_world_size(ctx.group) == 1:
            return dy, None, None
        total = dy.contiguous().clone()
        ctx.all_reduce(total, ctx.group)
        return total, None, None


def with_ctx(x, group=None, all_reduce=collectives.all_reduce):
    return _Copy.apply(x, group, all_reduce)


def past_autograd(x, group=None, all_reduce=collectives.all_reduce):
    """clone's gradient is dy; what is added to its numbers, autograd does not see."""
    total = x.clone()
    all_reduce(total.detach(), group)
    return total


def as_a_constant(x, group=None, all_reduce=collectives.all_reduce):
    """x + (what the others add)."""
    return x + (summed(x.detach(), group, all_reduce) - x.detach())


WRONG = {
    "copy_to_group": {
        no_all_reduce_at_all: "not summed backward",
        mapping("copy_into_a_copy", same, into_a_copy): "not summed backward",
        mapping("copy_summed_both_ways", summed, summed): "summed forward",
        mapping("copy_is_g", summed, dy_itself): "summed forward",
        mapping("copy_averages", same, averaged): "averaged",
        mapping("copy_sums_twice", same, summed_twice): "summed twice",
        mapping("copy_in_place", same, in_place): "the gradient overwritten",
        mapping("copy_with_a_neighbour", same, with_the_right_neighbour): "right on 2 ranks only",
        mapping("copy_in_the_world", same, in_the_world): "the group is not passed on",
        mapping("copy_by_rank_0", same, by_rank_0): "not on every rank",
        mapping("copy_what_it_returns", same, what_it_returns): "what all_reduce returns",
        mapping("copy_a_flat_copy", same, on_a_flat_copy): "a copy of what is not contiguous",
        mapping("copy_a_view", same, on_a_view): "a copy of what is not contiguous",
        mapping("copy_with_libs", same, with_libs_all_reduce): "not the one it was given",
        mapping("copy_with_torchs", same, with_torchs_all_reduce): "not the one it was given",
        mapping("copy_gathers", same, lambda *a: gathered_and_added(*a)): "not the one it was given",
        mapping("copy_row_by_row", same, row_by_row): "sent more than once",
        mapping("copy_overwrites_x", overwrites_x, summed): "x overwritten",
        mapping("copy_times_minus_1", same, lambda *a: -summed(*a)): "another result",
        detached: "no gradient",
        libs_copy: "called lib's",
        not_written: "not written",
    },
    "reduce_from_group": {
        mapping("reduce_both_ways", summed, summed): "all-reduced backward too",
        mapping("reduce_is_f", same, summed): "nothing summed",
        mapping("reduce_into_a_copy", into_a_copy, dy_itself): "nothing summed",
        mapping("reduce_averages", averaged, dy_itself): "averaged",
        mapping("reduce_joins", joined, dy_itself): "gathered",
        mapping("reduce_stacks", lambda *a: torch.stack(gathered(*a)), dy_itself): "gathered",
        mapping("reduce_divides_backward", summed, lambda dy, group, _: dy / dist.get_world_size(group)):
            "divided backward",
        mapping("reduce_with_a_neighbour", with_the_right_neighbour, dy_itself): "right on 2 ranks only",
        mapping("reduce_in_the_world", in_the_world, dy_itself): "the group is not passed on",
        mapping("reduce_by_rank_0", by_rank_0, dy_itself): "not on every rank",
        mapping("reduce_what_it_returns", what_it_returns, dy_itself): "what all_reduce returns",
        mapping("reduce_a_flat_copy", on_a_flat_copy, dy_itself): "a copy of what is not contiguous",
        mapping("reduce_with_libs", with_libs_all_reduce, dy_itself): "not the one it was given",
        mapping("reduce_gathers_and_adds", gathered_and_added, dy_itself): "not the one it was given",
        mapping("reduce_row_by_row", row_by_row, dy_itself): "sent more than once",
        mapping("reduce_in_place", in_place, dy_itself): "x overwritten",
        mapping("reduce_minus", lambda *a: -summed(*a), dy_itself): "another result",
        no_function: "no gradient",
        libs_reduce: "called lib's",
        not_written: "not written",
    },
}  # fmt: skip

RIGHT = {
    "copy_to_group": [
        mapping("copy", same, summed), by_a_hook, with_ctx, as_an_answer(mappings.copy_to_group),
    ],
    "reduce_from_group": [
        mapping("reduce", summed, dy_itself), past_autograd, as_a_constant, as_an_answer(mappings.reduce_from_group),
    ],
}  # fmt: skip
