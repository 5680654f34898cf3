"""On which ranks Lab 3's functions are checked: groups of one launch of four, and what a rank's call is made of.

    0 1        whoever writes it for two ranks is right here, and found out next
    0 1 2
    0 1 2 3    the default group, None
      1   3    whoever takes ranks of the world for ranks of the group is found out here
        2      alone: every mapping is the identity

A call is two sections of the ledger, forward and backward. In between the ranks of the group agree that forward was
right: a rank that has nothing to send back would leave the others waiting.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib import backend
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab1.cases import WORLD, Case
from lib.check.lab1.watched import groups_with_wires

__all__ = ["GROUPS", "GROUPS_SAY", "WAYS", "WORLD", "Case"]

GROUPS = ((0, 1), (0, 1, 2), tuple(range(WORLD)), (1, 3), (2,))
GROUPS_SAY = "1, 2, 3, 4 ranks, a subgroup"
WAYS = ("forward", "backward")


def way_of(case, way):
    """The case's section `way` of the ledger."""
    return replace(case, what=", ".join(filter(None, [case.what, way])))


def measured(cases, one):
    """On every rank: one(case, rank, group, wire) -> record, in step. wire: a group of the same ranks, for notes."""

    def of_case(case, groups):
        return one(case, case.members.index(dist.get_rank()), *groups)

    return in_step(cases, groups_with_wires, of_case, wire=dist.new_group())


def forward(case, fn, *args):
    """What fn(*args) returns, in the case's section "forward"."""
    return called(way_of(case, "forward"), fn, *args)


def backward(case, loss):
    """loss.backward(), in the case's section "backward"."""
    called(way_of(case, "backward"), loss.backward)


def agreed(ok, wire):
    """Is it so on every rank of the case?"""
    all_ok = torch.tensor(int(ok), device=backend.device())
    dist.all_reduce(all_ok, dist.ReduceOp.MIN, group=wire)
    return bool(all_ok)


def draw(seed, *shape):
    """Whole numbers of -3..3, without 0, in float64; the same on every rank that gives the same seed."""
    generator = torch.Generator("cpu").manual_seed(seed)
    size, sign = (torch.randint(top, shape, generator=generator, device="cpu") for top in (3, 2))
    return ((1 + size) * (2 * sign - 1)).to(backend.device(), torch.float64)


def found(cases, kind="problem"):
    """The claim that no rank has noted a problem of this kind."""

    def judge(runs):
        for _, _, records in seen(runs, cases):
            problem = next((record[kind] for record in records if record.get(kind)), None)
            if problem:
                return problem
        return None

    return judge
