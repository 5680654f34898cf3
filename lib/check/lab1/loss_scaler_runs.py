"""What LossScaler is checked on: runs of a few steps, the gradients that overflow in them, and an
optimizer.

good      no overflow, S stays                         are gradients unscaled, once?
overflow  on all ranks, then on one, in any parameter  is the step skipped on every rank, and
                                                       nothing touched?
scale     growth_interval 2                            does S go down and up when it should?
"""

import math
from typing import NamedTuple

import torch

from lib.check.cases import Setting
from lib.check.lab1.means import ALONE, GROUPS

GOOD, OVERFLOW, SCALE = "no overflow", "overflows", "scale"
INTERVAL = {GOOD: 1000, OVERFLOW: 1000, SCALE: 2}
INF, NAN = float("inf"), float("nan")
ALL, FIRST, LAST = "all ranks", "rank 0", "the last rank"


class Overflow(NamedTuple):
    """One element of one gradient, on all ranks or on one."""

    value: float
    who: str = ALL
    parameter: int = 0  # of three; the last is in another parameter group

    def on(self, rank, world_size):
        return {ALL: True, FIRST: rank == 0, LAST: rank == world_size - 1}[self.who]

    def __str__(self):
        return f"{self.value} in parameter {self.parameter} on {self.who}"


STEPS = {  # None: a good step
    GOOD: (None, None),
    OVERFLOW: (
        None, Overflow(INF), Overflow(NAN), Overflow(-INF), Overflow(INF, ALL, 2), None,
        Overflow(INF, LAST, 1), Overflow(NAN, FIRST, 2), None,
    ),
    SCALE: (None, None, None, Overflow(INF), None, None, Overflow(NAN), Overflow(INF, LAST), None,
    None),
}  # fmt: skip
# S after each step of the run "scale"
AFTER = 8.0, 32.0, 32.0, 8.0, 8.0, 32.0, 8.0, 2.0, 2.0, 8.0
CASES = (
    Setting(GROUPS[0], what=GOOD, dtype=torch.float16),  # a flag: no dtype is too narrow for it
    *(Setting(members, what=OVERFLOW, dtype=torch.float16) for members in (*GROUPS, ALONE)),
    Setting(GROUPS[0], what=SCALE, dtype=torch.float16),
)


class Noting(torch.optim.SGD):
    """SGD with momentum, two parameter groups; it keeps the gradients of every step that it
    was asked for."""

    def __init__(self, parameters):
        super().__init__(
            [{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.25, momentum=0.5
        )
        self.parameters, self.steps = parameters, []

    @torch.optim.Optimizer.profile_hook_step
    def step(self):
        self.steps.append([copied(p.grad) for p in self.parameters])
        super().step()

    step.hooked = True  # torch would do both when the first is made, and so change a class of lib

    def everything(self):
        """Parameters and momentum, copied."""
        momentum = [
            buffer for p in self.parameters if p in self.state for buffer in self.state[p].values()
        ]
        return [copied(tensor) for tensor in [*self.parameters, *momentum] if tensor is not None]


def copied(tensor):
    return None if tensor is None else tensor.detach().cpu().clone()


def gradients_of(rank, step):
    """(3,), (2, 2) and (1,) that differ from rank to rank, powers of two: no
    scaling by one rounds them."""
    counted = [
        torch.arange(math.prod(shape), device="cpu").reshape(shape)
        for shape in ((3,), (2, 2), (1,))
    ]
    return [2.0 ** (n % 3 + rank - step % 2) for n in counted]
