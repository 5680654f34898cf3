"""Answers to Lab 3's split_state_dict: wrong ones, each with the hint that it must get, and right ones."""

import re

import torch

from lib import tensor_parallel as tp

DIMS = {
    "token.weight": 0, "head.weight": 0, "out.weight": 1, "down.weight": 1,
    **{f"{layer}.{what}": 0 for layer in ("q", "k", "v", "up") for what in ("weight", "bias")},
}  # fmt: skip


def split(state, rank, tp, dim_of=None, part=None, check=True, copy=torch.Tensor.clone):
    """The right answer, but for what is given. dim_of(name): the dim or None; part(tensor, dim): this rank's."""
    dim_of = dim_of or (lambda name: DIMS.get(".".join(name.split(".")[-2:])))
    part = part or (lambda tensor, dim: tensor.chunk(tp, dim)[rank])
    parts = {}
    for name, tensor in state.items():
        dim = dim_of(name)
        if dim is not None and check and tensor.shape[dim] % tp:
            raise ValueError(f"{name}: {tensor.shape[dim]} is no multiple of {tp}")
        parts[name] = copy(tensor if dim is None else part(tensor, dim))
    return parts


# right


def by_regular_expression(state, rank, tp):
    columns = re.compile(r"(^|\.)((q|k|v|up)\.(weight|bias)|(token|head)\.weight)$")
    rows = re.compile(r"(^|\.)(out|down)\.weight$")
    parts = {}
    for name in state:
        whole = state[name].detach()
        dim = 0 if columns.search(name) else 1 if rows.search(name) else None
        if dim is None:
            parts[name] = torch.empty_like(whole).copy_(whole)
            continue
        size, rest = divmod(whole.size(dim), tp)
        if rest:
            raise ValueError(f"{name} {tuple(whole.shape)}: dim {dim} over {tp} ranks")
        parts[name] = whole.narrow(dim, rank * size, size).clone()
    return parts


def by_the_end_of_the_name(state, rank, tp):
    def dim_of(name):
        return next((dim for ending, dim in DIMS.items() if f".{name}".endswith(f".{ending}")), None)

    return split(state, rank, tp, dim_of, lambda tensor, dim: torch.tensor_split(tensor, tp, dim)[rank])


# wrong


def with_dims(**dims):
    """The dims of DIMS, but for these endings (_ for a dot)."""
    other = DIMS | {name.replace("_", "."): dim for name, dim in dims.items()}
    return lambda name: other.get(".".join(name.split(".")[-2:]))


def nothing_is_cut(state, rank, tp):
    return split(state, rank, tp, lambda name: None)


def cut_ones_only(state, rank, tp):
    return {name: t for name, t in split(state, rank, tp).items() if t.shape != state[name].shape}


def anywhere_in_the_name(state, rank, tp):
    def dim_of(name):
        if "bias" in name and ("out" in name or "down" in name):
            return None
        if "out" in name or "down" in name:
            return 1
        return 0 if any(layer in name for layer in (".q.", ".k.", ".v.", "up", "token", "head")) else None

    return split(state, rank, tp, dim_of)


def the_last_rank_first(state, rank, tp):
    return split(state, tp - 1 - rank, tp)


def every_tpth(state, rank, tp):
    return split(state, rank, tp, part=lambda t, dim: t[rank::tp] if dim == 0 else t[:, rank::tp])


def row_biases_cut(state, rank, tp):
    return split(state, rank, tp, with_dims(out_bias=0, down_bias=0))


def column_biases_whole(state, rank, tp):
    return split(state, rank, tp, with_dims(q_bias=None, k_bias=None, v_bias=None, up_bias=None))


def everything_cut(state, rank, tp):
    dim_of = with_dims()
    cuts_norms = lambda name: 0 if "norm" in name else dim_of(name)
    return split(state, rank, tp, cuts_norms)


def positions_cut(state, rank, tp):
    return split(state, rank, tp, with_dims(position_weight=1))


def rows_on_dim_0(state, rank, tp):
    return split(state, rank, tp, with_dims(out_weight=0, down_weight=0))


def down_as_up(state, rank, tp):
    return split(state, rank, tp, with_dims(down_weight=0))


def vocabulary_on_dim_1(state, rank, tp):
    return split(state, rank, tp, with_dims(token_weight=1, head_weight=1))


def head_forgotten(state, rank, tp):
    return split(state, rank, tp, with_dims(head_weight=None))


def columns_on_dim_1(state, rank, tp):
    return split(state, rank, tp, with_dims(q_weight=1, k_weight=1, v_weight=1, up_weight=1))


def views(state, rank, tp):
    return split(state, rank, tp, copy=lambda tensor: tensor)


def contiguous_views(state, rank, tp):
    return split(state, rank, tp, copy=torch.Tensor.contiguous)


def copies_of_parts_only(state, rank, tp):
    parts = split(state, rank, tp)
    dim_of = with_dims()
    return {name: state[name] if dim_of(name) is None else part for name, part in parts.items()}


def no_error(state, rank, tp):
    return split(state, rank, tp, check=False, part=lambda t, dim: torch.tensor_split(t, tp, dim)[rank])


def an_assertion(state, rank, tp):
    dim_of = with_dims()
    for name, tensor in state.items():
        assert dim_of(name) is None or tensor.shape[dim_of(name)] % tp == 0, name
    return split(state, rank, tp)


def into_the_given_one(state, rank, tp):
    parts = split(state, rank, tp)
    for name in state:
        state[name] = parts[name]
    return {name: part.clone() for name, part in parts.items()}


def calls_libs(state, rank, tp_):
    return tp.split_state_dict(state, rank, tp_)


def not_yet(state, rank, tp):
    raise NotImplementedError


WRONG = {
    cut_ones_only: "names left out",
    anywhere_in_the_name: "not by the end of the name",
    the_last_rank_first: "another rank's part",
    every_tpth: "interleaved",
    row_biases_cut: "the bias of a row layer",
    column_biases_whole: "the bias of a column layer",
    everything_cut: "a norm or a position",
    rows_on_dim_0: "rows for columns",
    vocabulary_on_dim_1: "the vocabulary",
    columns_on_dim_1: "columns for rows",
    views: "views of what is cut",
    copies_of_parts_only: "the same tensor where nothing is cut",
    no_error: "no error",
    into_the_given_one: "changed what it was given",
    calls_libs: "called lib's",
    not_yet: "not written",
    nothing_is_cut: "the vocabulary",
    positions_cut: "a norm or a position",
    down_as_up: "rows for columns",
    head_forgotten: "the vocabulary",
    contiguous_views: "views of what is cut",
    an_assertion: "no error",
}
RIGHT = [by_regular_expression, by_the_end_of_the_name]
