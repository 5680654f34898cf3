"""What Zero1 and Zero2 train in a check.

The model has tied, frozen and unused parameters, whole numbers times what float32 does not hold,
and nothing nonlinear. A rank uses its branch in every other step.
"""

from dataclasses import dataclass

import torch
from torch import nn

from lib import backend
from lib.check.cases import Case, draw

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
