"""What Zero1 and Zero2 train in a check, what one process makes of it, and what a wrong parameter says.

The model is Lab 1's `Small`: tied, frozen and unused parameters, small whole numbers in float64, nothing nonlinear. A
rank uses its branch in every other step. The first step of SGD is w - lr g: so a wrong parameter tells the gradient
that it was changed by, (w - w') / lr, and that is read as a sum of the ranks' gradients.
"""

from dataclasses import dataclass

import torch

from lib import backend
from lib.check.framework import Problem
from lib.check.lab0.cases import form_of, number
from lib.check.lab1 import models
from lib.check.lab3.compare import same

LR = 2.0**-12  # of SGD; a power of two, so that dividing by it rounds nothing


@dataclass(frozen=True)
class Setup:
    """optimizer: "SGD" or "AdamW"; parameters: how many are trained, 72, which 2, 3 and 4 divide, or 77."""

    optimizer: str
    parameters: int
    microbatches: int = 1

    @property
    def steps(self):
        return 3 if self.optimizer == "AdamW" and self.microbatches == 1 else 2

    @property
    def words(self):
        more = f", {self.microbatches} micro-batches" if self.microbatches > 1 else ""
        return f"{self.optimizer}, {self.parameters} parameters{more}"

    def model(self):
        """Alike on all ranks."""
        model = models.Small().to(backend.device())
        model.leave.bias.requires_grad_(self.parameters == 77)
        return model

    def loss(self, model, rank, step):
        """The losses of this rank's micro-batches, each divided by their number. [(), ...]"""
        k = self.microbatches
        for i in range(k):
            x, y, _ = models.shard(rank, k * step + i)
            yield models.loss_of(model, (x, y, (rank + step + i) % 2 == 0)) / k


@dataclass(frozen=True)
class Step:
    """Of one process on the whole batch. parts: [{name: gradient} of each rank's share]; after: {name: parameter}."""

    parts: list
    after: dict


def make_optimizer(name, parameters):
    """parameters: tensors or groups, as torch's optimizers take them."""
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=LR, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


def one_process(setup, model, N):
    """[Step, ...]: `model`, trained by one process on the shares of N ranks; unused parameters have zeros."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer, seen = make_optimizer(setup.optimizer, list(trained.values())), []
    for step in range(setup.steps):
        parts = [_gradients(trained, list(setup.loss(model, rank, step))) for rank in range(N)]
        for name, parameter in trained.items():
            parameter.grad = sum(part[name] for part in parts) / N
        optimizer.step()
        seen.append(Step(parts, values(model)))
    return seen


def _gradients(trained, losses):
    found = torch.autograd.grad(sum(losses), list(trained.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(trained.items(), found, strict=True)}


def values(model):
    """{name: a copy of the parameter}"""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def squares_of_mean(parts):
    """The sum of the squares of the mean gradient's numbers."""
    means = [sum(part[name] for part in parts) / len(parts) for name in parts[0]]
    return sum(mean.square().sum().item() for mean in means)


def wrong_parameter(where, rank, setup, step, before, after, expected):
    """A Problem unless `after`, {name: parameter} behind a step, is `expected.after`.

    facts: step, rank, world_size, name; still (nothing has changed in this step), partly (every number is either right
    or has not changed), factor (the gradient is factor x the right one, or None).
    """
    names = [name for name in expected.after if not same(after[name], expected.after[name])]
    if not names:
        return None
    name, N = names[0], len(expected.parts)
    out, want, old = after[name], expected.after[name], before[name]
    facts = {"step": step, "rank": rank, "world_size": N, "name": name, "factor": None, "own": False}
    facts |= {"still": False, "partly": False}
    if out.shape != want.shape or out.dtype != want.dtype:
        return Problem("form", f"{where}: {name} is {form_of(out)}, expected {form_of(want)}", facts)
    element = tuple((~_close(out, want)).nonzero()[0].tolist())
    at = f"element {element[0] if len(element) == 1 else element}"
    say = number if number(want[element]) != number(out[element]) else torch.Tensor.item  # all digits, where six agree
    text = f"{where}: {name}, {at}: expected {say(want[element])}, got {say(out[element])}"
    facts["still"] = all(torch.equal(after[n], before[n]) for n in before)
    kept = [_close(after[n], expected.after[n]) | (after[n] == before[n]) for n in before]
    facts["partly"] = not facts["still"] and all(bool(right.all()) for right in kept)
    if facts["still"]:
        text += "\nNo parameter has changed in this step."
    elif facts["partly"]:
        text += "\nWhat is wrong has not changed in this step; the rest is right."
    elif setup.optimizer == "SGD" and step == 0 and name in expected.parts[0]:
        words = models.explain((old - out) / LR, [part[name] for part in expected.parts], rank, facts)
        text += f"\nWhat has changed, divided by lr, is the gradient. {words}"
    return Problem("value", text, facts)


def _close(a, b):
    return (a - b).abs() <= 1e-12 * max(1.0, b.abs().max().item())
