"""The mean gradient over ranks of Lab 1's small models (models.py): the ranks, what an answer is
given, and what a multiple of the right mean says."""

from math import isclose

import torch

from lib import backend
from lib.check import symptoms as s
from lib.check.exercise import Hint
from lib.check.lab1 import models

WORLD = 4
GROUPS = (tuple(range(WORLD)), (0, 1, 2), (1, 3))
GROUPS_SAY = "4 ranks, groups of 3 and 2"
ALONE = (2,)
IDLE = "rank 0 without gradients"
FLOAT32 = "float32"


def scaled(by):
    """The right mean times by(N)."""

    exactly = lambda p: isclose(p.facts["factor"], by(p.facts["world_size"]), rel_tol=1e-9)
    return s.both(s.kind("value", factor=True), exactly)


def times(by):
    """The same of a shown tensor (shown.py): all of it is by(N) times what is expected."""

    def fits(p):
        factor = p.fact("factor")
        return factor is not None and isclose(factor, by(p.fact("case").world_size), rel_tol=1e-9)

    return fits


def model(case, rank):
    """The ranks' parameters differ, or nobody would see that they are averaged instead."""
    made = models.Small(fine=models.FINE).to(backend.device())
    if case.what == FLOAT32:
        made.float()
    with torch.no_grad():
        for p in made.parameters():
            p += rank
    return made


def backward(model, case, rank, number):
    """Backward over a shard of this rank's, unless it is the one without gradients."""
    x, y, with_branch = models.shard(rank, number)
    one = x.to(backend.device(), model.enter.weight.dtype), y.to(backend.device()), with_branch
    if (case.what, rank) != (IDLE, 0):
        models.loss_of(model, one).backward()


def silent(show, shapes):
    """The all_reduce that an answer gets; notes the shapes that it is given."""

    def given(tensor, group=None):
        """Sums in place and returns nothing, as torch's does."""
        shapes.append(tensor.shape)
        show.all_reduce(tensor, group)

    return given


def gradients(model):
    """[(name, .grad)] of what learns."""
    return [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]


WORLD_SIZE = Hint("the world's size, not the group's", scaled(lambda N: N / WORLD),
                  "in a smaller group it is the group's ranks that are summed: divide by "
                  "dist.get_world_size(group).")  # fmt: skip
