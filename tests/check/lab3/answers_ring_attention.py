"""Answers to Lab 3's ring_attention: wrong ones, each with the hint that it must
get, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib.collectives import p2p
from lib.tensor_parallel import ring_attention as libs
from lib.tensor_parallel.online_softmax import Attended, attend, attend_backward, merge_attention


class Ring:
    """The answer in parts, each of which a wrong answer may do otherwise."""

    def __init__(self, k, layout, causal, group):
        self.rank, self.cp = dist.get_rank(group), dist.get_world_size(group)
        self.group, self.layout, self.causal = group, layout, causal
        self.shapes = [(2, *k.shape[:2], len(positions), k.shape[3]) for positions in layout]

    def owner(self, step):
        return (self.rank - step) % self.cp

    def places(self, owner):
        return (self.layout[self.rank], self.layout[owner]) if self.causal else ()

    def room(self, block, owner):
        return block.new_empty(self.shapes[owner - 1])

    def pass_on(self, block, owner):
        """The block of `owner` leaves to the right, that of owner - 1 comes."""
        right, left = (self.rank + 1) % self.cp, (self.rank - 1) % self.cp
        return p2p.send_recv(
            block.contiguous(), right, left, self.group, out=self.room(block, owner)
        )

    def pack(self, k, v):
        return torch.stack([k, v])

    def rounds(self):
        return self.cp - 1

    def forward(self, q, k, v):
        block, so_far = self.pack(k, v), None
        for step in range(self.cp):
            owner = self.owner(step)
            part = attend(q, *block, *self.places(owner))
            so_far = part if so_far is None else merge_attention(so_far, part)
            if step < self.rounds():
                block = self.pass_on(block, owner)
        return so_far

    def part_of(self, q, block, whole, d_out, owner):
        d_q, *d_kv = attend_backward(q, *block, whole, d_out, *self.places(owner))
        return d_q, torch.stack(d_kv)

    def backward(self, q, k, v, whole, d_out):
        block, passing, d_q = torch.stack([k, v]), None, torch.zeros_like(q)
        for step in range(self.cp):
            owner = self.owner(step)
            d_q_part, d_kv = self.part_of(q, block, whole, d_out, owner)
            d_q += d_q_part
            if step == 0:
                own = d_kv
            else:
                passing = self.pass_on(d_kv if passing is None else passing + d_kv, owner)
            if step < self.cp - 1:
                block = self.pass_on(block, owner)
        return d_q, *(own if passing is None else own + passing)


def answer(how, name=None):
    """ring_attention of a Ring with some of its parts replaced."""

    def ring_attention(q, k, v, layout, group=None, *, causal=True):
        ring = how(k, layout, causal, group)

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v):
                whole = ring.forward(q, k, v)
                ctx.save_for_backward(q, k, v, *whole)
                return whole.out

            @staticmethod
            def backward(ctx, d_out):
                q, k, v, *whole = ctx.saved_tensors
                return ring.backward(q, k, v, Attended(*whole), d_out)

        return Function.apply(q, k, v)

    ring_attention.__name__ = name or how.__name__
    return ring_attention


class StepByStep(Ring):
    """Right: messages one after the other, even ranks first; k and v each by itself."""

    def pass_on(self, block, owner):
        out = self.room(block, owner)
        for one, room in zip(block.unbind(0), out.unbind(0), strict=True):
            if self.cp > 1:
                room.copy_(p2p.send_recv(one.contiguous(), (self.rank + 1) % self.cp,
                    (self.rank - 1) % self.cp,
                                         self.group, out=torch.empty_like(room)))  # fmt: skip
        return out


class OverNoKey(Ring):
    """Right: begins with attention over no key, and skips what no query sees."""

    def forward(self, q, k, v):
        block, so_far = (
            torch.stack([k, v]),
            Attended(torch.zeros_like(q), q.new_full(q.shape[:-1], -torch.inf)),
        )
        for step in range(self.cp):
            owner = self.owner(step)
            if not self.causal or self.layout[owner][0] <= self.layout[self.rank][-1]:
                so_far = merge_attention(so_far, attend(q, *block, *self.places(owner)))
            if step < self.cp - 1:
                block = self.pass_on(block, owner)
        return so_far


class ToTheLeft(Ring):
    def owner(self, step):
        return (self.rank + step) % self.cp

    def room(self, block, owner):
        return block.new_empty(self.shapes[(owner + 1) % self.cp])

    def pass_on(self, block, owner):
        right, left = (self.rank + 1) % self.cp, (self.rank - 1) % self.cp
        return p2p.send_recv(
            block.contiguous(), left, right, self.group, out=self.room(block, owner)
        )


class TheOtherWayRound(Ring):
    def places(self, owner):
        return super().places((2 * self.rank - owner) % self.cp)


class MaskOfItsOwn(Ring):
    def places(self, owner):
        return super().places(self.rank)


class ABlockTooFew(Ring):
    def forward(self, q, k, v):
        block, so_far = torch.stack([k, v]), None
        for step in range(self.cp):
            owner = self.owner(step)
            if step < max(1, self.cp - 1):
                part = attend(q, *block, *self.places(owner))
                so_far = part if so_far is None else merge_attention(so_far, part)
            if step < self.cp - 1:
                block = self.pass_on(block, owner)
        return so_far


class OutputsAveraged(Ring):
    def weight(self):
        return 1 / self.cp

    def forward(self, q, k, v):
        block, out, log_sum = torch.stack([k, v]), 0, None
        for step in range(self.cp):
            owner = self.owner(step)
            part = attend(q, *block, *self.places(owner))
            out, log_sum = out + part.out * self.weight(), part.log_sum
            if step < self.cp - 1:
                block = self.pass_on(block, owner)
        return Attended(out, log_sum)


class OutputsAdded(OutputsAveraged):
    def weight(self):
        return 1


class OnceMoreRound(Ring):
    def rounds(self):
        return self.cp


class RepeatedHeads(Ring):
    def pack(self, k, v):
        block = torch.stack([k, v])
        return block.repeat_interleave(self.share, 2)

    def forward(self, q, k, v):
        self.share, kept = q.shape[1] // k.shape[1], self.shapes
        self.shapes = [(2, q.shape[0], q.shape[1], *shape[3:]) for shape in kept]
        whole = super().forward(q, k, v)
        self.shapes = kept
        return whole


class ShapeOfItsOwn(Ring):
    def room(self, block, owner):
        return torch.empty_like(block)


class SinglePrecision(Ring):
    def pack(self, k, v):
        return torch.stack([k, v]).float().double()


class SinglePrecisionBack(Ring):
    def part_of(self, *args):
        return tuple(x.float().double() for x in super().part_of(*args))


class WorldsRanks(Ring):
    def __init__(self, k, layout, causal, group):
        super().__init__(k, layout, causal, None)


class StaysAway(Ring):
    """Gradients of k and v by one's own queries alone."""

    def backward(self, q, k, v, whole, d_out):
        d_q, *_ = super().backward(q, k, v, whole, d_out)
        return d_q, *self.part_of(q, torch.stack([k, v]), whole, d_out, self.rank)[1]


