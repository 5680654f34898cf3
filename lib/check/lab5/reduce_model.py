"""The model whose gradients reduce_gradients reduces, on which groups, and its gradients where they
are made by hand.

first, again  tied: one gradient            frozen     not trained; nor are the last biases of
                                                       MoE layer 1's experts
branch        has none on odd ranks         idle       has none anywhere
moe_layers    two, of 4 experts; those of layer 1 have none on ranks 2 and 3
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.cases import Setting, draw
from lib.moe import ExpertParallelMoE, MoE, top_k_gate

WORLD, D, E = 4, 4, 4
REAL, NO_EXPERTS, NOTHING = (
    "dp 2, ep 2, a real backward",
    "dp 2, ep 2, no experts",
    "dp 2, ep 2, rank 1 has none",
)
ALL = tuple(range(WORLD))
# members, dp and ep, and what else
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        (ALL, "dp 4, ep 1"), (ALL, "dp 2, ep 2"), (ALL, "dp 1, ep 4"), ((1, 3), "dp 1, ep 2"),
        ((0, 1, 2), "dp 3, ep 1"), ((2,), "dp 1, ep 1"), (ALL, NO_EXPERTS), (ALL, NOTHING),
        (ALL, REAL),
    )
)  # fmt: skip
TWO_TWO = CASES[1]


def sizes(case):
    """dp, ep."""
    return [int(one.split()[1]) for one in case.what.split(", ")[:2]]


class Groups(NamedTuple):
    """This rank's, of one case."""

    world: Any  # None where it is all ranks of the launch
    ep: Any  # the ranks that exchange tokens
    copies: tuple[int, ...]  # the global ranks with the same experts as this one
    expert_dp: Any


def groups_of(cases):
    """{case: (Groups, two more of its ranks for the recorders of two scripts)}"""
    made, groups, rank = {}, {}, dist.get_rank()

    def group(ranks, of=""):
        if (ranks, of) not in made:
            made[ranks, of] = dist.new_group(ranks)
        return made[ranks, of]

    for case in cases:
        (_, ep), members = sizes(case), case.members
        world = None if len(members) == WORLD else group(members)
        blocks = [members[i : i + ep] for i in range(0, len(members), ep)]
        columns = [members[i::ep] for i in range(ep)]
        # all ranks make all groups, in one order
        of = {ranks: group(ranks) for ranks in (*blocks, *columns)}
        mine = lambda parts: next((ranks for ranks in parts if rank in ranks), ())
        copies = mine(columns)
        its = Groups(world, of.get(mine(blocks)), copies, of.get(copies))
        groups[case] = its, group(members, "control"), group(members, "another control")
    return groups


class Net(nn.Module):
    """In one process; alike wherever it is made."""

    def __init__(self, with_experts=True):
        super().__init__()
        self.first, self.again, self.frozen, self.branch = (
            nn.Linear(D, D, bias=i < 1) for i in range(4)
        )
        self.again.weight = self.first.weight
        self.idle, self.shared_experts = nn.Linear(D, 1), nn.Linear(D, D)  # dense, by whatever name
        experts = lambda: [
            nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D)) for _ in range(E)
        ]
        gate = partial(top_k_gate, k=2)
        self.moe_layers = nn.ModuleList(
            MoE(D, experts(), gate, factor=0.8) for _ in range(2 * with_experts)
        )
        self.to(backend.device(), torch.float64)
        for i, parameter in enumerate(self.parameters()):
            parameter.data = 0.3 * draw(i, *parameter.shape)
        self.frozen.requires_grad_(False)
        for expert in self.moe_layers[1].experts if with_experts else ():
            expert[2].bias.requires_grad_(False)

    def over(self, group):
        """Its part on this rank of the ep group."""
        self.moe_layers = nn.ModuleList(
            ExpertParallelMoE(mixture, group) for mixture in self.moe_layers
        )
        return self

    def loss(self, rank):
        """Rank `rank`'s, the mean over tokens of its own: (). Ranks have unequally many."""
        x = self.frozen(self.again(self.first(draw(100 + rank, 4 + 3 * rank, D)).tanh()))
        x = x if rank % 2 else x + self.branch(x)
        for mixture in self.moe_layers:
            x = x + mixture(x)
        return self.shared_experts(x).square().sum(-1).mean()


def made_up(case, number, name, parameter, rank, step):
    """The gradient of its parameter of this number, by hand; None where the rank has none."""
    of_half = name.startswith("moe_layers.1.experts")
    if not parameter.requires_grad:
        is_old = name == "frozen.weight" and not (case.what == NOTHING and rank == 1)
        return torch.full_like(parameter, 1.0 + rank) if is_old else None
    if "idle" in name or ("branch" in name and rank % 2) or (of_half and rank > 1):
        return None
    if case.what == NOTHING and rank == 1:
        return None
    return draw(10000 * step + 100 * number + 10 * case.again + rank, *parameter.shape)
