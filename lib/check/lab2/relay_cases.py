"""What relay_step is checked on: groups of one launch of four, stages of unlike sizes, and one
process.

    tokens (B, 2) -- stage 0 --> (B, 2, 7) -- stage 1 --> (B, 2, 3)
                  -- stage 2 --> (B, 2, 6) -- stage 3 --> (B, 2, 5)

No two messages of a step are equally large, so a tensor sent in place of another does not fit.
Every group makes three steps, without forgetting the gradients of those before: the second on a
smaller batch, the third with the second's very x. float64.
"""

from dataclasses import dataclass

import torch
from torch import nn

from lib.check.cases import Case

WORLD = 4
GROUPS = ((0, 1, 2), tuple(range(WORLD)), (1, 3), (2,))
GROUPS_SAY = "1, 2, 3, 4 ranks; three steps"
WORDS, LENGTH = 9, 2
WIDTHS = (4, 7, 3, 6, 5)
ROWS = {1: 3, 2: 2, 3: 2}  # of each step's batch
REUSED = 3  # the step that gets the x of the one before


class NoTarget(ValueError):
    """loss_fn was called without a target."""


@dataclass(frozen=True)
class Step(Case):
    """One step on these global ranks."""

    step: int = 1

    @property
    def name(self):
        return f"{self.group}, step {self.step}"


CASES = [Step(members, step=step) for members in GROUPS for step in ROWS]


def stages(p):
    """p stages. Each takes one tensor and gives one; the first takes tokens."""
    draw = torch.Generator("cpu").manual_seed(p)
    made = [nn.Sequential(nn.Linear(WIDTHS[i], WIDTHS[i + 1]), nn.Tanh()) for i in range(p)]
    made[0].insert(0, nn.Embedding(WORDS, WIDTHS[0]))
    for parameter in nn.ModuleList(made).double().parameters():
        parameter.data.copy_(
            torch.randn(parameter.shape, generator=draw, device="cpu", dtype=torch.float64)
        )
    return made


def batch(case):
    """(tokens (B, 2) int64, target (B, 2, width of the last stage) float64)"""
    draw = torch.Generator("cpu").manual_seed(case.step)
    rows, device = ROWS[case.step], torch.empty(0).device
    tokens = torch.randint(WORDS, (rows, LENGTH), generator=draw, device="cpu")
    shape = rows, LENGTH, WIDTHS[case.world_size]
    return tokens.to(device), torch.randn(
        shape, generator=draw, device="cpu", dtype=torch.float64
    ).to(device)


def order(case):
    """[[(op, peer, elements), ...] of rank 0, ...]: each rank's messages, in this order."""
    p, n = case.world_size, ROWS[case.step] * LENGTH
    return [
        [("recv", i - 1, n * WIDTHS[i])] * (i > 0)
        + [(op, i + 1, n * WIDTHS[i + 1]) for op in ("send", "recv") if i < p - 1]
        + [("send", i - 1, n * WIDTHS[i])] * (i > 0)
        for i in range(p)
    ]
