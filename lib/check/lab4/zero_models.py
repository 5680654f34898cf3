"""What Zero1 and Zero2 train in a check, what one process makes of it, and what a wrong parameter
says.

The model has tied, frozen and unused parameters, whole numbers times what float32 does not hold,
and nothing nonlinear. A rank uses its branch in every other step. The first step of SGD is w - lr
g: so a wrong parameter tells the gradient that it was changed by, (w - w') / lr, and that is read
as a sum of the ranks' gradients.
"""

from dataclasses import dataclass

import torch
from torch import nn

from lib import backend
from lib.check.cases import Case, draw, form_of
from lib.check.exercise import Problem
from lib.check.explain import fraction, shares, two

LR = 2.0**-12  # of SGD; a power of two, so that dividing by it rounds nothing
STEPS = 2
SEVERAL = "micro-batches"
ROWS = 2  # of a micro-batch


class Small(nn.Module):
    """x (B, 3) -> (B, 5), alike on all ranks: `again` is tied to `shared`, `scale` frozen, `never`
    used by no rank."""

    def __init__(self, with_bias=True):
        super().__init__()
        self.enter = nn.Linear(3, 4)
        self.shared, self.again, self.branch = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.again.weight = self.shared.weight
        self.scale = nn.Parameter(torch.empty(4), requires_grad=False)
        self.leave, self.never = nn.Linear(4, 5), nn.Linear(1, 4, bias=False)
        self.leave.bias.requires_grad_(with_bias)
        self.to(backend.device(), torch.float64)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(draw(i, *parameter.shape, top=2))

    def forward(self, x, with_branch):
        h = self.again(self.shared(self.enter(x)))  # (B, 4)
        return self.leave((h + self.branch(h) if with_branch else h) * self.scale)  # (B, 5)


@dataclass(frozen=True)
class Setup:
    """What is trained. parameters: 72, which 2, 3 and 4 divide, or 77. idle: a rank with no
    gradient in the first step.

    models: how many are trained side by side, each by an answer of its own; the second has 72
    parameters.
    """

    optimizer: str  # "SGD" or "AdamW"
    parameters: int = 77
    microbatches: int = 1
    idle: int = -1
    models: int = 1

    def case(self, members):
        more = [
            f"{self.microbatches} {SEVERAL}" if self.microbatches > 1 else "",
            f"rank {self.idle} without gradients" if self.idle >= 0 else "",
            "two models" if self.models > 1 else "",
        ]
        return Case(members, self.parameters, what=", ".join(filter(None, [self.optimizer, *more])))

    def model(self):
        return Small(self.parameters == 77)

    def batches(self, rank, step):
        """[(x, y, with the branch?), or None where the rank has nothing, of each micro-batch]"""
        if rank == self.idle and step == 0:
            return [None] * self.microbatches
        seeds = [1000 + 100 * rank + 10 * step + i for i in range(self.microbatches)]
        return [
            (draw(n, ROWS, 3), 12 * draw(50 + n, ROWS, 5), (rank + step + n) % 2 == 0)
            for n in seeds
        ]

    def loss(self, model, batch):
        x, y, with_branch = batch
        return (model(x, with_branch) * y).sum() / (ROWS * self.microbatches)


@dataclass(frozen=True)
class Step:
    """Of one process on the whole batch. parts: [{name: gradient} of each rank's share]; after:
    {name: parameter}."""

    parts: list
    after: dict


def make_optimizer(name, parameters):
    """parameters: tensors or groups, as torch's optimizers take them."""
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=LR, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


class Made:
    """make_optimizer, and what came of it: `count` optimizers, the last of which is `optimizer`."""

    def __init__(self, name):
        self.name, self.count, self.optimizer = name, 0, None

    def __call__(self, parameters):
        self.count += 1
        self.optimizer = make_optimizer(self.name, parameters)
        return self.optimizer

    @property
    def shards(self):
        return (
            [p for group in self.optimizer.param_groups for p in group["params"]]
            if self.optimizer
            else []
        )

    @property
    def state(self):
        """How many numbers it keeps; a count of steps is none of them."""
        kept = [
            t
            for of in self.optimizer.state.values()
            for t in of.values()
            if torch.is_tensor(t) and t.dim()
        ]
        return sum(tensor.numel() for tensor in kept)

    @property
    def has_gradients(self):
        return bool(self.shards) and all(shard.grad is not None for shard in self.shards)


