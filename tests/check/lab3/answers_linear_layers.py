"""Answers to Lab 3's linear_layers, function by function: wrong ones, each with its hint, and right
ones.

What differs from lib's by an edit is among MISTAKES in lib/check/lab3/linear_layers.py.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from as_an_answer import as_an_answer

from lib import tensor_parallel as tp
from lib.tensor_parallel import linear as libs


def product(x, layer, group):
    return F.linear(x, layer.weight, layer.bias)


def entered(x, group, input_mapping):
    return input_mapping(x, group)


def column(name, each=product, entered=entered, give=list):
    """give([each(x', layer, group) for each layer]), x' = entered(x, group, input_mapping)."""

    def answer(x, linears, group=None, input_mapping=tp.copy_to_group):
        x = entered(x, group, input_mapping)
        return give([each(x, layer, group) for layer in linears])

    answer.__name__ = name
    return answer


def left(y, group, output_mapping):
    return output_mapping(y, group)


def biased(y, layer, group):
    return y if layer.bias is None else y + layer.bias


def row(name, times=lambda x, layer, group: x @ layer.weight.T, left=left, biased=biased):
    """biased(left(times(x, layer, group), group, output_mapping), layer, group)."""

    def answer(x, linear, group=None, output_mapping=tp.reduce_from_group):
        return biased(left(times(x, linear, group), group, output_mapping), linear, group)

    answer.__name__ = name
    return answer


def by_rank_0(x, group, mapping):
    return mapping(x, group) if dist.get_rank(group) == 0 else x


def in_the_world(x, group, mapping):
    return mapping(x)


def in_float32(x, group, mapping):
    return mapping(x.float(), group).to(x.dtype)


# column_parallel


def cuts_again(x, layer, group):
    return F.linear(
        x, layer.weight.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)], layer.bias
    )


def with_bias_changed(x, layer, group):
    y = product(x, layer, group)
    if layer.bias is not None:
        layer.bias.data += 1
    return y


COLUMNS = {}


def in_one_buffer(x, layer, group):
    """The numbers lie in a buffer that the next call of that shape writes again."""
    y = product(x, layer, group)
    y.data = COLUMNS.setdefault((y.shape, layer.bias is None), torch.empty_like(y)).copy_(
        y.detach()
    )
    return y


def forgets_what_f_returns(x, group, input_mapping):
    input_mapping(x, group)
    return x


def libs_columns(x, linears, group=None, input_mapping=tp.copy_to_group):
    return tp.column_parallel(x, linears, group, input_mapping)


def one_product(x, linears, group=None, input_mapping=tp.copy_to_group):
    """All weights below one another, one product, cut again."""
    y = F.linear(input_mapping(x, group), torch.cat([layer.weight for layer in linears]))
    ys = y.split([len(layer.weight) for layer in linears], -1)
    return tuple(biased(y, layer, group) for y, layer in zip(ys, linears, strict=True))


def equal_chunks(x, linears, group=None, input_mapping=tp.copy_to_group):
    """Right where the layers are equally wide."""
    y = input_mapping(x, group) @ torch.cat([layer.weight for layer in linears]).T
    return [
        biased(y, layer, group) for y, layer in zip(y.chunk(len(linears), -1), linears, strict=True)
    ]


# row_parallel


def an_nth_of_the_bias(x, layer, group):
    return F.linear(
        x, layer.weight, None if layer.bias is None else layer.bias / dist.get_world_size(group)
    )


def rank_0s_bias(x, layer, group):
    return F.linear(x, layer.weight, layer.bias if dist.get_rank(group) == 0 else None)


def a_bias_that_is_not_0(y, layer, group):
    return y + layer.bias if layer.bias is not None and layer.bias.any() else y


def of_one_token(x, linear, group=None, output_mapping=tp.reduce_from_group):
    """Generation as a case of its own."""
    if x.shape[1] > 1:
        return biased(output_mapping(x @ linear.weight.T, group), linear, group)
    return output_mapping(product(x, linear, group), group)


def a_part_of_the_bias(y, layer, group):
    if layer.bias is None:
        return y
    return y + layer.bias.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]


def no_bias(y, layer, group):
    return y


def with_torchs(y, group, output_mapping):
    dist.all_reduce(y.detach(), group=group)
    return y


def by_halves(y, group, output_mapping):
    return torch.cat(
        [output_mapping(half.contiguous(), group) for half in y.split([1, y.shape[1] - 1], 1)], 1
    )


def changes_x(x, layer, group):
    y = x.clone() @ layer.weight.T
    x.data += 1
    return y


def libs_rows(x, linear, group=None, output_mapping=tp.reduce_from_group):
    return tp.row_parallel(x, linear, group, output_mapping)


def not_written(x, linear, group=None, mapping=None):
    raise NotImplementedError


WRONG = {
    "column_parallel": {
        column("forgets_what_f_returns", entered=forgets_what_f_returns): "f is missing",
        column(
            "gathers", lambda x, l, group: tp.gather_from_group(product(x, l, group), group)
        ): "columns gathered",
        column(
            "adds_none", lambda x, layer, group: F.linear(x, layer.weight) + layer.bias
        ): "a layer without bias",
        column("calls_the_layers", lambda x, layer, group: layer(x)): "an error in one case",
        column("not_transposed", lambda x, layer, group: x @ layer.weight): "shapes do not fit",
        column("cuts_again", cuts_again): "shapes do not fit",
        column("the_first_only", give=lambda ys: ys[0]): "a list of results",
        column("all_in_one", give=lambda ys: torch.cat(ys, -1)): "a list of results",
        column("an_iterator", give=iter): "a list of results",
        equal_chunks: "shapes do not fit",
        column("in_the_world", entered=in_the_world): "the group is not passed on",
        column("by_rank_0", entered=by_rank_0): "not on every rank",
        column(
            "with_libs_f", entered=lambda x, group, enter: tp.copy_to_group(x, group)
        ): "not what it was given",
        column(
            "detaches", lambda x, l, group: F.linear(x, l.weight.detach(), l.bias)
        ): "no gradient",
        column("enters_in_float32", entered=in_float32): "rounded on the way",
        column("in_one_buffer", in_one_buffer): "used again by a later call",
        column("changes_the_bias", with_bias_changed): "arguments changed",
        libs_columns: "called what it builds",
        not_written: "not written",
    },
    "row_parallel": {
        row("an_nth_of_the_bias", an_nth_of_the_bias, biased=no_bias): "the bias inside the sum",
        row("rank_0s_bias", rank_0s_bias, biased=no_bias): "the bias inside the sum",
        row("a_bias_that_is_not_0", biased=a_bias_that_is_not_0): "the bias inside the sum",
        of_one_token: "the bias N times",
        row("adds_no_bias", biased=lambda y, layer, group: y + layer.bias): "a layer without bias",
        row("a_part_of_the_bias", biased=a_part_of_the_bias): "shapes do not fit",
        row("without_g", product, lambda y, group, leave: y, no_bias): "g is missing",
        row(
            "joins", left=lambda y, group, leave: tp.gather_from_group(y, group), biased=no_bias
        ): "gathered",
        row("calls_the_layer", lambda x, layer, group: layer(x)): "an error in one case",
        row("rows_not_transposed", lambda x, layer, group: x @ layer.weight): "shapes do not fit",
        row("rows_in_the_world", left=in_the_world): "the group is not passed on",
        row("rows_by_rank_0", left=by_rank_0): "not on every rank",
        row(
            "with_libs_g", left=lambda y, group, leave: tp.reduce_from_group(y, group)
        ): "not what it was given",
        row("with_torchs", left=with_torchs): "not what it was given",
        row("leaves_by_halves", left=by_halves): "other calls",
        row("leaves_in_float32", left=in_float32): "rounded on the way",
        row("changes_x", changes_x): "arguments changed",
        libs_rows: "called what it builds",
        not_written: "not written",
    },
}

RIGHT = {
    "column_parallel": [
        column("by_hand", lambda x, layer, group: biased(x @ layer.weight.T, layer, group)),
        one_product,
        as_an_answer(libs.column_parallel),
    ],
    "row_parallel": [
        row("by_hand"),
        row("in_place", lambda x, layer, group: torch.einsum("btd,fd->btf", x, layer.weight),
            biased=lambda y, layer, group: y if layer.bias is None else y.add_(layer.bias)),
        as_an_answer(libs.row_parallel),
    ],
}  # fmt: skip
