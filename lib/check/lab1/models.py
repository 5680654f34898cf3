"""The small models of Lab 1's checks.

    x (B, 3) -- enter --> (B, 4) -- shared -- again --> (B, 4) -- (+ branch) --+
                                                                               |
                                            (B, 5) <-- leave -- * scale <------+

    again       shared's weight under a second name (tied): one gradient, the sum of both uses
    branch      used on ranks 0, 2, ... only
    scale       frozen
    never       used on no rank
    mean, seen  buffers, float64 and int64

With fine = 1, weights and inputs are small integers in float64. All layers are linear, so the
gradients are integers, too, and so are their means over 2, 3 or 4 ranks.
"""

from itertools import pairwise

import torch
from torch import nn

from lib import backend

ROWS = 2  # of a shard
WIDTHS = (3, 4, 5, 6, 7)  # of the chain: layers of 16, 25, 36 and 49 parameters
GATES = len(WIDTHS) - 2
# With this factor in the weights, most gradients have more bits than float32 holds, so rounding
# them to float32 changes them by more than the tolerance of a comparison.
FINE = 1 + 2.0**-20


class Small(nn.Module):
    """The model in the figure. Its weights and buffers depend on `seed`, so ranks that pass their
    own rank begin with different ones. fine: a factor of all weights and buffers."""

    def __init__(self, seed=0, fine=1):
        super().__init__()
        self.enter = nn.Linear(3, 4)
        self.shared, self.again, self.branch = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.again.weight = self.shared.weight
        self.scale = nn.Parameter(torch.empty(4), requires_grad=False)
        self.leave, self.never = nn.Linear(4, 5), nn.Linear(1, 4, bias=False)
        self.register_buffer("mean", torch.empty(4))
        self.double()
        self.register_buffer("seen", torch.empty(2, dtype=torch.int64))
        _fill(self, seed, fine)

    def forward(self, x, with_branch):
        h = self.again(self.shared(self.enter(x)))  # (B, 4)
        if with_branch:
            h = h + self.branch(h)
        return self.leave(h * self.scale)  # (B, 5)


class Chain(nn.Sequential):
    """Linear layers in float64. Backward passes a gate between each layer and the next.

    forward   x (B, 3) -> layer 0 -> layer 1 -> layer 2 -> layer 3 (B, 7) -> folded to (B, 5)
    backward  layer 3 -> gate -> layer 2 -> gate -> layer 1 -> gate -> layer 0

    At each gate, pass_one() is called.
    """

    def __init__(self, seed=0, fine=1):
        super().__init__(*(nn.Linear(m, n) for m, n in pairwise(WIDTHS)))
        self.double()
        self.pass_one = lambda: None
        _fill(self, seed, fine)

    def forward(self, x, with_branch=False):
        for place, layer in enumerate(self):
            if place:
                x.register_hook(lambda gradient: self.pass_one())
            x = layer(x)
        return x[:, :5] + nn.functional.pad(x[:, 5:], (0, 3))


@torch.no_grad()
def _fill(model, seed, fine):
    draw = _draws(seed)
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.copy_(draw(2, *tensor.shape) * fine)


def shard(rank, number=0):
    """The inputs of a rank in micro-batch `number`: (x (ROWS, 3), y (ROWS, 5), whether this rank
    uses the branch)."""
    draw, device = _draws(1000 + 10 * rank + number), backend.device()
    x, y = draw(2, ROWS, 3), 12 * ROWS * draw(1, ROWS, 5)
    return x.to(device), y.to(device), rank % 2 == 0


def loss_of(model, shard):
    """The mean loss over the shard's rows. ()"""
    x, y, with_branch = shard
    return (model(x, with_branch) * y).sum(1).mean()


def gradients(model):
    """[(name, .grad)] of every parameter. A tied parameter is listed under its first name."""
    return [(name, p.grad) for name, p in model.named_parameters()]


def _draws(seed):
    """A function draw(top, *shape) that returns random integers from -top to top without 0.
    (*shape) float64"""
    generator = torch.Generator("cpu").manual_seed(seed)

    def draw(top, *shape):
        size = torch.randint(1, top + 1, shape, generator=generator, device="cpu")
        sign = 2 * torch.randint(0, 2, shape, generator=generator, device="cpu") - 1
        return (sign * size).double()

    return draw
