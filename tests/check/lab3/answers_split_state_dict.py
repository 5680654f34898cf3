"""Answers to Lab 3's split_state_dict written otherwise than lib's: wrong ones, each with its hint,
and right ones."""

import re
from collections import OrderedDict

import torch
from as_an_answer import as_an_answer

from lib import tensor_parallel as tp

COLUMNS = re.compile(r"(^|\.)((q|k|v|up)\.(weight|bias)|(token|head)\.weight)$")
ROWS = re.compile(r"(^|\.)(out|down)\.weight$")


def dim_of(name):
    return 0 if COLUMNS.search(name) else 1 if ROWS.search(name) else None


def sizes_of(name, tensor, fused):
    """(dim, the sizes of the parts) by the names of the table and those of `fused`."""
    for ending in fused or ():
        if name.endswith(ending):
            return 0, list(fused[ending])
    dim = dim_of(name)
    return dim, None if dim is None else [tensor.size(dim)]


def by_regular_expression(state, rank, tp, fused=None):
    shards = OrderedDict()
    for name in state:
        full, (dim, sizes) = state[name].detach(), sizes_of(name, state[name], fused)
        if dim is None:
            shards[name] = torch.empty_like(full).copy_(full)
            continue
        start, found = 0, []
        for size in sizes:
            own, rest = divmod(size, tp)
            if rest:
                raise ValueError(f"{name} {tuple(full.shape)}: {size} of dim {dim} on {tp} ranks")
            found.append(full.narrow(dim, start + rank * own, own))
            start += size
        shards[name] = torch.cat(found, dim)
    return shards


def all_copied_first(state, rank, tp, fused=None):
    state = {name: tensor.clone() for name, tensor in state.items()}
    how = {name: sizes_of(name, tensor, fused) for name, tensor in state.items()}
    how = {name: both for name, both in how.items() if both[0] is not None}
    if odd := [name for name, (_, sizes) in how.items() if any(size % tp for size in sizes)]:
        raise ValueError(odd)
    for name, (dim, sizes) in how.items():
        parts = torch.split(state[name], sizes, dim)
        state[name] = torch.cat([torch.tensor_split(part, tp, dim)[rank] for part in parts], dim)
    return state


def by_the_rows_of_a_rank(state, rank, tp, fused=None):
    """Right: the indices of a rank's rows or columns, and one index_select."""
    shards = {}
    for name, tensor in state.items():
        dim, sizes = sizes_of(name, tensor, fused)
        if dim is None:
            shards[name] = tensor.clone()
            continue
        mine, start = [], 0
        for size in sizes:
            if size % tp:
                raise ValueError(f"{name}: {size} rows for {tp} ranks")
            own = size // tp
            mine += range(start + rank * own, start + (rank + 1) * own)
            start += size
        shards[name] = tensor.index_select(dim, torch.tensor(mine, device=tensor.device))
    return shards


def cut_ones_only(state, rank, tp, fused=None):
    return {
        name: part
        for name, part in by_regular_expression(state, rank, tp, fused).items()
        if sizes_of(name, part, fused)[0] is not None
    }


def anywhere_in_the_name(state, rank, tp, fused=None):
    def dim_of(name):
        if "bias" in name and ("out" in name or "down" in name):
            return None
        if "out" in name or "down" in name:
            return 1
        return (
            0
            if any(layer in name for layer in (".q.", ".k.", ".v.", "up", "token", "head"))
            else None
        )

    parts = {}
    for name, tensor in state.items():
        dim = dim_of(name)
        if dim is not None and tensor.shape[dim] % tp:
            raise ValueError(name)
        parts[name] = (tensor if dim is None else tensor.chunk(tp, dim)[rank]).clone()
    return parts


