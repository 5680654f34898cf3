"""Answers to Lab 3's linear_layers, function by function: wrong ones, each with its hint, and right ones.

What differs from lib's by an edit is among MISTAKES in lib/check/lab3/linear_layers.py.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from as_an_answer import as_an_answer

from lib import tensor_parallel as tp
from lib.tensor_parallel import linear as libs

enters, leaves = tp.copy_to_group, tp.reduce_from_group


# column_parallel: wrong


def forgets_what_f_returns(x, linears, group=None, enter=enters):
    enter(x, group)
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


def gathers_the_columns(x, linears, group=None, enter=enters):
    x = enter(x, group)
    return [tp.gather_from_group(F.linear(x, linear.weight, linear.bias), group) for linear in linears]


def adds_none(x, linears, group=None, enter=enters):
    x = enter(x, group)
    return [F.linear(x, linear.weight) + linear.bias for linear in linears]


def calls_the_layers(x, linears, group=None, enter=enters):
    x = enter(x, group)
    return [linear(x) for linear in linears]


def not_transposed(x, linears, group=None, enter=enters):
    x = enter(x, group)
    return [x @ linear.weight for linear in linears]


def cuts_them_again(x, linears, group=None, enter=enters):
    x, rank, N = enter(x, group), dist.get_rank(group), dist.get_world_size(group)
    return [F.linear(x, linear.weight.chunk(N, 1)[rank], linear.bias) for linear in linears]


def the_first_only(x, linears, group=None, enter=enters):
    return F.linear(enter(x, group), linears[0].weight, linears[0].bias)


def all_in_one(x, linears, group=None, enter=enters):
    x = enter(x, group)
    return torch.cat([F.linear(x, linear.weight, linear.bias) for linear in linears], -1)


def in_the_world(x, linears, group=None, enter=enters):
    x = enter(x)
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


def by_rank_0(x, linears, group=None, enter=enters):
    x = enter(x, group) if dist.get_rank(group) == 0 else x
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


def with_libs_f(x, linears, group=None, enter=enters):
    x = tp.copy_to_group(x, group)
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


def detaches_the_weight(x, linears, group=None, enter=enters):
    x = enter(x, group)
    return [F.linear(x, linear.weight.detach(), linear.bias) for linear in linears]


def enters_in_float32(x, linears, group=None, enter=enters):
    return column(enter(x.float(), group).to(x.dtype), linears, group, lambda x, group: x)


COLUMNS = {}


def one_buffer_for_each_shape(x, linears, group=None, enter=enters):
    """The numbers lie in a buffer that the next call of that shape writes again."""
    made = []
    for i, y in enumerate(column(x, linears, group, enter)):
        buffer = COLUMNS.setdefault((i, y.shape), torch.empty_like(y)).copy_(y.detach())
        made.append(y)
        y.data = buffer
    return made


def changes_the_bias(x, linears, group=None, enter=enters):
    y = column(x, linears, group, enter)
    for linear in linears:
        if linear.bias is not None:
            linear.bias.data += 1
    return y


def calls_libs_columns(x, linears, group=None, enter=enters):
    return tp.column_parallel(x, linears, group, enter)


def columns_not_written(x, linears, group=None, enter=enters):
    raise NotImplementedError


# column_parallel: right


def column(x, linears, group=None, enter=enters):
    x, out = enter(x, group), []
    for linear in linears:
        y = x @ linear.weight.T
        out.append(y if linear.bias is None else y + linear.bias)
    return out


def one_product(x, linears, group=None, enter=enters):
    """All weights below one another, one product, cut again."""
    y = F.linear(enter(x, group), torch.cat([linear.weight for linear in linears]))
    ys = y.split([len(linear.weight) for linear in linears], -1)
    return tuple(y if linear.bias is None else y + linear.bias for y, linear in zip(ys, linears, strict=True))


# row_parallel: wrong


def an_nth_of_the_bias(x, linear, group=None, leave=leaves):
    bias = None if linear.bias is None else linear.bias / dist.get_world_size(group)
    return leave(F.linear(x, linear.weight, bias), group)


def rank_0s_bias(x, linear, group=None, leave=leaves):
    return leave(F.linear(x, linear.weight, linear.bias if dist.get_rank(group) == 0 else None), group)


def adds_no_bias(x, linear, group=None, leave=leaves):
    return leave(F.linear(x, linear.weight), group) + linear.bias


def a_part_of_the_bias(x, linear, group=None, leave=leaves):
    y = leave(F.linear(x, linear.weight), group)
    if linear.bias is None:
        return y
    return y + linear.bias.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]


def without_g(x, linear, group=None, leave=leaves):
    return F.linear(x, linear.weight, linear.bias)


def joins_the_partials(x, linear, group=None, leave=leaves):
    return tp.gather_from_group(F.linear(x, linear.weight), group)


def calls_the_layer(x, linear, group=None, leave=leaves):
    return leave(linear(x), group)


def rows_not_transposed(x, linear, group=None, leave=leaves):
    return leave(x @ linear.weight, group)


def rows_in_the_world(x, linear, group=None, leave=leaves):
    return row(x, linear, None, leave)


def rows_by_rank_0(x, linear, group=None, leave=leaves):
    return row(x, linear, group, leave if dist.get_rank(group) == 0 else lambda y, group: y)


def with_libs_g(x, linear, group=None, leave=leaves):
    return row(x, linear, group, tp.reduce_from_group)


def with_torchs_all_reduce(x, linear, group=None, leave=leaves):
    y = F.linear(x, linear.weight)
    dist.all_reduce(y.detach(), group=group)
    return y if linear.bias is None else y + linear.bias


def leaves_by_halves(x, linear, group=None, leave=leaves):
    first, second = F.linear(x, linear.weight).split([1, x.shape[1] - 1], 1)
    y = torch.cat([leave(first.contiguous(), group), leave(second.contiguous(), group)], 1)
    return y if linear.bias is None else y + linear.bias


def leaves_in_float32(x, linear, group=None, leave=leaves):
    return row(x, linear, group, lambda y, group: leave(y.float(), group).to(y.dtype))


def changes_x(x, linear, group=None, leave=leaves):
    y = row(x.clone(), linear, group, leave)
    x.data += 1
    return y


def calls_libs_rows(x, linear, group=None, leave=leaves):
    return tp.row_parallel(x, linear, group, leave)


def rows_not_written(x, linear, group=None, leave=leaves):
    raise NotImplementedError


# row_parallel: right


def row(x, linear, group=None, leave=leaves):
    y = leave(x @ linear.weight.T, group)
    return y if linear.bias is None else y + linear.bias


def bias_on_the_sum_in_place(x, linear, group=None, leave=leaves):
    y = leave(torch.einsum("btd,fd->btf", x, linear.weight), group)
    if linear.bias is not None:
        y = y.add_(linear.bias)
    return y


WRONG = {
    "column_parallel": {
        forgets_what_f_returns: "f is missing",
        gathers_the_columns: "columns gathered",
        adds_none: "a layer without bias",
        calls_the_layers: "a part is no module",
        not_transposed: "shapes do not fit",
        cuts_them_again: "shapes do not fit",
        the_first_only: "one result per layer",
        all_in_one: "one result per layer",
        in_the_world: "the group is not passed on",
        by_rank_0: "not on every rank",
        with_libs_f: "not what it was given",
        detaches_the_weight: "no gradient",
        enters_in_float32: "rounded on the way",
        one_buffer_for_each_shape: "one buffer for all calls",
        changes_the_bias: "arguments overwritten",
        calls_libs_columns: "called lib's",
        columns_not_written: "not written",
    },
    "row_parallel": {
        an_nth_of_the_bias: "the bias inside the sum",
        rank_0s_bias: "the bias inside the sum",
        adds_no_bias: "a layer without bias",
        a_part_of_the_bias: "shapes do not fit",
        without_g: "g is missing",
        joins_the_partials: "gathered",
        calls_the_layer: "a part is no module",
        rows_not_transposed: "shapes do not fit",
        rows_in_the_world: "the group is not passed on",
        rows_by_rank_0: "not on every rank",
        with_libs_g: "not what it was given",
        with_torchs_all_reduce: "not what it was given",
        leaves_by_halves: "sent more than once",
        leaves_in_float32: "rounded on the way",
        changes_x: "arguments overwritten",
        calls_libs_rows: "called lib's",
        rows_not_written: "not written",
    },
}

RIGHT = {
    "column_parallel": [column, one_product, as_an_answer(libs.column_parallel)],
    "row_parallel": [row, bias_on_the_sum_in_place, as_an_answer(libs.row_parallel)],
}