class OwnKeysAlone(Ring):
    def backward(self, q, k, v, whole, d_out):
        _, *d_kv = super().backward(q, k, v, whole, d_out)
        return self.part_of(q, torch.stack([k, v]), whole, d_out, self.rank)[0], *d_kv


class BlocksOwnSum(Ring):
    """Backward of each block as if there were no other."""

    def part_of(self, q, block, whole, d_out, owner):
        part = attend(q, *block, *self.places(owner))
        safe = Attended(part.out, part.log_sum.masked_fill(part.log_sum == -torch.inf, 0.0))
        return super().part_of(q, block, safe, d_out, owner)


class WithoutThePositions(Ring):
    def part_of(self, q, block, whole, d_out, owner):
        d_q, *d_kv = attend_backward(q, *block, whole, d_out)
        return d_q, torch.stack(d_kv)


class WithoutModulo(Ring):
    def owner(self, step):
        return self.rank + self.cp - step


class OwnPartForgotten(Ring):
    def backward(self, q, k, v, whole, d_out):
        d_q, *d_kv = super().backward(q, k, v, whole, d_out)
        return d_q, *(
            torch.stack(d_kv) - self.part_of(q, torch.stack([k, v]), whole, d_out, self.rank)[1]
        )


class PastHome(Ring):
    def backward(self, q, k, v, whole, d_out):
        d_q, *d_kv = super().backward(q, k, v, whole, d_out)
        return d_q, *self.pass_on(torch.stack(d_kv), self.rank)


class Averaged(Ring):
    def backward(self, *args):
        return tuple(x / self.cp for x in super().backward(*args))


class OwnTravelsToo(Ring):
    def backward(self, q, k, v, whole, d_out):
        block, passing, d_q = torch.stack([k, v]), None, torch.zeros_like(q)
        for step in range(self.cp):
            owner = self.owner(step)
            d_q_part, d_kv = self.part_of(q, block, whole, d_out, owner)
            d_q += d_q_part
            passing = self.pass_on(d_kv if passing is None else passing + d_kv, owner)
            if step < self.cp - 1:
                block = self.pass_on(block, owner)
        return d_q, *passing


class AnotherForm(Ring):
    def forward(self, q, k, v):
        whole = super().forward(q, k, v)
        return Attended(whole.out.transpose(2, 3).contiguous(), whole.log_sum)


class OneRankForgotten(Ring):
    def backward(self, q, k, v, whole, d_out):
        return tuple(x * (self.cp > 1) for x in super().backward(q, k, v, whole, d_out))


