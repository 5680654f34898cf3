"""Answers to Lab 4's Zero1: wrong ones, each with the hint that it must get, and right ones.

The wrong ones differ from `OneLine`, a right one, in one method.
"""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives
from lib.zero import Zero1 as LibsZero1
from lib.zero import padded_size


class OneLine:
    """The parameters are views of `whole`, the shard too."""

    def __init__(
        self, parameters, make_optimizer, group=None,
        reduce_scatter=collectives.reduce_scatter, all_gather=collectives.all_gather,
    ):  # fmt: skip
        self.group, self.reduce_scatter, self.all_gather = group, reduce_scatter, all_gather
        self.parameters, self.make_optimizer = [p for p in parameters if p.requires_grad], make_optimizer
        self.rank, self.N = self.who()
        self.n = sum(p.numel() for p in self.parameters)
        self.whole = self.parameters[0].new_zeros(self.length())
        for p, piece in self.pieces(self.whole):
            piece.copy_(p.detach())
            self.attach(p, piece)
        self.shard = self.cut()
        self.optimizer = self.make()

    def who(self):
        return dist.get_rank(self.group), dist.get_world_size(self.group)

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
        return self.whole.chunk(self.N)[self.rank].detach().requires_grad_()

    def make(self):
        return self.make_optimizer([self.shard])

    def line(self):
        line = torch.zeros_like(self.whole)
        for p, piece in self.pieces(line):
            if p.grad is not None:
                piece.copy_(p.grad)
            p.grad = None
        return line

    def average_gradients(self):
        self.shard.grad = self.reduce_scatter(self.line() / self.N, self.group)

    def step(self):
        self.optimizer.step()
        with torch.no_grad():
            self.whole.copy_(self.all_gather(self.shard.detach(), self.group))


# wrong


def returns_libs(*args, **named):
    return LibsZero1(*args, **named)


class InheritsLibs(LibsZero1):
    pass


class ForgetsTheGroup(OneLine):
    def average_gradients(self):
        self.shard.grad = self.reduce_scatter(self.line() / self.N)


class GathersOnRank0(OneLine):
    def step(self):
        self.optimizer.step()
        if self.rank == 0:
            self.whole.copy_(self.all_gather(self.shard.detach(), self.group))


class NoneIsNoGradient(OneLine):
    def line(self):
        line = torch.zeros_like(self.whole)
        for p, piece in self.pieces(line):
            piece.copy_(p.grad)
            p.grad = None
        return line


class RankOfTheWorld(OneLine):
    def cut(self):
        return self.whole.chunk(self.N)[dist.get_rank() % self.N].detach().requires_grad_()


class DividesByTheWorld(OneLine):
    def average_gradients(self):
        self.shard.grad = self.reduce_scatter(self.line() / dist.get_world_size(), self.group)


class NotPadded(OneLine):
    def length(self):
        return self.n


class MeanKeptElsewhere(OneLine):
    def average_gradients(self):
        self.gradient = self.reduce_scatter(self.line() / self.N, self.group)


class OnlyGathers(OneLine):
    def step(self):
        self.whole.copy_(self.all_gather(self.shard.detach(), self.group))


class NotViews(OneLine):
    def attach(self, p, piece):
        pass


class ANewLine(OneLine):
    def step(self):
        self.optimizer.step()
        self.whole = self.all_gather(self.shard.detach(), self.group)


class ShardIsACopy(OneLine):
    def cut(self):
        return super().cut().detach().clone().requires_grad_()

    def step(self):
        self.optimizer.step()
        self.whole.copy_(self.all_gather(self.whole.chunk(self.N)[self.rank], self.group))


class GathersFirst(OneLine):
    def step(self):
        self.whole.copy_(self.all_gather(self.shard.detach(), self.group))
        self.optimizer.step()


class DoesNotGather(OneLine):
    def step(self):
        self.optimizer.step()


class OwnGradients(OneLine):
    def average_gradients(self):
        self.shard.grad = self.line().chunk(self.N)[self.rank].clone()


class AveragesTwice(OneLine):
    def average_gradients(self):
        self.shard.grad = self.reduce_scatter(self.line() / self.N, self.group) / self.N


class Sums(OneLine):
    def average_gradients(self):
        self.shard.grad = self.reduce_scatter(self.line(), self.group)


class NewOptimizerEachStep(OneLine):
    def step(self):
        self.optimizer = self.make()
        super().step()


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
    """The line of gradients is made once: what a rank did not use is still there from the step before."""

    def make(self):
        self.gradients = torch.zeros_like(self.whole)
        return super().make()

    def line(self):
        for p, piece in self.pieces(self.gradients):
            if p.grad is not None:
                piece.copy_(p.grad)
            p.grad = None
        return self.gradients


class PlacesDrift(OneLine):
    """What has no gradient takes no place."""

    def line(self):
        line, begin = torch.zeros_like(self.whole), 0
        for p in self.parameters:
            if p.grad is not None:
                line[begin : begin + p.numel()] = p.grad.flatten()
                begin += p.numel()
            p.grad = None
        return line


class WholeState(OneLine):
    def cut(self):
        return self.whole.detach().requires_grad_()

    def average_gradients(self):
        mean = self.reduce_scatter(self.line() / self.N, self.group)
        self.shard.grad = self.all_gather(mean, self.group)

    def step(self):
        self.optimizer.step()


