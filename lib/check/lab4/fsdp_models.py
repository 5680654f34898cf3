"""The model that Lab 4's sharded answers train, and its batches.

    x (B, 3) --tied--> h (B, 5) --layer 0--> --layer 1--> --layer 2--> --tied, scale--> (B, 3)
             root                [30 + 1]    [25 | 5]     [30 + 25]          root

    [30 + 1]     a weight, a bias, and a gain that is a scalar
    [25 | 5]     the bias of layer 1 is frozen, so it has a flat of its own
    [30 + 25]    for each micro-batch, every second rank uses the branch of layer 2
    by_name      in SGD's cases layers are called with h as a keyword argument, and return {"h": h}
    tied         is used at both ends, and belongs to no layer

The layers call `at` when they compute. All values are float64. The root's flat has 16 elements, and
the sizes of the other flats are not divisible by 2, 3 or 4.
"""

import torch
from torch import nn

from lib import backend
from lib.check.cases import Setting, draw
from lib.check.overlap import Gate

D, LAYERS, STEPS = 5, 3, 2
ADAMW, SGD, TWICE = "AdamW", "SGD, 2 micro-batches", "2 forwards, then backward"


class Training(Setting):
    """what: how it is trained. A step has k micro-batches, each with a backward pass of its own;
    those of TWICE share one."""

    @property
    def k(self):
        return 1 if self.what == ADAMW else 2

    def backwards(self, step):
        """[[numbers of the micro-batches that share a backward pass], ...] of a step."""
        batches = range(step * self.k, (step + 1) * self.k)
        return [batches] if self.what == TWICE else [[number] for number in batches]

    def optimizer(self, groups):
        if self.what == SGD:
            return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        return torch.optim.AdamW(groups, lr=0.02, eps=1e-3, weight_decay=0.1)


_ON = {ADAMW: (0, 1, 2, 3), SGD: (0, 1, 2), TWICE: (1, 3)}
CASES = tuple(Training(members, what=what) for what, members in _ON.items()) + (
    Training((2,), what=SGD),
)
GROUPS_SAY = "4 ranks, groups of 3 and 2"


class Layer(nn.Module):
    """h (B, D) -> h + gain (tanh(linear(h)) + branch(h)). Only layer 0 learns its gain, and only
    layer 2 has a branch, which it uses if with_branch is true."""

    def __init__(self, index: int, by_name: bool) -> None:
        super().__init__()
        self.by_name = by_name
        self.linear = nn.Linear(D, D)
        self.branch = nn.Linear(D, D, bias=False) if index == 2 else None
        self.gain = nn.Parameter(torch.ones(())) if index == 0 else 1.0
        self.linear.bias.requires_grad_(index != 1)
        self.at = lambda way: None

    def forward(self, h, with_branch=False):
        self.at("forward")
        out = torch.tanh(self.linear(h))
        if with_branch and self.branch is not None:
            out = out + self.branch(h)
        h = Gate.apply(h + self.gain * out, lambda gradient: self.at("backward"))
        return {"h": h} if self.by_name else h


class Net(nn.Module):
    """(x (B, 3), with_branch) -> (B, 3). by_name: layers receive and return h by its name."""

    def __init__(self, seed, by_name=False):
        super().__init__()
        self.by_name = by_name
        self.tied, self.scale = nn.Parameter(torch.empty(D, 3)), nn.Parameter(torch.empty(()))
        self.layers = nn.ModuleList(Layer(index, by_name) for index in range(LAYERS))
        self.to(backend.device(), torch.float64)
        for i, p in enumerate(self.parameters()):
            p.data.copy_(draw(100 * seed + i, *p.shape) / 8)

    def forward(self, x, with_branch):
        h = torch.tanh(x @ self.tied.T)
        for layer in self.layers:
            if self.by_name:
                h = layer(h=h, with_branch=with_branch)["h"]
            else:
                h = layer(h, with_branch=with_branch)
        return self.scale * (h @ self.tied)


def batch(rank, number):
    """This rank's micro-batch `number`: x (2, 3), y (2, 3), with_branch."""
    x, y = draw(100 * rank + number, 2, 2, 3) / 2
    return x, y, (rank + number) % 2 == 1


def loss_of(net, rank, number):
    x, y, with_branch = batch(rank, number)
    return (net(x, with_branch) - y).square().sum(1).mean()