def all_keys_first(q, k, v, layout, group=None, *, causal=True):
    """Attention with K and V gathered, in a ring of messages; backward in the same way."""
    ring = Ring(k, layout, causal, group)
    everything = [position for owner in range(ring.cp) for position in layout[owner]]
    places = (layout[ring.rank], everything) if causal else ()

    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            blocks = {ring.rank: torch.stack([k, v])}
            for step in range(ring.cp - 1):
                owner = ring.owner(step)
                blocks[(owner - 1) % ring.cp] = ring.pass_on(blocks[owner], owner)
            whole = attend(q, *torch.cat([blocks[owner] for owner in range(ring.cp)], 3), *places)
            ctx.save_for_backward(q, k, v, *whole)
            return whole.out

        @staticmethod
        def backward(ctx, d_out):
            q, k, v, *whole = ctx.saved_tensors
            return ring.backward(q, k, v, Attended(*whole), d_out)

    return Gathered.apply(q, k, v)


class Hop(torch.autograd.Function):
    """A block to the right; in backward its gradient to the left."""

    @staticmethod
    def forward(ctx, block, ring, owner):
        ctx.ring, ctx.owner = ring, owner
        return ring.pass_on(block, owner)

    @staticmethod
    def backward(ctx, d_block):
        ring = ctx.ring
        right, left = (ring.rank + 1) % ring.cp, (ring.rank - 1) % ring.cp
        out = d_block.new_empty(ring.shapes[ctx.owner])
        return p2p.send_recv(d_block.contiguous(), left, right, ring.group, out=out), None, None


def by_autograd(q, k, v, layout, group=None, *, causal=True):
    """Right numbers, but autograd keeps every block and its scores."""
    ring = Ring(k, layout, causal, group)
    block, so_far = torch.stack([k, v]), None
    for step in range(ring.cp):
        owner = ring.owner(step)
        part = attend(q, *block, *ring.places(owner))
        so_far = part if so_far is None else merge_attention(so_far, part)
        if step < ring.cp - 1:
            block = Hop.apply(block, ring, owner)
    return so_far.out


LAST = {}


def on_a_global(q, k, v, layout, group=None, *, causal=True):
    LAST["ring"] = Ring(k, layout, causal, group)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            whole = LAST["ring"].forward(q, k, v)
            ctx.save_for_backward(q, k, v, *whole)
            return whole.out

        @staticmethod
        def backward(ctx, d_out):
            q, k, v, *whole = ctx.saved_tensors
            return LAST["ring"].backward(q, k, v, Attended(*whole), d_out)

    return Function.apply(q, k, v)


@torch.no_grad()
def without_backward(q, k, v, layout, group=None, *, causal=True):
    return Ring(k, layout, causal, group).forward(q, k, v).out


def scales_q_in_place(q, k, v, layout, group=None, *, causal=True):
    out = answer(Ring)(q.clone(), k, v, layout, group, causal=causal)
    q.data.mul_(1.0 / q.shape[-1] ** 0.5)
    return out


class SendFirst(Ring):
    def pass_on(self, block, owner):
        out = self.room(block, owner)
        if self.cp > 1:
            p2p.send(block.contiguous(), (self.rank + 1) % self.cp, self.group)
            p2p.recv(out, (self.rank - 1) % self.cp, self.group)
        return out


def calls_libs(q, k, v, layout, group=None, *, causal=True):
    return libs.ring_attention(q, k, v, layout, group, causal=causal)


def not_yet(q, k, v, layout, group=None, *, causal=True):
    raise NotImplementedError


RIGHT = [answer(Ring), answer(StepByStep), answer(OverNoKey), as_an_answer(libs.ring_attention)]
WRONG = {
    answer(ABlockTooFew): "one block, not all",
    answer(TheOtherWayRound): "whose keys these are",
    answer(StaysAway): "gradients that stay away",
    by_autograd: "all keys kept",
    answer(OwnTravelsToo): "a hop more than is needed",
    answer(RepeatedHeads): "heads repeated before they are sent",
    all_keys_first: "scores of all keys",
    answer(OutputsAveraged): "parts not merged",
    answer(OutputsAdded): "parts not merged",
    answer(MaskOfItsOwn): "whose keys these are",
    answer(OwnKeysAlone): "queries without some keys",
    answer(BlocksOwnSum): "each block by itself",
    answer(WithoutThePositions): "backward without the positions",
    answer(WithoutModulo): "ranks of the world, not of the group",
    answer(OwnPartForgotten): "its own part forgotten",
    answer(PastHome): "gradients of keys and values",
    answer(Averaged): "gradients divided",
    answer(OnceMoreRound): "a hop more than is needed",
    answer(ToTheLeft): "not the neighbour",
    answer(AnotherForm): "another shape",
    answer(SinglePrecision): "rounded on the way",
    answer(SinglePrecisionBack): "rounded on the way",
    answer(ShapeOfItsOwn): "shards differ in length",
    answer(WorldsRanks): "ranks of the world, not of the group",
    answer(SendFirst): "everyone sends first",
    on_a_global: "shared by two calls",
    answer(OneRankForgotten): "one rank alone",
    without_backward: "without a backward",
    scales_q_in_place: "changed what it was given",
    calls_libs: "called what it builds",
    not_yet: "not written",
}
