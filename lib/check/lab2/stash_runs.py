"""PipeDream with a student's stash on ranks, and the same mini-batches in one process.

    p = 2    5 mini-batches, ranks 1 and 3
    p = 4    8 mini-batches, ranks 0 to 3

Of each rank: the first thing that is wrong, how many versions there were, whether the weights moved in memory.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lib.check.framework import Problem
from lib.check.lab2.stash_watched import Watched, copied
from lib.pipeline.asynchronous import PipeDream

WORLD = 4
SAY = "p = 2, 4"


@dataclass(frozen=True)
class Case:
    """n mini-batches through p stages on these global ranks."""

    members: tuple[int, ...]
    n: int

    @property
    def p(self) -> int:
        return len(self.members)

    @property
    def name(self) -> str:
        """Also the label of the case's section in the ledger."""
        return f"p = {self.p}, {self.n} mini-batches"


CASES = [Case((1, 3), 5), Case((0, 1, 2, 3), 8)]


def run(case, stash_class, links):
    """What this rank saw of a case, plain data."""
    p, i = case.p, links.rank
    made, (xs, targets) = stages(p), minibatches(case.n)
    watched = []

    def stash(weights):
        watched.append(Watched(f"{case.name}, stage {i}", stash_class, weights))
        return watched[0]

    pipeline = PipeDream(made, links, xs, Noting, stash)
    pipeline.run(xs, targets, F.mse_loss)
    (stage,) = pipeline.stages.values()
    (seen,) = watched
    return {
        "problem": seen.problem or _wrong_numbers(case, i, stage), "held": seen.held,
        "moved": any(place != seen.places[0] for place in seen.places),
    }  # fmt: skip


def _wrong_numbers(case, i, stage):
    """The first gradient, or weight at the end, that is not the reference's; None if there is none."""
    gradients, weights = reference(case)
    names, where = list(stage.parameters), f"{case.name}, stage {i}"
    for j, (mine, right) in enumerate(zip(stage.optimizer.noted, gradients[i], strict=True)):
        for name, got, want in zip(names, mine, right, strict=True):
            if not _equal(got, want):
                return Problem(
                    "numbers", f"{where}: the gradient of {name} by mini-batch {j} is not that of its version"
                )
    for name, parameter in stage.parameters.items():
        if not _equal(parameter.detach(), weights[i][name]):
            return Problem("numbers", f"{where}: after {case.n} mini-batches {name} is not what one process has")
    return None


def _equal(got, want):
    return got is not None and bool(((got - want).abs() <= 1e-12 * want.abs().max()).all())


class Noting(torch.optim.SGD):
    """SGD with momentum that notes each step's gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.2, momentum=0.5)
        self.noted = []

    def step(self):
        self.noted.append([None if q.grad is None else q.grad.clone() for q in self.param_groups[0]["params"]])
        super().step()


def stages(p):
    """p small stages in float64, (b, 4) -> (b, 4)."""
    draw = torch.Generator("cpu").manual_seed(p)
    made = [nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)).double() for _ in range(p)]
    for parameter in nn.ModuleList(made).parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw, device="cpu", dtype=torch.float64))
    return made


def minibatches(n):
    """[x of each], [target of each]: 2 rows (2, 4) float64."""
    draw = torch.Generator("cpu").manual_seed(n)
    both = torch.randn(2, 2 * n, 4, generator=draw, device="cpu", dtype=torch.float64).to(torch.empty(0).device)
    return both[0].split(2), both[1].split(2)


@functools.cache
def reference(case):
    """([[gradients of each update] of each stage], [{name: weight at the end} of each stage]), in one process.

    Mini-batches one after the other, each with stage i's version max(0, j-(p-1-i)).
    """
    newest = stages(case.p)
    optimizers = [Noting(list(stage.parameters())) for stage in newest]
    at = [[copied(dict(stage.named_parameters()))] for stage in newest]  # at[i][k]: stage i's version k
    for j, (x, target) in enumerate(zip(*minibatches(case.n), strict=True)):
        read = [at[i][max(0, j - (case.p - 1 - i))] for i in range(case.p)]
        leaves = [{name: w.clone().requires_grad_() for name, w in weights.items()} for weights in read]
        for stage, weights in zip(newest, leaves, strict=True):
            x = torch.func.functional_call(stage, weights, (x,))
        F.mse_loss(x, target).backward()
        for stage, weights, optimizer, versions in zip(newest, leaves, optimizers, at, strict=True):
            for name, parameter in stage.named_parameters():
                parameter.grad = weights[name].grad
            optimizer.step()
            versions.append(copied(dict(stage.named_parameters())))
    return [optimizer.noted for optimizer in optimizers], [versions[-1] for versions in at]
