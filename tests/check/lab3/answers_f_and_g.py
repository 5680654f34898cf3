"""Answers to Lab 3's f_and_g, function by function: wrong ones, each with its hint, and right ones.

What differs from lib's by an edit is among MISTAKES in lib/check/lab3/f_and_g.py.
"""

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


def with_the_right_neighbour(x, group, all_reduce):
    rank, N = dist.get_rank(group), dist.get_world_size(group)
    if N == 1:
        return x.clone()
    return x + p2p.send_recv(x.contiguous(), (rank + 1) % N, (rank - 1) % N, group)


def in_the_world(x, group, all_reduce):
    return summed(x, None, all_reduce)


def by_rank_0(x, group, all_reduce):
    return summed(x, group, all_reduce) if dist.get_rank(group) == 0 else x.clone()


def where_there_is_something(x, group, all_reduce):
    return summed(x, group, all_reduce) if x.any() else x.clone()


def what_it_returns(x, group, all_reduce):
    return all_reduce(x.clone(), group).clone()


def with_libs_all_reduce(x, group, all_reduce):
    return summed(x, group, collectives.all_reduce)


def with_torchs_all_reduce(x, group, all_reduce):
    return summed(x, group, lambda tensor, group: dist.all_reduce(tensor, group=group))


def row_by_row(x, group, all_reduce):
    return torch.stack([summed(row, group, all_reduce) for row in x]) if len(x) else summed(x, group, all_reduce)


def in_float32(x, group, all_reduce):
    return summed(x.float(), group, all_reduce).to(x.dtype)


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


def itself_where_alone(x, group, all_reduce):
    return x.view_as(x) if dist.get_world_size(group) == 1 else summed(x, group, all_reduce)


BUFFERS = {}


def one_buffer_for_each_shape(x, group, all_reduce):
    total = BUFFERS.setdefault(x.shape, torch.empty_like(x)).copy_(x)
    all_reduce(total, group)
    return total.view_as(total)


def gathered(x, group, all_reduce):
    parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


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


NOW = {}


class InAGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return summed(dy, *NOW["call"])


def group_in_a_global(x, group=None, all_reduce=collectives.all_reduce):
    NOW["call"] = group, all_reduce
    return InAGlobal.apply(x)


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
        mapping("copy_in_place", same, in_place): "the gradient overwritten",
        mapping("copy_with_a_neighbour", same, with_the_right_neighbour): "right on 2 ranks only",
        mapping("copy_in_the_world", same, in_the_world): "the group is not passed on",
        mapping("copy_by_rank_0", same, by_rank_0): "not on every rank",
        mapping("copy_where_there_is_something", same, where_there_is_something): "not on every rank",
        mapping("copy_what_it_returns", same, what_it_returns): "what all_reduce returns",
        mapping("copy_a_flat_copy", same, on_a_flat_copy): "a copy of what is not contiguous",
        mapping("copy_a_view", same, on_a_view): "a copy of what is not contiguous",
        mapping("copy_in_float32", same, in_float32): "rounded on the way",
        mapping("copy_with_libs", same, with_libs_all_reduce): "not what it was given",
        mapping("copy_with_torchs", same, with_torchs_all_reduce): "not what it was given",
        mapping("copy_gathers", same, lambda *a: gathered_and_added(*a)): "not what it was given",
        mapping("copy_row_by_row", same, row_by_row): "sent more than once",
        mapping("copy_overwrites_x", overwrites_x, summed): "x overwritten",
        group_in_a_global: "state shared by two calls",
        detached: "no gradient",
        libs_copy: "called lib's",
        not_written: "not written",
    },
    "reduce_from_group": {
        mapping("reduce_is_f", same, summed): "nothing summed",
        mapping("reduce_joins", lambda *a: torch.cat(gathered(*a), -1), dy_itself): "gathered",
        mapping("reduce_stacks", lambda *a: torch.stack(gathered(*a)), dy_itself): "gathered",
        mapping("reduce_with_a_neighbour", with_the_right_neighbour, dy_itself): "right on 2 ranks only",
        mapping("reduce_in_the_world", in_the_world, dy_itself): "the group is not passed on",
        mapping("reduce_by_rank_0", by_rank_0, dy_itself): "not on every rank",
        mapping("reduce_what_it_returns", what_it_returns, dy_itself): "what all_reduce returns",
        mapping("reduce_a_flat_copy", on_a_flat_copy, dy_itself): "a copy of what is not contiguous",
        mapping("reduce_in_float32", in_float32, dy_itself): "rounded on the way",
        mapping("reduce_with_libs", with_libs_all_reduce, dy_itself): "not what it was given",
        mapping("reduce_gathers_and_adds", gathered_and_added, dy_itself): "not what it was given",
        mapping("reduce_row_by_row", row_by_row, dy_itself): "sent more than once",
        mapping("reduce_in_place", in_place, dy_itself): "x overwritten",
        mapping("reduce_itself_where_alone", itself_where_alone, dy_itself): "not a copy",
        mapping("reduce_one_buffer", one_buffer_for_each_shape, dy_itself): "one buffer for all calls",
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
