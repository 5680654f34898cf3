"""Answers to Lab 3's ulysses_attention: wrong ones, each with the hint that it must get,
and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer
from forth_and_back import Pair

from lib import collectives
from lib.tensor_parallel import ulysses as libs
from lib.tensor_parallel.online_softmax import attend


class Ulysses:
    """The answer in parts, each of which a wrong answer may do otherwise."""

    def __init__(self, layout, causal, group, all_to_all):
        self.layout, self.causal, self.group, self.all_to_all = layout, causal, group, all_to_all
        self.rank, self.N = dist.get_rank(group), dist.get_world_size(group)
        self.lengths = [len(positions) for positions in layout]

    def send(self, rows, to, frm):
        return self.all_to_all(rows, self.group, to, frm)

    def apart(self, x):
        """(B, h, t, d) -> (B, h/N, T, d)"""
        B, h, t, d = x.shape
        n = h // self.N
        rows = x.transpose(0, 1).reshape(h, B, t, d).transpose(1, 2).reshape(h * t, B * d)
        came = self.send(rows, [n * t] * self.N, [n * s for s in self.lengths])
        pieces = [one.reshape(n, -1, B, d) for one in came.split([n * s for s in self.lengths])]
        return torch.cat(pieces, 1).permute(2, 0, 1, 3)

    def together(self, x):
        """(B, h/N, T, d) -> (B, h, t, d)"""
        B, n, _, d = x.shape
        t = self.lengths[self.rank]
        pieces = [one.permute(1, 2, 0, 3).reshape(-1, B * d) for one in x.split(self.lengths, 2)]
        came = self.send(torch.cat(pieces), [n * s for s in self.lengths], [n * t] * self.N)
        return came.reshape(self.N * n, t, B, d).permute(2, 0, 1, 3)

    def to_heads(self, x):
        return Pair.apply(x, self.apart, self.together)

    def to_tokens(self, x):
        return Pair.apply(x, self.together, self.apart)

    def for_all(self, x, H):
        """Key/value heads, one for each rank at least."""
        return x.repeat_interleave(max(1, self.N // x.shape[1]), 1)

    def places(self):
        order = [position for positions in self.layout for position in positions]
        return (order, order) if self.causal else ()

    def attention(self, q, k, v):
        k, v = self.for_all(k, q.shape[1]), self.for_all(v, q.shape[1])
        return self.to_tokens(attend(*map(self.to_heads, (q, k, v)), *self.places()).out)


def answer(how):
    def ulysses_attention(
        q, k, v, layout, group=None, all_to_all=collectives.all_to_all, *, causal=True
    ):
        return how(layout, causal, group, all_to_all).attention(q, k, v)

    ulysses_attention.__name__ = how.__name__
    return ulysses_attention


class AllInOne(Ulysses):
    """Right: q, k and v in one message, where there are as many heads of each."""

    def attention(self, q, k, v):
        k, v = self.for_all(k, q.shape[1]), self.for_all(v, q.shape[1])
        if k.shape[1] != q.shape[1]:
            return self.to_tokens(attend(*map(self.to_heads, (q, k, v)), *self.places()).out)
        B = len(q)
        q, k, v = self.to_heads(torch.cat([q, k, v])).split(B)
        return self.to_tokens(attend(q, k, v, *self.places()).out)


class InOrder(Ulysses):
    """Right: tokens in the order of the sequence, and plain causal attention."""

    def attention(self, q, k, v):
        k, v = self.for_all(k, q.shape[1]), self.for_all(v, q.shape[1])
        order = torch.tensor([position for positions in self.layout for position in positions])
        q, k, v = (self.to_heads(x)[:, :, order.argsort()] for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=True
        )
        return self.to_tokens(out[:, :, order])


class TokensAsTheyStand(Ulysses):
    def places(self):
        order = list(range(sum(self.lengths)))
        return (order, order) if self.causal else ()


class NotTransposed(Ulysses):
    def apart(self, x):
        B, h, t, d = x.shape
        n = h // self.N
        # sequences and tokens in each other's places
        rows = x.transpose(0, 1).reshape(h * t, B * d)
        came = self.send(rows, [n * t] * self.N, [n * s for s in self.lengths])
        pieces = [one.reshape(n, -1, B, d) for one in came.split([n * s for s in self.lengths])]
        return torch.cat(pieces, 1).permute(2, 0, 1, 3)


class AsTheyCome(Ulysses):
    def apart(self, x):
        came = super().apart(x)
        B, n, T, d = came.shape
        return (
            came.reshape(B, n, self.N, T // self.N, d).transpose(1, 2).reshape(came.shape)
            if n > 1
            else came.flip(2)
        )


class NoWayBack(Ulysses):
    """Gradients of other heads."""

    def to_heads(self, x):
        return Pair.apply(x, self.apart, lambda dy: self.together(dy).flip(1))


class BackTheSameWay(Ulysses):
    """Each exchange is its own backward."""

    def to_heads(self, x):
        return Pair.apply(x, self.apart, self.apart)

    def to_tokens(self, x):
        return Pair.apply(x, self.together, self.together)


class OfTheResultTheSameWay(Ulysses):
    def to_tokens(self, x):
        return Pair.apply(x, self.together, self.together)


class BackWithoutAnExchange(Ulysses):
    """The gradient's shape is right, and nothing else."""

    def to_heads(self, x):
        return Pair.apply(x, self.apart, lambda dy: dy.repeat(1, self.N, 1, 1)[:, :, : x.shape[2]])