def by_layer_alone(state, rank, tp, fused=None):
    rows = {
        name: tensor for name, tensor in state.items() if name.split(".")[-2] in ("out", "down")
    }
    return by_regular_expression(state, rank, tp, fused) | {
        name: tensor.narrow(1, rank * (tensor.shape[1] // tp), tensor.shape[1] // tp).clone()
        for name, tensor in rows.items()
    }


def into_the_given_one(state, rank, tp, fused=None):
    parts = by_regular_expression(state, rank, tp, fused)
    for name in state:
        state[name] = parts[name]
    return {name: part.clone() for name, part in parts.items()}


def in_float32(state, rank, tp, fused=None):
    return {n: part.float() for n, part in by_regular_expression(state, rank, tp, fused).items()}


BUFFERS = {}


def into_the_same_buffers(state, rank, tp, fused=None):
    parts = by_regular_expression(state, rank, tp, fused)
    return {
        n: BUFFERS.setdefault((n, part.shape), torch.empty_like(part)).copy_(part)
        for n, part in parts.items()
    }


def looks_at_the_vocabulary_only(state, rank, tp, fused=None):
    if any(tensor.shape[0] % tp for name, tensor in state.items() if name.endswith("token.weight")):
        raise ValueError("the vocabulary")
    shards = {}
    for name, tensor in state.items():
        dim, sizes = sizes_of(name, tensor, fused)
        if dim is not None:
            parts = tensor.split(sizes, dim)
            tensor = torch.cat([part.tensor_split(tp, dim)[rank] for part in parts], dim)
        shards[name] = tensor.clone()
    return shards


def knows_no_fused_names(state, rank, tp, fused=None):
    return by_regular_expression(state, rank, tp)


def fused_on_the_last_dim(state, rank, tp, fused=None):
    shards = by_regular_expression(state, rank, tp, fused)
    for name, tensor in state.items():
        if name.endswith(tuple(fused or ())) and tensor.dim() == 2:
            shards[name] = tensor.chunk(tp, 1)[rank].clone()
    return shards


def indexes_the_table_first(state, rank, tp, fused=None):
    known = {"q", "k", "v", "up", "token", "head", "out", "down", "position"}
    for name in state:
        if name.split(".")[-2].rstrip("12") not in known | {"norm"}:
            raise KeyError(name)
    return by_regular_expression(state, rank, tp, fused)


def compares_whole_names(state, rank, tp, fused=None):
    sharded = by_regular_expression(state, rank, tp, fused)
    known = ("embedding.token.weight", "head.weight", "attention.q.weight", "mlp.up.weight")
    return {name: sharded[name] if name in known else x.clone() for name, x in state.items()}


def looks_into_none(state, rank, tp, fused=None):
    return by_regular_expression(state, rank, tp, dict(fused.items()))


def calls_libs(state, rank, tp_, fused=None):
    return tp.split_state_dict(state, rank, tp_, fused)


def not_yet(state, rank, tp, fused=None):
    raise NotImplementedError


WRONG = {
    cut_ones_only: "names left out",
    anywhere_in_the_name: "not by the end of the name",
    by_layer_alone: "an error where all divides",
    in_float32: "another dtype",
    into_the_given_one: "arguments changed",
    into_the_same_buffers: "used again by a later call",
    looks_at_the_vocabulary_only: "no error",
    knows_no_fused_names: "a fused weight chunked as one",
    fused_on_the_last_dim: "a fused weight chunked as one",
    indexes_the_table_first: "an error with fused weights",
    compares_whole_names: "not sharded",
    looks_into_none: "no fused weights",
    calls_libs: "called what it builds",
    not_yet: "not written",
}


REMEMBERED = {}


def remembers_fused_names(state, rank, tp, fused=None):
    REMEMBERED.update(fused or {})
    return by_regular_expression(state, rank, tp, REMEMBERED)


WRONG[remembers_fused_names] = "remembered from an earlier call"


def by_the_last_two_words(state, rank, tp, fused=None):
    """Right: every name has two words at its end."""
    parts = {}
    for name, tensor in state.items():
        layer, kind = name.split(".")[-2:]
        if f"{layer}.{kind}" in {".".join(n.split(".")[-2:]) for n in fused or ()}:
            ending = next(n for n in fused if name.endswith(n))
            if any(size % tp for size in fused[ending]):
                raise ValueError(name)
            shards = [part.chunk(tp)[rank] for part in tensor.split(list(fused[ending]))]
            parts[name] = torch.cat(shards)
            continue
        dim = {"out": 1, "down": 1}.get(
            layer, 0 if layer in ("token", "head", "q", "k", "v", "up") else None
        )
        whole = dim is None or (dim == 1 and kind == "bias")
        if not whole and tensor.shape[dim] % tp:
            raise ValueError(name)
        parts[name] = (tensor if whole else tensor.chunk(tp, dim)[rank]).clone()
    return parts


RIGHT = [
    by_regular_expression,
    all_copied_first,
    by_the_last_two_words,
    by_the_rows_of_a_rank,
    as_an_answer(tp.split_state_dict),
]