class GivesParameters(OneLine):
    """A plain optimizer, after an all-reduce."""

    def make(self):
        return self.make_optimizer(self.parameters)

    def average_gradients(self):
        line = self.all_gather(self.reduce_scatter(self.line() / self.N, self.group), self.group)
        for p, piece in self.pieces(line):
            p.grad = piece

    def step(self):
        self.optimizer.step()


class PadsMore(OneLine):
    """A multiple of 8 for each rank."""

    def length(self):
        return padded_size(self.n, 8 * self.N)


class LeavesGradients(OneLine):
    def line(self):
        line = torch.zeros_like(self.whole)
        for p, piece in self.pieces(line):
            if p.grad is not None:
                piece.copy_(p.grad)
        return line


class DividesInStep(OneLine):
    def average_gradients(self):
        self.shard.grad = self.reduce_scatter(self.line(), self.group)

    def step(self):
        self.shard.grad /= self.N
        super().step()


class LibsOwn(OneLine):
    def average_gradients(self):
        self.shard.grad = collectives.reduce_scatter(self.line() / self.N, self.group)


class AllReduces(OneLine):
    def average_gradients(self):
        line = collectives.all_reduce(self.line() / self.N, self.group)
        self.shard.grad = line.chunk(self.N)[self.rank].clone()


class AGatherByTorch(OneLine):
    def step(self):
        self.optimizer.step()
        shards = [torch.empty_like(self.shard) for _ in range(self.N)]
        dist.all_gather(shards, self.shard.detach(), group=self.group)
        self.whole.copy_(torch.cat(shards))


class InTwoMessages(OneLine):
    def step(self):
        self.optimizer.step()
        half = len(self.shard) // 2
        first = self.all_gather(self.shard.detach()[:half], self.group).view(self.N, -1)
        second = self.all_gather(self.shard.detach()[half:], self.group).view(self.N, -1)
        self.whole.copy_(torch.cat([first, second], 1).flatten())


class GathersTheWholeLine(OneLine):
    def step(self):
        self.optimizer.step()
        lines = self.all_gather(self.whole, self.group).chunk(self.N)
        self.whole.copy_(torch.cat([line.chunk(self.N)[r] for r, line in enumerate(lines)]))


class NotWritten(OneLine):
    def step(self):
        raise NotImplementedError


# right


class CopiesBack:
    """No line but that of the moment: the shard is a tensor of its own, and parameters are copied back."""

    def __init__(
        self, parameters, make_optimizer, group=None,
        reduce_scatter=collectives.reduce_scatter, all_gather=collectives.all_gather,
    ):  # fmt: skip
        self.group, self.reduce_scatter, self.all_gather = group, reduce_scatter, all_gather
        self.trained = [p for p in parameters if p.requires_grad]
        mine = self.lined_up([p.detach() for p in self.trained])
        self.shard = torch.nn.Parameter(mine.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone())
        self.optimizer = make_optimizer([{"params": [self.shard]}])

    def lined_up(self, tensors):
        line = torch.cat([t.reshape(-1) for t in tensors])
        return torch.nn.functional.pad(line, (0, -len(line) % dist.get_world_size(self.group)))

    def average_gradients(self):
        line = self.lined_up([torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained])
        for p in self.trained:
            p.grad = None
        mean = self.reduce_scatter(line, self.group) / dist.get_world_size(self.group)
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad + mean

    def step(self):
        self.optimizer.step()
        line = self.all_gather(self.shard.data, self.group)
        with torch.no_grad():
            for p in self.trained:
                p.copy_(line[: p.numel()].view_as(p))
                line = line[p.numel() :]


class FromTheLastOn(OneLine):
    """The last parameter stands first; what is gathered lands in the line at once."""

    def pieces(self, line):
        end = self.n
        for p in self.parameters:
            yield p, line[end - p.numel() : end].view(p.shape)
            end -= p.numel()

    def step(self):
        self.optimizer.step()
        self.all_gather(self.shard, self.group, out=self.whole)


WRONG = {
    returns_libs: "called what it builds",
    InheritsLibs: "called what it builds",
    ForgetsTheGroup: "the group is not passed on",
    GathersOnRank0: "not on every rank",
    NoneIsNoGradient: "a parameter without gradient",
    RankOfTheWorld: "ranks of the world, not of the group",
    DividesByTheWorld: "ranks of the world, not of the group",
    NotPadded: "the padding is missing",
    MeanKeptElsewhere: "no gradient in the shard",
    OnlyGathers: "the optimizer does not step",
    NotViews: "the model does not see it",
    ANewLine: "the model does not see it",
    ShardIsACopy: "the optimizer's shard is a copy",
    GathersFirst: "gathered before the step",
    DoesNotGather: "not gathered",
    OwnGradients: "the ranks' gradients are not summed",
    AveragesTwice: "averaged twice",
    Sums: "not averaged",
    NewOptimizerEachStep: "a new optimizer in each step",
    OverwritesInAHook: "only the last micro-batch",
    KeepsItsLine: "left over from the step before",
    PlacesDrift: "another place in the line",
    WholeState: "the whole state",
    GivesParameters: "the whole state",
    PadsMore: "a shard of another size",
    LeavesGradients: "gradients not dropped",
    DividesInStep: "no mean in the shard",
    LibsOwn: "not the one it was given",
    AllReduces: "not the one it was given",
    AGatherByTorch: "not the one it was given",
    InTwoMessages: "more than one message",
    GathersTheWholeLine: "other elements",
    NotWritten: "not written",
}

RIGHT = [OneLine, CopiesBack, FromTheLastOn, as_an_answer(LibsZero1)]