def one_process(setup, N):
    """[Step, ...]: a model trained by one process on the shares of N ranks; unused
    parameters have zeros."""
    model, seen = setup.model(), []
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = make_optimizer(setup.optimizer, list(trained.values()))
    for step in range(STEPS):
        parts = [_gradients(setup, model, trained, setup.batches(rank, step)) for rank in range(N)]
        for name, parameter in trained.items():
            parameter.grad = sum(part[name] for part in parts) / N
        optimizer.step()
        seen.append(Step(parts, values(model)))
    return seen


def _gradients(setup, model, trained, batches):
    losses = [setup.loss(model, batch) for batch in batches if batch is not None]
    found = (
        torch.autograd.grad(sum(losses), [*trained.values()], allow_unused=True)
        if losses
        else [None] * len(trained)
    )
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(trained.items(), found, strict=True)
    }


def values(model):
    """{name: a copy of the parameter}"""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def squares_of_mean(parts):
    """The sum of the squares of the mean gradient's numbers."""
    means = [sum(part[name] for part in parts) / len(parts) for name in parts[0]]
    return sum(mean.square().sum().item() for mean in means)


def wrong_parameter(where, setup, step, before, after, expected):
    """A Problem unless `after`, {name: parameter} behind a step, is `expected.after`, to rounding.

    facts: step, world_size; still (nothing has changed in this step), partly (every number is
    either right or has not changed), narrowed (the right numbers, rounded), factor (the gradient is
    factor x the right one, or None), one_rank (it is of one rank alone), frozen.
    """
    names = [name for name in expected.after if not _same(after[name], expected.after[name])]
    if not names:
        return None
    name = names[0]
    out, want, old = after[name], expected.after[name], before[name]
    facts = {"step": step, "world_size": len(expected.parts), "factor": None, "narrowed": False}
    facts |= {
        "still": False,
        "partly": False,
        "one_rank": False,
        "frozen": name not in expected.parts[0],
    }
    if out.shape != want.shape or out.dtype != want.dtype:
        text = f"{where}: {name} is {form_of(out)}, expected {form_of(want)}"
        return Problem("form", text, facts | {"dtype": out.shape == want.shape})
    index = tuple((~_close(out, want)).nonzero()[0].tolist())
    x, y = two(want[index], out[index])
    text = (
        f"{where}: {name}, element {index[0] if len(index) == 1 else index}: expected {x}, got {y}"
    )
    facts["still"] = all(torch.equal(after[n], before[n]) for n in before)
    right_or_old = [_close(after[n], expected.after[n]) | (after[n] == before[n]) for n in before]
    facts["partly"] = not facts["still"] and all(bool(one.all()) for one in right_or_old)
    most = lambda a, b: max((a[n] - b[n]).abs().max().item() for n in b)
    facts["narrowed"] = most(after, expected.after) <= 2.0**-9 * most(expected.after, before)
    if facts["still"]:
        text += "\nNo parameter has changed in this step."
    elif facts["narrowed"]:
        text += (
            "\nThese are the right numbers, rounded: on the way they were in a narrower type than "
            "float64."
        )
    elif facts["partly"]:
        text += "\nWhat is wrong has not changed in this step; the rest is right."
    elif setup.optimizer == "SGD" and step == 0 and name in expected.parts[0]:
        words = _made_of((old - out) / LR, [part[name] for part in expected.parts], facts)
        text += f"\nWhat has changed, divided by lr, is the gradient. {words}"
    return Problem("value", text, facts)


def _made_of(gradient, parts, facts):
    """What a wrong mean of the ranks' parts is made of, in words; notes the factor."""
    N, mean = len(parts), sum(parts) / len(parts)
    factor = (gradient * mean).sum().item() / mean.square().sum().item() if mean.any() else 0
    if factor and _close(gradient, factor * mean, 1e-9).all():
        facts["factor"] = factor
        return f"It is {fraction(factor)} x expected, on {N} ranks."
    if not gradient.any():
        return "It holds zeros."
    found = shares(gradient, parts)
    if found is None:
        return "It is no sum of the ranks' gradients."
    facts["one_rank"] = len(found) == 1 < sum(bool(part.any()) for part in parts)
    return (
        f"It is {', '.join(f'{fraction(c)} of rank {r}' for r, c in found.items())}'s; expected "
        f"1/{N} of each rank's."
    )


def _same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and bool(_close(a, b).all())


def _close(a, b, tolerance=1e-12):
    return (a - b).abs() <= tolerance * max(1.0, b.abs().max().item())
