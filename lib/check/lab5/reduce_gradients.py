"""Lab 5, section 7: reduce_gradients(model, expert_dp_group, world, all_reduce), on N = dp ep
ranks. The script itself sets the gradients of both steps.
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.cases import Setting, draw, groups_of
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.moe import ExpertParallelMoE, MoE, expert_parameters, switch_gate
from lib.moe import gradients as libs

WORLD, D, E = 4, 4, 4
NO_EXPERTS, NOTHING = "dp 2, ep 2, no experts", "dp 2, ep 2, rank 1 has none"
ALL = tuple(range(WORLD))
CASES = tuple(
    Setting(members, what=what)  # dp and ep, and what else
    for members, what in (
        (ALL, "dp 4, ep 1"), (ALL, "dp 2, ep 2"), (ALL, "dp 1, ep 4"), ((1, 3), "dp 1, ep 2"),
        ((0, 1, 2), "dp 3, ep 1"), ((2,), "dp 1, ep 1"), (ALL, NO_EXPERTS), (ALL, NOTHING),
    )
)  # fmt: skip
TWO_TWO = CASES[1]


def sizes(case):
    """[dp, ep] of a case."""
    return [int(one.split()[1]) for one in case.what.split(", ")[:2]]


class Groups(NamedTuple):
    """This rank's groups in one case."""

    world: Any  # None if it is all ranks of the launch
    ep: Any  # the ranks that exchange tokens
    copies: tuple[int, ...]  # the global ranks with the same experts as this one
    expert_dp: Any


def groups_of_ranks(cases):
    """{case: its Groups}"""
    new, groups = cache(dist.new_group), {}
    for case, world in groups_of(cases).items():
        (_, ep), ranks = sizes(case), case.members
        exchanging = [ranks[i : i + ep] for i in range(0, len(ranks), ep)]
        replicas = [ranks[i::ep] for i in range(ep)]
        made = {part: new(part) for part in (*exchanging, *replicas)}  # on all ranks, in one order
        mine = lambda parts: next((part for part in parts if dist.get_rank() in part), ())
        copies = mine(replicas)
        groups[case] = Groups(world, made.get(mine(exchanging)), copies, made.get(copies))
    return groups


class Net(nn.Module):
    """A model that is never run, because only its parameters and their gradients matter.

    first, again  tied, with one gradient       frozen     not trained; nor are the last biases of
                                                           MoE layer 1's experts
    branch        no gradient on odd ranks      idle       no gradient on any rank
    moe_layers    two, with 4 experts each; those of layer 1 have no gradients on ranks 2 and 3
    """

    def __init__(self, ep_group, with_experts):
        super().__init__()
        self.first, self.again, self.frozen, self.branch = (
            nn.Linear(D, D, bias=i < 1) for i in range(4)
        )
        self.again.weight = self.first.weight
        self.idle, self.shared_experts = nn.Linear(D, 1), nn.Linear(D, D)  # dense, despite the name
        layers = (
            MoE(D, [nn.Sequential(nn.Linear(D, D), nn.Linear(D, D)) for _ in range(E)], switch_gate)
            for _ in range(2 * with_experts)
        )
        self.moe_layers = nn.ModuleList(ExpertParallelMoE(layer, ep_group) for layer in layers)
        self.to(backend.device(), torch.float64)
        self.frozen.requires_grad_(False)
        for expert in self.moe_layers[1].experts.values() if with_experts else ():
            expert[1].bias.requires_grad_(False)


def made_up(case, number, name, parameter, rank, step):
    """The gradient that parameter `number` gets on this rank, or None."""
    idle_here = case.what == NOTHING and rank == 1
    if not parameter.requires_grad:
        is_old = name == "frozen.weight" and not idle_here
        return torch.full_like(parameter, 1.0 + rank) if is_old else None
    of_half = name.startswith("moe_layers.1.experts")
    if idle_here or "idle" in name or ("branch" in name and rank % 2) or (of_half and rank > 1):
        return None
    return draw(10000 * step + 100 * number + 10 * case.again + rank, *parameter.shape)


PARAMETERS, FROZEN = "the parameter", "the gradient of the frozen parameter"
EXPERTS, OTHERS = "the gradient of the expert's", "the gradient of"
SUMMED, MESSAGES = "elements summed", "calls of all_reduce"


def script(make, case, groups, show):
    show.allowed = [case.members, groups.copies]
    net, rank = Net(groups.ep, case.what != NO_EXPERTS), show.place
    for number, parameter in enumerate(net.parameters()):
        # different on each rank, so that averaging parameters instead of gradients is detected
        parameter.data = 0.3 * draw(number, *parameter.shape) + rank
    ids = {id(p) for p in expert_parameters(net)}
    name_of = lambda p: FROZEN if not p.requires_grad else EXPERTS if id(p) in ids else OTHERS
    for step in range(2):
        for number, (name, p) in enumerate(net.named_parameters()):
            p.grad = made_up(case, number, name, p, rank, step)
        show.begin("step")
        with show.during("a second step" * step) as run:
            run(make, net, groups.expert_dp, groups.world, show.all_reduce)
        yield
        found = [*net.named_parameters()]
        show(PARAMETERS, found)
        for kind in (FROZEN, EXPERTS, OTHERS):
            show(kind, [(name, p.grad) for name, p in found if name_of(p) == kind])
        # a group of one rank has nothing to sum
        sums = [call for call in show.calls if len(call.ranks) > 1 and call.elements]
        over = lambda ranks, sums=sums: sum(c.elements for c in sums if c.ranks == ranks)
        show(SUMMED, {"over all ranks": over(case.members),
                      "over the ranks with the same experts": over(groups.copies)})  # fmt: skip
        show(MESSAGES, len(sums))


MEASURE = SideBySide(
    script, libs.reduce_gradients, CASES, groups=groups_of_ranks,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model")
    | {"once more": "nothing is returned; two models are reduced in turn",
       "storage": "nothing is returned", "alive": "a gradient may be a part of the flat buffer",
       "alive at the end": "a gradient may be a part of the flat buffer"},
    together=(TWO_TWO, replace(TWO_TWO, again=1)),
)  # fmt: skip


EXERCISE = MEASURE.exercise(
    ("the mean over all ranks", 12, "dp, ep of 1 to 4; tied, unused, frozen ones; only .grad",
     PARAMETERS, FROZEN, EXPERTS, OTHERS),
    ("one all-reduce of each kind", 4, "the experts' over their copies, all else over all",
     calls(MEASURE, nothing_else=False), SUMMED, MESSAGES),
    hints=hints("lab5", "reduce_gradients"), worlds=(WORLD,), may_call=MAY_CALL,
    leaves_out={
        "under way": "a call sums, divides and ends: nothing of it is in flight when it returns",
        "generators": "no argument is an iterator; the model's own are asked for anew",
        "returned": "it returns nothing",
        "memory": "one flat buffer of each kind is what it is asked to make",
    },
)  # fmt: skip
