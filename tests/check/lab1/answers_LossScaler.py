"""Answers to Lab 1's LossScaler: wrong ones, each with the hint that it must get, and right ones.

The wrong ones differ from `ByMethods`, a right one, in one method.
"""

import copy

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import backend, collectives
from lib.training.precision import loss_scaler


def flag(value):
    return torch.tensor([float(value)], device=backend.device())


class ByMethods:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, growth_interval=2000):
        self.scale, self.growth, self.backoff, self.growth_interval = (
            scale,
            growth,
            backoff,
            growth_interval,
        )
        self.good = 0

    def scale_loss(self, loss):
        return loss * self.scale

    def gradients(self, optimizer):
        return [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]

    def overflowed(self, gradient):
        return not gradient.isfinite().all()

    def here(self, optimizer):
        return any(self.overflowed(gradient) for gradient in self.gradients(optimizer))

    def anywhere(self, here, group, all_reduce):
        votes = flag(here)
        all_reduce(votes, group)
        return votes.item() > 0

    def step(self, optimizer, group=None, all_reduce=collectives.all_reduce):
        if self.anywhere(self.here(optimizer), group, all_reduce):
            return self.skip(optimizer)
        self.unscale(optimizer)
        optimizer.step()
        self.grow()
        return True

    def skip(self, optimizer):
        self.scale *= self.backoff
        self.good = 0
        return False

    def unscale(self, optimizer):
        for gradient in self.gradients(optimizer):
            gradient /= self.scale

    def grow(self):
        self.good += 1
        if self.good == self.growth_interval:
            self.scale *= self.growth
            self.good = 0


# wrong


def returns_libs(*args):
    return loss_scaler.LossScaler(*args)


class InheritsLibs(loss_scaler.LossScaler):
    pass


class ScalesANumber(ByMethods):
    def scale_loss(self, loss):
        return loss.item() * self.scale


class StepsAndRestores(ByMethods):
    def step(self, optimizer, group=None, all_reduce=collectives.all_reduce):
        if not self.anywhere(self.here(optimizer), group, all_reduce):
            self.unscale(optimizer)
            optimizer.step()
            self.grow()
            return True
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        before, state = (
            [p.detach().clone() for p in parameters],
            copy.deepcopy(optimizer.state_dict()),
        )
        optimizer.step()
        optimizer.load_state_dict(state)
        for p, value in zip(parameters, before, strict=True):
            p.data.copy_(value)
        return self.skip(optimizer)


class LooksAtTheLoss(ByMethods):
    def scale_loss(self, loss):
        self.loss = loss * self.scale
        return self.loss

    def here(self, optimizer):
        return self.overflowed(self.loss)


class OneFineRankIsEnough(ByMethods):
    def anywhere(self, here, group, all_reduce):
        fine = flag(not here)
        all_reduce(fine, group)
        return fine.item() == 0


class ExpectsOneVote(ByMethods):
    """As if all_reduce took the minimum."""

    def anywhere(self, here, group, all_reduce):
        fine = flag(not here)
        all_reduce(fine, group)
        return fine.item() != 1


class StepsOnZeros(ByMethods):
    """Not the optimizer is left out, but the gradients: momentum moves on."""

    def skip(self, optimizer):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        return super().skip(optimizer)


class LowersItsOwnScale(ByMethods):
    """The ranks skip together, but only the one that overflowed lowers its scale."""

    def here(self, optimizer):
        self.mine = super().here(optimizer)
        return self.mine

    def skip(self, optimizer):
        self.scale *= self.backoff if self.mine else 1
        self.good = 0
        return False


class OnePerGradient(ByMethods):
    def step(self, optimizer, group=None, all_reduce=collectives.all_reduce):
        found = [
            self.anywhere(self.overflowed(g), group, all_reduce) for g in self.gradients(optimizer)
        ]
        return super().step(optimizer, group, lambda tensor, _: tensor.fill_(any(found)))


class WithoutScale:
    def __init__(self, *numbers):
        self.inner = ByMethods(*numbers)
        self.scale_loss, self.step = self.inner.scale_loss, self.inner.step


class NotWritten(ByMethods):
    def step(self, optimizer, group=None, all_reduce=collectives.all_reduce):
        raise NotImplementedError


# right


class InOnePiece:
    """Counts finite ranks; unscales by a product with 1/S, into new gradients;
    counts down to growth."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, growth_interval=2000):
        self.scale, self.factors, self.interval, self.left = (
            scale,
            (growth, backoff),
            growth_interval,
            growth_interval,
        )

    def scale_loss(self, loss):
        return self.scale * loss

    def step(self, optimizer, group=None, all_reduce=collectives.all_reduce):
        used = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        sums = torch.stack([(p.grad * 0).sum() for p in used]).sum()  # inf * 0 and nan * 0 are nan
        fine = (sums == 0).long().reshape(1)
        all_reduce(fine, group)
        all_fine = fine.item() == dist.get_world_size(group)
        if all_fine:
            for p in used:
                p.grad = p.grad * (1 / self.scale)
            optimizer.step()
            self.left -= 1
        else:
            self.scale, self.left = self.scale * self.factors[1], self.interval
        if self.left == 0:
            self.scale, self.left = self.scale * self.factors[0], self.interval
        return all_fine


WRONG = {
    returns_libs: "called what it builds",
    InheritsLibs: "called what it builds",
    ScalesANumber: "the loss is not scaled",
    StepsAndRestores: "steps in a skipped step",
    LooksAtTheLoss: "the loss is looked at",
    OneFineRankIsEnough: "the votes are added up wrongly",
    ExpectsOneVote: "the votes are added up wrongly",
    StepsOnZeros: "steps in a skipped step",
    LowersItsOwnScale: "ranks with different scales",
    OnePerGradient: "more than one number",
    WithoutScale: "no scale",
    NotWritten: "not written",
}

RIGHT = [ByMethods, InOnePiece, as_an_answer(loss_scaler.LossScaler)]
