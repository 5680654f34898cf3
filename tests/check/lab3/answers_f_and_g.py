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


def itself(x, group, all_reduce):
    return x


def summed(x, group, all_reduce):
    total = x.clone()
    all_reduce(total, group)
    return total


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


def on_a_flat_copy(x, group, all_reduce):
    total = x.clone()
    all_reduce(total.reshape(-1), group)
    return total


def on_a_view(x, group, all_reduce):
    total = x.clone()
    all_reduce(total.view(-1), group)
    return total


def not_where_group_is_none(x, group, all_reduce):
    return x.clone() if group is None else summed(x, group, all_reduce)


def in_float32(x, group, all_reduce):
    return summed(x.float(), group, all_reduce).to(x.dtype)


def with_libs(x, group, all_reduce):
    return summed(x, group, collectives.all_reduce)


def with_torchs(x, group, all_reduce):
    return summed(x, group, lambda tensor, group: dist.all_reduce(tensor, group=group))


def gathered(x, group, all_reduce):
    parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def gathered_and_added(x, group, all_reduce):
    return sum(gathered(x, group, all_reduce))


def row_by_row(x, group, all_reduce):
    return (
        torch.stack([summed(row, group, all_reduce) for row in x])
        if len(x)
        else summed(x, group, all_reduce)
    )


WAYS = {  # to sum: in f's backward, and in g's forward
    with_the_right_neighbour: "right on two ranks only",
    in_the_world: "the group is not passed on",
    by_rank_0: "not on every rank",
    where_there_is_something: "not on every rank",
    not_where_group_is_none: "group None",
    what_it_returns: "what the collective returns",
    on_a_flat_copy: "a copy of what is not contiguous",
    on_a_view: "a copy of what is not contiguous",
    in_float32: "rounded on the way",
    with_libs: "not what it was given",
    with_torchs: "not what it was given",
    gathered_and_added: "not what it was given",
    row_by_row: "other calls",
}


def in_place(x, group, all_reduce):
    all_reduce(x, group)
    return x.view_as(x)


def overwrites_x(x, group, all_reduce):
    y = x.clone()
    x.zero_()
    return y


def itself_where_alone(x, group, all_reduce):
    return x.view_as(x) if dist.get_world_size(group) == 1 else summed(x, group, all_reduce)


BUFFERS, NOW = {}, {}


def one_buffer_for_each_shape(x, group, all_reduce):
    total = BUFFERS.setdefault(x.shape, torch.empty_like(x)).copy_(x)
    all_reduce(total, group)
    return total.view_as(total)


def libs_copy(x, group=None, all_reduce=collectives.all_reduce):
    return tp.copy_to_group(x, group, all_reduce)


def libs_reduce(x, group=None, all_reduce=collectives.all_reduce):
    return tp.reduce_from_group(x, group, all_reduce)


def detached(x, group=None, all_reduce=collectives.all_reduce):
    return x.detach().clone()


class _OnlyToLearn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *how):
        return summed(x, *how) if ctx.needs_input_grad[0] else x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy, None, None


def not_in_evaluation(x, group=None, all_reduce=collectives.all_reduce):
    return _OnlyToLearn.apply(x, group, all_reduce)


def no_function(x, group=None, all_reduce=collectives.all_reduce):
    return summed(x.detach(), group, all_reduce)


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
        return summed(dy.contiguous(), ctx.group, ctx.all_reduce), None, None


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
    "copy_to_group": {mapping(f"copy_{way.__name__}", same, way): hint for way,
    hint in WAYS.items()}
    | {
        mapping("copy_gives_none", same, lambda dy, group,
            all_reduce: all_reduce(dy.clone(), group)):
            "backward returns nothing",
        mapping("copy_in_place", same, in_place): "the gradient overwritten",
        mapping("copy_overwrites_x", overwrites_x, summed): "arguments changed",
        detached: "no gradient",
        libs_copy: "called what it builds",
        not_written: "not written",
    },
    "reduce_from_group": {mapping(f"reduce_{way.__name__}", way, itself): hint for way,
    hint in WAYS.items()}
    | {
        mapping("reduce_gives_none", summed, lambda *_: None): "backward returns nothing",
        mapping("reduce_is_f", same, summed): "nothing summed",
        mapping("reduce_joins", lambda *a: torch.cat(gathered(*a), -1), itself): "gathered",
        mapping("reduce_joins_rows", lambda *a: torch.cat(gathered(*a)), itself): "gathered",
        mapping("reduce_stacks", lambda *a: torch.stack(gathered(*a)), itself): "gathered",
        mapping("reduce_in_place", in_place, itself): "arguments changed",
        mapping("reduce_itself_where_alone", itself_where_alone, itself): "not a copy",
        mapping("reduce_one_buffer", one_buffer_for_each_shape, itself):
            "used again by a later call",
        not_in_evaluation: "in evaluation",
        no_function: "no gradient",
        libs_reduce: "called what it builds",
        not_written: "not written",
    },
}  # fmt: skip
RIGHT = {
    "copy_to_group": [mapping("copy", same, summed), by_a_hook, with_ctx,
                      as_an_answer(mappings.copy_to_group)],
    "reduce_from_group": [
        mapping("reduce", summed, itself), past_autograd, as_a_constant,
        as_an_answer(mappings.reduce_from_group),
    ],
}  # fmt: skip
