"""Answers to Lab 4's Zero1: wrong ones, each with the hint that it must get, and right ones.

The wrong ones are `OneLine`, a right one, but for a method or two; edits of lib's are in the
exercise's MISTAKES.
"""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives
from lib.zero import Zero1 as LibsZero1
from lib.zero import padded_size


class OneLine:
    """The parameters are views of `full`, the shard too."""

    def __init__(
        self, parameters, make_optimizer, group=None,
        reduce_scatter=collectives.reduce_scatter, all_gather=collectives.all_gather,
    ):  # fmt: skip
        self.group, self.reduce_scatter, self.all_gather = group, reduce_scatter, all_gather
        self.parameters, self.make_optimizer = (
            [p for p in parameters if p.requires_grad],
            make_optimizer,
        )
        self.rank, self.N = dist.get_rank(group), dist.get_world_size(group)
        self.n = sum(p.numel() for p in self.parameters)
        self.full = self.parameters[0].new_zeros(self.length())
        for p, piece in self.pieces(self.full):
            piece.copy_(p.detach())
            self.attach(p, piece)
        self.shard = self.cut()
        self.optimizer = self.make()

    def length(self):
        return padded_size(self.n, self.N)

    def pieces(self, line):
        begin = 0
        for p in self.parameters:
            yield p, line[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()

    def attach(self, p, piece):
        p.data = piece

    def cut(self):
        return self.full.chunk(self.N)[self.rank].detach().requires_grad_()

    def make(self):
        return self.make_optimizer([self.shard])

    def line(self):
        line = torch.zeros_like(self.full)
        for p, piece in self.pieces(line):
            if p.grad is not None:
                piece.copy_(p.grad)
            p.grad = None
        return line

    def flatten_gradients(self):
        return self.line() / self.N

    def mean(self):
        return self.reduce_scatter(self.flatten_gradients(), self.group)

    def add_gradient(self, mean):
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean

    def average_gradients(self):
        self.add_gradient(self.mean())

    def update(self):
        self.optimizer.step()

    def gathered(self):
        return self.all_gather(self.shard.detach(), self.group)

    def fill(self, line):
        self.full.copy_(line)

    @torch.no_grad()
    def step(self):
        self.update()
        self.fill(self.gathered())


def but(name, **methods):
    """OneLine with these methods."""
    return type(name, (OneLine,), methods)


# right


class CopiesBack:
    """No line but that of the moment: the shard is a tensor of its own, and
    parameters are copied back."""

    def __init__(
        self, parameters, make_optimizer, group=None,
        reduce_scatter=collectives.reduce_scatter, all_gather=collectives.all_gather,
    ):  # fmt: skip
        self.group, self.reduce_scatter, self.all_gather = group, reduce_scatter, all_gather
        self.trained = [p for p in parameters if p.requires_grad]
        mine = self.lined_up([p.detach() for p in self.trained])
        self.shard = torch.nn.Parameter(
            mine.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()
        )
        self.optimizer = make_optimizer([{"params": [self.shard]}])

    def lined_up(self, tensors):
        line = torch.cat([t.reshape(-1) for t in tensors])
        return torch.nn.functional.pad(line, (0, -len(line) % dist.get_world_size(self.group)))

    def flatten_gradients(self):
        line = self.lined_up(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        )
        for p in self.trained:
            p.grad = None
        return line / dist.get_world_size(self.group)

    def add_gradient(self, mean):
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean

    def average_gradients(self):
        self.add_gradient(self.reduce_scatter(self.flatten_gradients(), self.group))

    def step(self):
        self.optimizer.step()
        line = self.all_gather(self.shard.data, self.group)
        with torch.no_grad():
            for p in self.trained:
                p.copy_(line[: p.numel()].view_as(p))
                line = line[p.numel() :]


class FromTheLastOn(OneLine):
    """The last parameter stands first; what is gathered lands in the line at once; alone it
    sends nothing."""

    def pieces(self, line):
        end = self.n
        for p in self.parameters:
            yield p, line[end - p.numel() : end].view(p.shape)
            end -= p.numel()

    def gathered(self):
        return self.all_gather(self.shard, self.group, out=self.full) if self.N > 1 else self.full


# wrong


def returns_libs(*args, **named):
    return LibsZero1(*args, **named)


class InheritsLibs(LibsZero1):
    pass


class NothingToSend(OneLine):
    """A rank without gradients returns early."""

    def average_gradients(self):
        if any(p.grad is not None for p in self.parameters):
            super().average_gradients()


class NoneIsNoGradient(OneLine):
    def line(self):
        line = torch.zeros_like(self.full)
        for p, piece in self.pieces(line):
            piece.copy_(p.grad)
            p.grad = None
        return line


class OnTheClass(OneLine):
    def attach(self, p, piece):
        super().attach(p, piece)
        type(self).newest = self.full

    def fill(self, line):
        self.newest.copy_(line)


class OverwritesInAHook(OneLine):
    """Takes each gradient out of .grad as it comes, and replaces what was there."""

    def attach(self, p, piece):
        super().attach(p, piece)
        self.taken = {}
        p.register_post_accumulate_grad_hook(self.take)

    def take(self, p):
        self.taken[p], p.grad = p.grad, None

    def line(self):
        for p, gradient in self.taken.items():
            p.grad = gradient
        self.taken = {}
        return super().line()


class KeepsItsLine(OneLine):
    """The line of gradients is made once: what a rank did not use is still there
    from the step before."""

    kept = None

    def line(self):
        self.kept = torch.zeros_like(self.full) if self.kept is None else self.kept
        for p, piece in self.pieces(self.kept):
            if p.grad is not None:
                piece.copy_(p.grad)
            p.grad = None
        return self.kept


class FrozenToo(OneLine):
    def __init__(self, parameters, *args, **named):
        parameters = list(parameters)
        frozen = [p.requires_grad_() for p in parameters if not p.requires_grad]
        super().__init__(parameters, *args, **named)
        for p in frozen:
            p.requires_grad_(False)


class OfTheWorld(OneLine):
    """The world's size and rank, in place of the group's."""

    N = property(lambda z: dist.get_world_size(), lambda z, N: None)
    rank = property(lambda z: dist.get_rank(), lambda z, rank: None)


class ReadsWhatItHasDropped(OneLine):
    def line(self):
        for p in self.parameters:
            p.grad = None
        return super().line()


class KeepsItsOwnPart(OneLine):
    def mean(self):
        line = self.line() / self.N
        self.reduce_scatter(line, self.group)
        return line.chunk(self.N)[self.rank].clone()


class KeepsTheLineOfGradients(OneLine):
    def line(self):
        self.kept = super().line()
        return self.kept


class PlacesDrift(OneLine):
    """What has no gradient takes no place."""

    def line(self):
        used = [p for p in self.parameters if p.grad is not None]
        line = torch.cat([p.grad.flatten() for p in used] + [self.full.new_zeros(0)])
        for p in used:
            p.grad = None
        return torch.nn.functional.pad(line, (0, len(self.full) - len(line)))


class LeavesGradients(OneLine):
    def line(self):
        gradients = [p.grad for p in self.parameters]
        line = super().line()
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient
        return line


class InTwoMessages(OneLine):
    def gathered(self):
        halves = self.shard.detach().tensor_split(2)
        return torch.cat(
            [self.all_gather(half, self.group).view(self.N, -1) for half in halves], 1
        ).flatten()


class GathersTheWholeLine(OneLine):
    def gathered(self):
        lines = self.all_gather(self.full, self.group).chunk(self.N)
        return torch.cat([line.chunk(self.N)[r] for r, line in enumerate(lines)])


class AGatherByTorch(OneLine):
    def gathered(self):
        shards = [torch.empty_like(self.shard) for _ in range(self.N)]
        dist.all_gather(shards, self.shard.detach(), group=self.group)
        return torch.cat(shards)


class InOnePiece(OneLine):
    """average_gradients() does it all."""

    flatten_gradients = property()

    def mean(self):
        return self.reduce_scatter(self.line() / self.N, self.group)


class HalfLeavesGradients(OneLine):
    """average_gradients() sets them to None, and flatten_gradients() alone does not."""

    def flatten_gradients(self):
        gradients = [p.grad for p in self.parameters]
        line = super().flatten_gradients()
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient
        return line

    def mean(self):
        return self.reduce_scatter(OneLine.flatten_gradients(self), self.group)


class GathersFirst(OneLine):
    @torch.no_grad()
    def step(self):
        self.fill(self.gathered())
        self.update()


class OptimizesTheParameters(OneLine):
    """The shard's optimizer is made, and then another one of all parameters."""

    def make(self):
        self.make_optimizer([self.shard])
        return self.make_optimizer(self.parameters)


class AlwaysPads(OneLine):
    """Also where N divides."""

    def length(self):
        return self.n + self.N - self.n % self.N


class PadsWithTheLast(OneLine):
    def flatten_gradients(self):
        line = super().flatten_gradients()
        line[self.n :] = line[self.n - 1]
        return line


class MeanOfThoseThatHave(OneLine):
    """Divided by the number of ranks that have a gradient, which all know."""

    def mean(self):
        line = self.line()
        used = self.reduce_scatter(line.any().to(line).repeat(self.N), self.group)
        return self.reduce_scatter(line / used.clamp(min=1), self.group)


class ClearsInStep(OneLine):
    def step(self):
        super().step()
        self.optimizer.zero_grad()


class CountsFrozen(OneLine):
    """Frozen parameters have room in the buffer."""

    def __init__(self, parameters, *args, **named):
        parameters = list(parameters)
        self.frozen = sum(p.numel() for p in parameters if not p.requires_grad)
        super().__init__(parameters, *args, **named)

    def length(self):
        return padded_size(self.n + self.frozen, self.N)


class NotWritten(OneLine):
    def step(self):
        raise NotImplementedError


WRONG = {
    GathersFirst: "gathered before the step",
    OptimizesTheParameters: "the full state",
    AlwaysPads: "a shard of another size",
    CountsFrozen: "a shard of another size",
    PadsWithTheLast: "padding with values",
    ClearsInStep: "cleared by step",
    MeanOfThoseThatHave: "a rank without gradients",
    returns_libs: "called what it builds",
    InheritsLibs: "called what it builds",
    but(
        "GathersOnRank0", gathered=lambda z: OneLine.gathered(z) if z.rank == 0 else z.full.clone()
    ): "not on every rank",
    NothingToSend: "not on every rank",
    NoneIsNoGradient: "a parameter without gradient",
    but(
        "RankOfTheWorld",
        cut=lambda z: z.full.chunk(z.N)[dist.get_rank() % z.N].detach().requires_grad_(),
    ): "ranks of the world, not of the group",
    OfTheWorld: "ranks of the world, not of the group",
    but(
        "DividesByTheWorld",
        mean=lambda z: z.reduce_scatter(z.line() / dist.get_world_size(), z.group),
    ): "ranks of the world, not of the group",
    but("NotPadded", length=lambda z: z.n): "the padding is missing",
    but(
        "MeanKeptElsewhere", add_gradient=lambda z, mean: setattr(z, "gradient", mean)
    ): "no gradient in the shard",
    but("OnlyGathers", update=lambda z: None): "the optimizer does not step",
    but("NotViews", attach=lambda z, p, piece: None): "the model does not see it",
    but("ANewLine", fill=lambda z, line: setattr(z, "full", line)): "the model does not see it",
    but(
        "ShardIsACopy",
        cut=lambda z: OneLine.cut(z).detach().clone().requires_grad_(),
        gathered=lambda z: z.all_gather(z.full.chunk(z.N)[z.rank], z.group),
    ): "the optimizer's shard is a copy",
    but(
        "OwnGradients", mean=lambda z: z.line().chunk(z.N)[z.rank].clone()
    ): "the ranks' gradients are not summed",
    but("NewOptimizerEachStep", update=lambda z: z.make().step()): "a new optimizer in each step",
    OnTheClass: "kept for all of the class",
    OverwritesInAHook: "only the last micro-batch",
    KeepsItsLine: "left over from the step before",
    PlacesDrift: "another offset in the buffer",
    but(
        "WholeState",
        cut=lambda z: z.full.detach().requires_grad_(),
        mean=lambda z: z.all_gather(OneLine.mean(z), z.group),
        gathered=lambda z: z.full.clone(),
    ): "the full state",
    but("PadsMore", length=lambda z: padded_size(z.n, 8 * z.N)): "a shard of another size",
    but(
        "AnotherName",
        make=lambda z: setattr(z, "inner", OneLine.make(z)),
        update=lambda z: z.inner.step(),
    ): "another name for the optimizer",
    LeavesGradients: "gradients not dropped",
    but(
        "DividesInStep",
        mean=lambda z: z.reduce_scatter(z.line(), z.group),
        update=lambda z: (z.shard.grad.div_(z.N), z.optimizer.step()),
    ): "no mean in the shard",
    but(
        "AllReduces",
        mean=lambda z: collectives.all_reduce(z.line() / z.N, z.group).chunk(z.N)[z.rank].clone(),
    ): "not the one it was given",
    AGatherByTorch: "not the one it was given",
    but(
        "GathersInFloat32", gathered=lambda z: z.all_gather(z.shard.detach().float(), z.group)
    ): "rounded on the way",
    InTwoMessages: "more than one message",
    GathersTheWholeLine: "other elements",
    but("LineOfFloat32", line=lambda z: OneLine.line(z).float()): "a buffer of another dtype",
    but(
        "ViewsOfFloat32", attach=lambda z, p, piece: setattr(p, "data", piece.float())
    ): "a buffer of another dtype",
    but(
        "GathersItsLine", gathered=lambda z: z.all_gather(z.full, z.group)[: len(z.full)]
    ): "other elements",
    but(
        "AveragesAgain", update=lambda z: (z.average_gradients(), z.optimizer.step())
    ): "gradients sent in step()",
    but(
        "ViewsOfZeros", attach=lambda z, p, piece: setattr(p, "data", piece.zero_())
    ): "values lost",
    but(
        "StepsByHand", update=lambda z: z.shard.data.sub_(z.shard.grad)
    ): "the optimizer does not step",
    but(
        "GathersGradients", gathered=lambda z: z.all_gather(z.shard.grad, z.group)
    ): "the gradient gathered",
    but(
        "MeanOfTheOthers", mean=lambda z: z.reduce_scatter(z.line() / max(1, z.N - 1), z.group)
    ): "not averaged",
    FrozenToo: "a frozen parameter",
    ReadsWhatItHasDropped: "gradients of zeros",
    KeepsItsOwnPart: "the ranks' gradients are not summed",
    KeepsTheLineOfGradients: "a full buffer is kept",
    InOnePiece: "its halves by themselves",
    but(
        "HalfIsTheSum", flatten_gradients=lambda z: z.line(), mean=lambda z: OneLine.mean(z) / z.N
    ): "its halves by themselves",
    HalfLeavesGradients: "its halves by themselves",
    but(
        "HalfSetsTheGradient", add_gradient=lambda z, mean: setattr(z.shard, "grad", mean)
    ): "its halves by themselves",
    NotWritten: "not written",
}

RIGHT = [OneLine, CopiesBack, FromTheLastOn, as_an_answer(LibsZero1)]
