"""The cases of relay_step: groups of 3, 4, 2 and 1 of the four ranks of one launch, with stages of
different widths.

    tokens (B, 2) -- stage 0 --> (B, 2, 7) -- stage 1 --> (B, 2, 3)
                  -- stage 2 --> (B, 2, 6) -- stage 3 --> (B, 2, 5)

The stages have outputs of different sizes, so the output of one stage does not fit where that of
another is expected. Every group runs three steps, whose gradients add up. The second step has a
smaller batch, and the third one reuses the second's placeholder tensor. Weights, activations and
targets are float64.
"""

from dataclasses import dataclass

import torch
from torch import nn

from lib.check.cases import Case

WORLD = 4
GROUPS = ((0, 1, 2), tuple(range(WORLD)), (1, 3), (2,))
WORDS, LENGTH = 9, 2
WIDTHS = (4, 7, 3, 6, 5)
ROWS = {1: 3, 2: 2, 3: 2}  # of each step's batch
REUSED = 3  # the step that gets the placeholder of the step before


@dataclass(frozen=True)
class Step(Case):
    """One step on these global ranks."""

    step: int = 1

    @property
    def name(self):
        return f"{self.group}, step {self.step}"


CASES = [Step(members, step=step) for members in GROUPS for step in ROWS]


def _drawn(seed):
    return {"generator": torch.Generator("cpu").manual_seed(seed), "device": "cpu"}


def stages(p):
    """p stages. Each takes one tensor and returns one; the first takes tokens."""
    draw = _drawn(p)
    made = [nn.Sequential(nn.Linear(WIDTHS[i], WIDTHS[i + 1]), nn.Tanh()) for i in range(p)]
    made[0].insert(0, nn.Embedding(WORDS, WIDTHS[0]))
    for parameter in nn.ModuleList(made).double().parameters():
        parameter.data.copy_(torch.randn(parameter.shape, dtype=torch.float64, **draw))
    return made


def batch(case):
    """(tokens (B, 2) int64, target (B, 2, width of the last stage) float64)"""
    shape, draw, device = (ROWS[case.step], LENGTH), _drawn(case.step), torch.empty(0).device
    tokens = torch.randint(WORDS, shape, **draw)
    target = torch.randn((*shape, WIDTHS[case.world_size]), dtype=torch.float64, **draw)
    return tokens.to(device), target.to(device)


def placeholder(before, step, width):
    """The tensor that tells a rank which shape to receive. In step REUSED it is that of the step
    before, filled with nan again."""
    if step == REUSED:
        before.detach().fill_(torch.nan)
        return before
    return torch.full((ROWS[step], LENGTH, width), torch.nan, dtype=torch.float64)


def sends(case):
    """[[(to, elements), ...] of rank 0, ...]: the messages of each rank in one step, in order."""
    p, n = case.world_size, ROWS[case.step] * LENGTH
    return [
        [(i + 1, n * WIDTHS[i + 1])] * (i < p - 1) + [(i - 1, n * WIDTHS[i])] * (i > 0)
        for i in range(p)
    ]
