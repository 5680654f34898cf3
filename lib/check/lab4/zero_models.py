"""The models that Zero1 and Zero2 train in a check, and their batches.

Small is linear and has tied, frozen and unused parameters. Its values are integer multiples of a
number that float32 cannot represent. A rank uses the branch for half of its micro-batches.

The backward pass of a Chain goes through a gate between every two layers, where zero2.py looks at
what is sent:

    forward    layer 0 -> gate -> layer 1 -> gate -> ... -> layer 4
    backward   layer 4 -> gate -> layer 3 -> gate -> ... -> layer 0  each layer a flat: 0, 1, ..., 4

When backward reaches a gate, the gradient of the layer that it has just left has been accumulated,
and its hook has run.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from lib import backend
from lib.check.cases import Case, draw
from lib.check.overlap import Gate
from lib.zero.flat import padded_size

WORLD, STEPS = 4, 2
LR = 2.0**-12  # of SGD; a power of two, so that dividing by it is exact
SEVERAL = "micro-batches"
ROWS = 2  # of a micro-batch
WIDTHS = (3, 4, 5, 6, 7, 5)  # a chain's layers have 12, 20, 30, 42 and 35 weights
LAYERS = len(WIDTHS) - 1
GATES = LAYERS - 1
EXCUSED = dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model") | {
    "once more": "nothing is returned; two models are trained side by side",
    "storage": "nothing is returned",
    "arguments": "the parameters are changed in place",
}
MAY_CALL = (
    "flat.__init__", "flat.gather", "zero1.reduce_gradients", "zero1.gather_parameters",
)  # fmt: skip


class Small(nn.Module):
    """x (B, 3) -> (B, 5), the same on all ranks. `again` is tied to `shared`, `scale` is frozen,
    and `never` is used by no rank."""

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


class Chain(nn.Module):
    """x (B, 3) -> (B, 5), float64, linear, without biases. registered: the order in which the
    layers are registered."""

    def __init__(self, registered):
        super().__init__()
        layers = [nn.Linear(m, n, bias=False, dtype=torch.float64) for m, n in pairwise(WIDTHS)]
        self.in_order = [f"layer {i}" for i in range(LAYERS)]
        self.gate = lambda gradient: None
        for i in registered:
            layers[i].weight.data = draw(i, WIDTHS[i + 1], WIDTHS[i]) / 4
            self.add_module(self.in_order[i], layers[i])
        self.to(backend.device())

    def forward(self, x, with_branch):
        for i, name in enumerate(self.in_order):
            x = getattr(self, name)(Gate.apply(x, self.gate) if i else x)
        return x


@dataclass(frozen=True)
class Setup:
    """What is trained. parameters: 72, which 2, 3 and 4 divide, or 77. idle: a rank that has no
    gradients in the first step, or -1.

    models: how many are trained side by side, each with its own object of the answer's class; the
    second has 72 parameters. chain: if the model is a Chain, the order in which its layers are
    registered.
    """

    optimizer: str  # "SGD" or "AdamW"
    parameters: int = 77
    microbatches: int = 1
    idle: int = -1
    models: int = 1
    chain: tuple[int, ...] = ()

    def case(self, members):
        if self.chain:
            in_order = list(self.chain) == sorted(self.chain)
            what = "a chain of layers" if in_order else "layers named in another order"
            return Case(members, sum(m * n for m, n in pairwise(WIDTHS)), what=what)
        more = [
            f"{self.microbatches} {SEVERAL}" if self.microbatches > 1 else "",
            f"rank {self.idle} without gradients" if self.idle >= 0 else "",
            "two models" if self.models > 1 else "",
        ]
        return Case(members, self.parameters, what=", ".join(filter(None, [self.optimizer, *more])))

    def model(self):
        return Chain(self.chain) if self.chain else Small(self.parameters == 77)

    def batches(self, rank, step):
        """[(x, y, with_branch) of each micro-batch, or None for each if the rank is idle]"""
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


class Made:
    """A make_optimizer that remembers what it made: `count` optimizers, the last of which is
    `optimizer`.

    steps: the number of steps of all of them; norm: the norm of the mean gradient, over all ranks,
    before the last step.
    """

    def __init__(self, name):
        self.name, self.count, self.optimizer, self.steps, self.norm = name, 0, None, 0, 0.0

    def __call__(self, parameters):
        """parameters: tensors or groups, as torch's optimizers take them."""
        self.count += 1
        if self.name == "SGD":
            self.optimizer = torch.optim.SGD(parameters, lr=LR, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)
        self.optimizer.register_step_post_hook(self.stepped)
        return self.optimizer

    def stepped(self, *_):
        self.steps += 1

    @property
    def shards(self):
        groups = self.optimizer.param_groups if self.optimizer else []
        return [p for group in groups for p in group["params"]]

    @property
    def gradients(self):
        return [shard.grad for shard in self.shards if shard.grad is not None]

    @property
    def state(self):
        """How many elements of state the optimizer has, without its count of steps."""
        kept = [t for of in self.optimizer.state.values() for t in of.values()]
        return sum(t.numel() for t in kept if torch.is_tensor(t) and t.dim())

    def told(self):
        """What the optimizer has done, for a verdict on the parameters."""
        elements = sum(shard.numel() for shard in self.shards)
        return (
            f"The optimizer was given {elements} elements. After average_gradients() the norm of "
            f"their gradient, over all ranks, was {self.norm:.6g}. Calls of its step() so far: "
            f"{self.steps}."
        )


def wrapped(make, setup, group, show, **more):
    """Returns the model, its make_optimizer (a Made), and the answer's object."""
    model, made = setup.model(), Made(setup.optimizer)
    ways = {"reduce_scatter": show.reduce_scatter, "all_gather": show.all_gather}
    with show.during("__init__", section=True) as run:
        zero = run(make, model.parameters(), made, group, **ways, **more)
    show("parameters", model.named_parameters())
    return model, made, zero


def show_gradients(show, model, made):
    """Called after average_gradients(): show which gradients are left in the model, and the norm of
    the shards' gradients."""
    named, shards = model.named_parameters(), {id(shard) for shard in made.shards}
    left = ", ".join(name for name, p in named if p.grad is not None and id(p) not in shards)
    show("gradients left", f".grad is still there of {left}" if left else "")
    made.norm = show.length(made.gradients)
    show("the norm of the mean gradient", made.norm)


def slack(case):
    """How many more bytes than lib's an answer may keep: those of three shards, because a shard,
    its gradient and what was sent last may be separate tensors."""
    return 3 * torch.float64.itemsize * padded_size(case.n, case.world_size) // case.world_size
