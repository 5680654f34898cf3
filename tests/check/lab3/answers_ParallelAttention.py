"""Answers to Lab 3's ParallelAttention: wrong ones, each with its hint, and right ones.

Most differ from `Heads`, a right one, in one of its parts. What differs from lib's by an edit is
among MISTAKES in mistakes_ParallelAttention.py.
"""

import math
import operator
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from as_an_answer import as_an_answer
from torch import nn

from lib import tensor_parallel as tp
from lib.tensor_parallel import block as libs
from lib.training.model import causal_attention, merge_heads, split_heads


class Part(nn.Module):
    """A weight and a bias."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(weight.detach().clone()),
            nn.Parameter(bias.detach().clone()),
        )


class Heads(nn.Module):
    """Cuts by itself."""

    def __init__(
        self, attention, group=None, column_linear=tp.column_parallel, row_linear=tp.row_parallel
    ):
        super().__init__()
        self.group, self.column_linear, self.row_linear, self.head_dim = (
            group,
            column_linear,
            row_linear,
            attention.head_dim,
        )
        self.rank, self.N = dist.get_rank(group), dist.get_world_size(group)
        self.divides(attention)
        self.q, self.k, self.v = self.inward(attention)
        self.out = self.outward(attention.out)

    def divides(self, attention):
        for layer in (attention.q, attention.k):
            heads = layer.out_features // self.head_dim
            if heads % self.N:
                raise ValueError(f"{heads} heads over {self.N} ranks")

    def inward(self, attention):
        return [
            Part(self.own(layer.weight), self.own(layer.bias))
            for layer in (attention.q, attention.k, attention.v)
        ]

    def own(self, t):
        return t.chunk(self.N)[self.rank]

    def outward(self, out):
        return Part(out.weight.chunk(self.N, 1)[self.rank], out.bias)

    def forward(self, x):
        q, k, v = (split_heads(y, self.head_dim) for y in self.multiplied(x))
        return self.left(merge_heads(self.attend(q, k, v)))

    def multiplied(self, x):
        return self.column_linear(x, [self.q, self.k, self.v], self.group)

    def attend(self, q, k, v):
        return causal_attention(q, k, v)

    def left(self, mixed):
        return self.row_linear(mixed, self.out, self.group)


# wrong


class Interleaved(Heads):
    """Head r, r + tp, r + 2 tp, ... on rank r, of q alone."""

    def inward(self, attention):
        _, k, v = super().inward(attention)
        heads = attention.q.weight.unflatten(0, (-1, self.head_dim))[self.rank :: self.N].flatten(
            0, 1
        )
        bias = attention.q.bias.unflatten(0, (-1, self.head_dim))[self.rank :: self.N].flatten()
        return Part(heads, bias), k, v


class InterleavedEverywhere(Interleaved):
    """Right where every query head has its own key/value head, but for who has which."""

    def own(self, t):
        return t.unflatten(0, (-1, self.head_dim))[self.rank :: self.N].flatten(0, 1)

    def outward(self, out):
        return Part(
            out.weight.unflatten(1, (-1, self.head_dim))[:, self.rank :: self.N].flatten(1, 2),
            out.bias,
        )


class WholeKeys(Heads):
    def inward(self, attention):
        q, _, _ = super().inward(attention)
        return q, *(Part(layer.weight, layer.bias) for layer in (attention.k, attention.v))


class KeysCutOnlyWhereAsMany(WholeKeys):
    """Grouped-query attention keeps all its key/value heads."""

    def inward(self, attention):
        if attention.k.out_features == attention.q.out_features:
            return Heads.inward(self, attention)
        return super().inward(attention)


def heads(name, **methods):
    """`Heads` with other methods."""
    return type(name, (Heads,), methods)


def on_dim_one(self, attention):
    layers = attention.q, attention.k, attention.v
    return [
        Part(layer.weight.chunk(self.N, 1)[self.rank], self.own(layer.bias)) for layer in layers
    ]


def of_rank(number):
    return lambda self, out: Part(out.weight.chunk(self.N, 1)[number(self) % self.N], out.bias)


def of_narrow_heads(self, x):
    """The heads' width is cut, not their number."""
    q, k, v = (split_heads(y, self.head_dim // 2 + 2) for y in self.multiplied(x))
    return self.left(merge_heads(self.attend(q, k, v)))


def no_parameters(self, attention):
    parts = Heads.inward(self, attention)
    for part in parts:
        for name in ("weight", "bias"):
            tensor = getattr(part, name).detach().requires_grad_()
            delattr(part, name)
            setattr(part, name, tensor)
    return parts


def views(self, attention):
    parts = Heads.inward(self, attention)
    for part, layer in zip(parts, (attention.q, attention.k, attention.v), strict=True):
        part.weight = nn.Parameter(self.own(layer.weight.detach()))
    return parts


def views_of_whole_parameters(self, attention):
    return [
        SimpleNamespace(weight=self.own(layer.weight), bias=self.own(layer.bias))
        for layer in QKV(attention)
    ]


def shares_the_bias(self, out):
    part = Heads.outward(self, out)
    part.bias = out.bias
    return part


def made_anew(self, attention):
    return [nn.Linear(layer.in_features, layer.out_features // self.N) for layer in QKV(attention)]


def divides_by_the_world(self, attention):
    if attention.k.out_features // self.head_dim % dist.get_world_size():
        raise ValueError("not so many heads")


def cuts_the_plain_one(self, out):
    part = Heads.outward(self, out)
    out.weight.data.zero_()
    return part


def bias_in_every_part(self, mixed):
    return tp.reduce_from_group(F.linear(mixed, self.out.weight, self.out.bias), self.group)


def in_float32(self, mixed):
    return self.row_linear(
        mixed.float(), Part(self.out.weight.float(), self.out.bias.float()), self.group
    ).double()


def keeps(how):
    def make(self, attention, *args):
        Heads.__init__(self, attention, *args)
        self.plain = how(attention)

    return make


class GroupOnTheClass(Heads):
    """The columns of the first module go to the group of the second."""

    def multiplied(self, x):
        return self.column_linear(x, [self.q, self.k, self.v], type(self).of)

    def divides(self, attention):
        type(self).of = self.group
        super().divides(attention)


class LibsLayers(nn.Module):
    """Layers of lib that were not told how to multiply."""

    def __init__(
        self, attention, group=None, column_linear=tp.column_parallel, row_linear=tp.row_parallel
    ):
        super().__init__()
        self.head_dim, self.group, self.column_linear = attention.head_dim, group, column_linear
        Heads.divides(self, attention) if self.count() else None
        self.q, self.k, self.v = (
            tp.ColumnParallelLinear(a, group) for a in (attention.q, attention.k, attention.v)
        )
        self.out = tp.RowParallelLinear(attention.out, group)

    def count(self):
        self.N = dist.get_world_size(self.group)
        return self.N

    def forward(self, x):
        q, k, v = (
            split_heads(y, self.head_dim)
            for y in self.column_linear(x, [self.q, self.k, self.v], self.group)
        )
        return self.out(merge_heads(causal_attention(q, k, v)))


def queries_only(self, attention):
    if (attention.q.out_features // self.head_dim) % self.N:
        raise ValueError("not so many heads")


def asserts(self, attention):
    for layer in (attention.q, attention.k):
        assert layer.out_features // self.head_dim % self.N == 0


def keys_for_values(self, attention):
    q, k, _ = Heads.inward(self, attention)
    return q, k, Part(k.weight, k.bias)


def frozen_biases(self, attention):
    parts = Heads.inward(self, attention)
    for part in parts:
        part.bias.requires_grad_(False)
    return parts


class Inherits(libs.ParallelAttention):
    pass


class HasLibs(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.inner = libs.ParallelAttention(*args)

    def forward(self, x):
        return self.inner(x)


def a_chunk_of_a_copy(self, attention):
    """A view of a copy: no memory is shared with the caller, and none is saved."""
    parts = Heads.inward(self, attention)
    for part, layer in zip(parts, QKV(attention), strict=True):
        part.weight = nn.Parameter(self.own(layer.weight.detach().clone()))
    return parts


class NotWritten(nn.Module):
    def __init__(
        self, attention, group=None, column_linear=tp.column_parallel, row_linear=tp.row_parallel
    ):
        super().__init__()
        raise NotImplementedError


# right


class OfLibsLayers(LibsLayers):
    """As the notebook has it."""

    def __init__(
        self, attention, group=None, column_linear=tp.column_parallel, row_linear=tp.row_parallel
    ):
        super().__init__(attention, group, column_linear, row_linear)
        self.row_linear = row_linear

    def forward(self, x):
        q, k, v = (
            split_heads(y, self.head_dim)
            for y in self.column_linear(x, [self.q, self.k, self.v], self.group)
        )
        return self.row_linear(merge_heads(causal_attention(q, k, v)), self.out, self.group)


class Fused(Heads):
    """q, k and v in one layer, cut again behind it."""

    def inward(self, attention):
        parts = super().inward(attention)
        self.widths = [len(part.weight) for part in parts]
        self.qkv = Part(
            *(torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
        )
        return None, None, None

    def multiplied(self, x):
        return self.column_linear(x, [self.qkv], self.group)[0].split(self.widths, -1)


class WithEinsum(Heads):
    """nn.Linear as parts, v first, and attention written out."""

    def inward(self, attention):
        made = []
        for layer in (attention.q, attention.k, attention.v):
            part = nn.Linear(layer.in_features, layer.out_features // self.N).to(layer.weight)
            part.weight.data.copy_(self.own(layer.weight))
            part.bias.data.copy_(self.own(layer.bias))
            made.append(part)
        return made

    def multiplied(self, x):
        v, q, k = self.column_linear(x, [self.v, self.q, self.k], self.group)
        return q, k, v

    def attend(self, q, k, v):
        q = q.unflatten(1, (k.shape[1], -1))
        scores = torch.einsum("bksth,bkuh->bkstu", q, k) / self.head_dim**0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        return torch.einsum("bkstu,bkuh->bksth", weights, v).flatten(1, 2)


QKV = operator.attrgetter("q", "k", "v")
WRONG = {
    Interleaved: "heads interleaved",
    InterleavedEverywhere: "heads interleaved",
    WholeKeys: "a layer not sharded",
    KeysCutOnlyWhereAsMany: "a layer not sharded",
    heads("OutOnDimZero", outward=lambda self, out: Part(self.own(out.weight),
        out.bias)): "sharded on the wrong dim",
    heads("ColumnsOnDimOne", inward=on_dim_one): "sharded on the wrong dim",
    heads("OutOfTheNext", outward=of_rank(lambda self: self.rank + 1)): "another rank's heads",
    heads("RanksOfTheWorld", own=lambda self,
        t: t.chunk(self.N)[dist.get_rank() % self.N]): "another rank's heads",
    heads("PartOfRankZero", own=lambda self, t: t.chunk(self.N)[0]): "another rank's heads",
    heads("CutForTheWorld", inward=lambda self, attention: list(map(tp.ColumnParallelLinear,
        QKV(attention)))):
        "the group is not passed on",
    heads("MadeAnew", inward=made_anew): "a layer made anew",
    heads("DividesByTheWorld", divides=divides_by_the_world): "whole heads refused",
    heads("FTwice", multiplied=lambda self, x: self.column_linear(tp.copy_to_group(x, self.group),
        QKV(self), self.group)):
        "another gradient",
    heads("NothingReturned", left=lambda self, mixed: None): "nothing returned",
    heads("Unscaled", attend=lambda self, q, k, v: causal_attention(q * self.head_dim**0.5, k,
        v)): "another scale",
    heads("BiasInEveryPart", left=bias_in_every_part): "the bias N times",
    heads("WithoutF", multiplied=lambda self, x: [F.linear(x, l.weight,
        l.bias) for l in QKV(self)]): "f is missing",
    heads("NoList", multiplied=lambda self, x: [
        self.column_linear(x, l, self.group) for l in QKV(self)]):
        "no list of layers",
    heads("NarrowHeads", forward=of_narrow_heads): "shapes do not fit",
    heads("InTheWorld", left=lambda self, mixed: self.row_linear(mixed,
        self.out)): "the group is not passed on",
    GroupOnTheClass: "shared by two calls",
    heads("InFloat32", left=in_float32): "rounded on the way",
    heads("KeysForValues", inward=keys_for_values): "another layer's weights",
    heads("NotParameters", inward=no_parameters): "no parameters",
    heads("FrozenBiases", inward=frozen_biases): "no parameters",
    heads("KeepsTheWhole", __init__=keeps(lambda attention: attention)): "full weights are kept",
    heads("HidesTheWhole", __init__=keeps(lambda attention: [attention])): "full weights are kept",
    heads("ViewsOfParameters", inward=views_of_whole_parameters): "no parameters",
    heads("SharesTheBias", outward=shares_the_bias): "views of full weights",
    heads("Views", inward=views): "views of full weights",
    heads("CutsThePlainOne", outward=cuts_the_plain_one): "the plain attention changed",
    heads("LibsColumns", multiplied=lambda self, x: tp.column_parallel(x, [*QKV(self)],
        self.group)):
        "not what it was given",
    LibsLayers: "not what it was given",
    heads("NoError", divides=lambda self, attention: None): "no error",
    heads("QueriesOnly", divides=queries_only): "no error",
    heads("Asserts", divides=asserts): "no error",
    heads("ChunkOfACopy", inward=a_chunk_of_a_copy): "full weights are kept",
    Inherits: "called what it builds",
    HasLibs: "called what it builds",
    NotWritten: "not written",
}  # fmt: skip

RIGHT = [
    Heads, OfLibsLayers, Fused, WithEinsum, as_an_answer(libs.ParallelAttention),
    heads("ByName", left=lambda self, mixed: self.row_linear(
        x=mixed, linear=self.out, group=self.group)),
]  # fmt: skip