class TheFirstHeadForAll(Ulysses):
    def for_all(self, x, H):
        return (
            super().for_all(x, H) if x.shape[1] >= self.N else x[:, :1].expand(-1, self.N, -1, -1)
        )


class OneCopyLearns(Ulysses):
    def for_all(self, x, H):
        if x.shape[1] >= self.N:
            return x
        copies = x.detach().repeat_interleave(self.N // x.shape[1], 1)
        copies[:, :: self.N // x.shape[1]] = x
        return copies


class EveryHeadThere(Ulysses):
    def for_all(self, x, H):
        return x.repeat_interleave(H // x.shape[1], 1)


class EqualShards(Ulysses):
    def __init__(self, layout, *rest):
        super().__init__(layout, *rest)
        self.lengths = [self.lengths[self.rank]] * self.N


class Forgotten(Ulysses):
    def send(self, rows, to, frm):
        return self.all_to_all(rows, None, to, frm)


class WorldsRank(Ulysses):
    def __init__(self, *how):
        super().__init__(*how)
        self.rank = dist.get_rank() % self.N

    def together(self, x):
        return super().together(x).roll(self.rank - dist.get_rank(self.group), 1)


class OnTheClass(Ulysses):
    def to_heads(self, x):
        OnTheClass.last = self
        return Pair.apply(x, self.apart, lambda dy: OnTheClass.last.together(dy))


class AsManyAsInTheWorld(Ulysses):
    def __init__(self, *how):
        super().__init__(*how)
        self.N = dist.get_world_size()


class InSingle(Ulysses):
    def send(self, rows, to, frm):
        return super().send(rows.float(), to, frm).double()


class BackInSingle(Ulysses):
    def to_heads(self, x):
        return Pair.apply(x, self.apart, lambda dy: self.together(dy).float().double())


class Imported(Ulysses):
    def send(self, rows, to, frm):
        return collectives.all_to_all(rows, self.group, to, frm)


class ImportedForTheWayBack(Ulysses):
    def to_heads(self, x):
        imported = Ulysses(self.layout, self.causal, self.group, collectives.all_to_all)
        return Pair.apply(x, self.apart, imported.together)


class Twice(Ulysses):
    def to_heads(self, x):
        self.apart(x.detach())
        return super().to_heads(x)


class Unseen(Ulysses):
    def attention(self, q, k, v):
        return super().attention(q.detach(), k.detach(), v.detach())


class AnotherForm(Ulysses):
    def attention(self, q, k, v):
        return super().attention(q, k, v).transpose(2, 3)


class AloneOneHead(Ulysses):
    def attention(self, q, k, v):
        return super().attention(q, k, v) if self.N > 1 else super().attention(q, k, v) * 0


class InPlace(Ulysses):
    def attention(self, q, k, v):
        out = super().attention(q.clone(), k, v)
        q.data.zero_()
        return out


class RankZeroWaits(Ulysses):
    def send(self, rows, to, frm):
        return super().send(rows, to, frm) if self.rank else rows


class WaitsForAll(Ulysses):
    def send(self, rows, to, frm):
        collectives.barrier(self.group)
        return super().send(rows, to, frm)


class OneBuffer(Ulysses):
    """Every result of a shape goes into one buffer."""

    rooms = {}  # noqa: RUF012

    def attention(self, q, k, v):
        out = super().attention(q, k, v)
        room = self.rooms.setdefault(out.shape, torch.empty_like(out, requires_grad=False))
        return Pair.apply(out, lambda x: room.copy_(x).detach(), lambda dy: dy)


class Gathered(Ulysses):
    """Keys and values of all tokens to everybody, by all-to-alls."""

    def attention(self, q, k, v):
        send = [k.shape[2]] * self.N

        def gather(x):
            rows = x.permute(2, 0, 1, 3).flatten(1)
            came = self.send(rows.repeat(self.N, 1), send, self.lengths)
            return came.view(-1, *x.shape[:2], x.shape[3]).permute(1, 2, 0, 3)

        def back(dy):
            rows = dy.permute(2, 0, 1, 3).flatten(1)
            came = self.send(rows, self.lengths, send).view(self.N, -1, *dy.shape[:2], dy.shape[3])
            return came.sum(0).permute(1, 2, 0, 3)

        k, v = (Pair.apply(x, gather, back) for x in (k, v))
        places = (self.layout[self.rank], self.places()[0]) if self.causal else ()
        return attend(q, k, v, *places).out


def by_an_all_gather(
    q, k, v, layout, group=None, all_to_all=collectives.all_to_all, *, causal=True
):
    return libs.gathered_attention(q, k, v, layout, group, causal=causal)


def calls_libs(q, k, v, layout, group=None, all_to_all=collectives.all_to_all, *, causal=True):
    return libs.ulysses_attention(q, k, v, layout, group, all_to_all, causal=causal)


def not_yet(q, k, v, layout, group=None, all_to_all=collectives.all_to_all, *, causal=True):
    raise NotImplementedError


RIGHT = [answer(Ulysses), answer(AllInOne), answer(InOrder), as_an_answer(libs.ulysses_attention)]
WRONG = {
    answer(TokensAsTheyStand): "the order of the tokens",
    answer(NotTransposed): "elements in the wrong order",
    answer(NoWayBack): "no way back",
    answer(BackTheSameWay): "no way back",
    answer(OfTheResultTheSameWay): "no way back",
    answer(BackWithoutAnExchange): "no way back",
    answer(TheFirstHeadForAll): "fewer key/value heads than ranks",
    answer(OneCopyLearns): "a head that several ranks read",
    answer(Gathered): "keys gathered",
    answer(AsTheyCome): "elements in the wrong order",
    answer(EveryHeadThere): "heads repeated more than is needed",
    answer(EqualShards): "shards differ in length",
    answer(Forgotten): "the group is not passed on",
    answer(WorldsRank): "ranks of the world, not of the group",
    answer(AsManyAsInTheWorld): "counts",
    answer(OnTheClass): "shared by two calls",
    answer(InSingle): "rounded on the way",
    answer(BackInSingle): "rounded on the way",
    answer(Imported): "not what it was given",
    answer(ImportedForTheWayBack): "not what it was given",
    answer(Twice): "more than is needed",
    answer(Unseen): "without a backward",
    answer(AnotherForm): "another shape",
    answer(AloneOneHead): "one rank alone",
    answer(InPlace): "changed what it was given",
    answer(RankZeroWaits): "not on every rank",
    answer(OneBuffer): "used again by a later call",
    answer(WaitsForAll): "not what it was given",
    by_an_all_gather: "called what it builds",
    calls_libs: "called what it builds",
    not_yet: "not written",
}
