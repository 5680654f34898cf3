"""The mean gradient over ranks of Lab 1's small models (models.py): what answers are judged and hinted by."""

from dataclasses import dataclass
from math import isclose

import torch

from lib.check import symptoms as s
from lib.check.cases import Case
from lib.check.claims import each
from lib.check.exercise import Hint

WORLD = 4
GROUPS = (tuple(range(WORLD)), (0, 1, 2), (1, 3))
GROUPS_SAY = "4 ranks, groups of 3 and 2"
ALONE = (2,)


@dataclass(frozen=True)
class Step(Case):
    """A case of which neither elements nor dtype tell anything."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.group, self.what, "once more" if self.again else ""]))


def value(*facts):
    """A wrong gradient with these facts, those of `models.wrong_gradient`."""
    return lambda p: p.kind == "value" and all(p.fact(name) for name in facts)


def scaled(by):
    """The right mean times by(N)."""

    def fits(p):
        return value("factor")(p) and isclose(p.facts["factor"], by(p.facts["world_size"]), rel_tol=1e-9)

    return fits


def as_found(cases):
    """A judge: the first record["problem"]."""
    return each(cases, lambda case, rank, record: record["problem"])


def state(model):
    """Every tensor but the gradients, and whether it wants one."""
    return [(t.detach().clone(), t.requires_grad) for t in [*model.parameters(), *model.buffers()]]


def same(before, now):
    return all(torch.equal(a, b) and asks == asked for (a, asks), (b, asked) in zip(before, now, strict=True))


NOT_DIVIDED = Hint(
    "not divided",
    scaled(lambda N: N),
    "all_reduce sums. The mean needs a division by the group's number of ranks, dist.get_world_size(group).",
)
DIVIDED_TWICE = Hint(
    "divided twice",
    scaled(lambda N: 1 / N),
    "divide by N once, before the all-reduce or after it. (The loss is the mean over the rank's own shard: leave it.)",
)
WORLD_SIZE = Hint(
    "the world's size, not the group's",
    scaled(lambda N: N / WORLD),
    "in a smaller group it is the group's ranks that are summed: divide by dist.get_world_size(group).",
)
UNLIKE = s.either(s.kind("clash", "mismatch", "died"), s.hung)
