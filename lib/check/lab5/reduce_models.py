"""The model whose gradients reduce_gradients reduces, on which groups, and what known mistakes make of them.

    first, again   tied: one gradient            frozen     not trained; nor are the last biases of mixture 1's experts
    branch         has none on odd ranks         idle       has none anywhere
    mixtures       two, of 4 experts; those of mixture 1 have none on ranks 2 and 3

Rank r's gradient, where it is made by hand, is 4^r times what the parameter's name and the element say: of a sum one
sees whose it is.
"""

from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.lab1.cases import WORLD, Case
from lib.moe import ExpertParallelMoE, MoE, top_k_gate

NAME, D, E = "reduce_gradients", 4, 4
EVERYWHERE = tuple(range(WORLD))
REAL, NO_EXPERTS = "dp 2, ep 2, a real backward", "no experts"
EP = {"dp 4, ep 1": 1, "dp 2, ep 2": 2, "dp 1, ep 4": 4, "dp 1, ep 2": 2, "dp 3, ep 1": 1, "dp 1, ep 1": 1}
EP |= {NO_EXPERTS: 2, REAL: 2}
CASES = [
    Case(NAME, EVERYWHERE, "dp 4, ep 1"), Case(NAME, EVERYWHERE, "dp 2, ep 2"), Case(NAME, EVERYWHERE, "dp 1, ep 4"),
    Case(NAME, (1, 3), "dp 1, ep 2"), Case(NAME, (0, 1, 2), "dp 3, ep 1"), Case(NAME, (2,), "dp 1, ep 1"),
    Case(NAME, EVERYWHERE, NO_EXPERTS), Case(NAME, EVERYWHERE, REAL),
]  # fmt: skip


class Groups(NamedTuple):
    """This rank's, of one case. Of each there are two: one is the answer's, on the other the check talks and sums."""

    members: tuple[int, ...]
    world: Any  # None where it is all ranks of the launch
    wire: Any
    ep: Any  # the ranks that exchange tokens
    copies: tuple[int, ...]  # the global ranks with the same experts as this one
    expert_dp: Any
    expert_dp_wire: Any

    def wire_of(self, ranks):
        """The group to sum over these global ranks on, or None."""
        return {self.copies: self.expert_dp_wire, self.members: self.wire}.get(ranks)

    def wires(self):
        """Their names in the ledger."""
        return [self.wire.group_name, self.expert_dp_wire.group_name]


def groups_of(cases):
    """{case: Groups}. All ranks call it."""
    made, rank = {}, dist.get_rank()

    def group(ranks, which):
        if (ranks, which) not in made:
            made[ranks, which] = dist.new_group(ranks)
        return made[ranks, which]

    groups = {}
    for case in cases:
        ep, m = EP[case.what], case.members
        world, wire = None if len(m) == WORLD else group(m, "answer's"), group(m, "wire")
        blocks = {ranks: group(ranks, "answer's") for ranks in (m[i : i + ep] for i in range(0, len(m), ep))}
        columns = {m[i::ep]: (group(m[i::ep], "answer's"), group(m[i::ep], "wire")) for i in range(ep)}
        if rank in m:
            block = next(group for ranks, group in blocks.items() if rank in ranks)
            copies = next(ranks for ranks in columns if rank in ranks)
            groups[case] = Groups(m, world, wire, block, copies, *columns[copies])
    return groups | {case: None for case in cases if rank not in case.members}


class Net(nn.Module):
    """In one process; alike wherever it is made."""

    def __init__(self, with_experts=True):
        super().__init__()
        self.first, self.again, self.frozen, self.branch = (nn.Linear(D, D, bias=i < 1) for i in range(4))
        self.again.weight = self.first.weight
        self.idle, self.last = nn.Linear(D, 1), nn.Linear(D, 2)
        experts = lambda: [nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, D)) for _ in range(E)]
        gate = partial(top_k_gate, k=2)
        self.mixtures = nn.ModuleList(MoE(D, experts(), gate, factor=0.8) for _ in range(2 * with_experts))
        self.to(backend.device(), torch.float64)
        for i, parameter in enumerate(self.parameters()):
            parameter.data = _draw(i, *parameter.shape)
        self.frozen.requires_grad_(False)
        for expert in self.mixtures[1].experts if with_experts else ():
            expert[2].bias.requires_grad_(False)

    def over(self, group):
        """Its part on this rank of the ep group."""
        self.mixtures = nn.ModuleList(ExpertParallelMoE(mixture, group) for mixture in self.mixtures)
        return self

    def loss(self, rank):
        """Rank `rank`'s, the mean over tokens of its own: (). Ranks have unequally many."""
        x = self.frozen(self.again(self.first(_draw(100 + rank, 4 + 3 * rank, D)).tanh()))
        x = x if rank % 2 else x + self.branch(x)
        for mixture in self.mixtures:
            x = x + mixture(x)
        return self.last(x).square().sum(-1).mean()


def mean_loss(case):
    """{name: gradient} of the mean of all ranks' losses, in one process; zeros where it is not used."""
    net = Net()
    (sum(net.loss(rank) for rank in range(case.world_size)) / case.world_size).backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters() if p.requires_grad}


def made_up(name, parameter, rank):
    """The gradient that is made by hand, None where a rank has none."""
    of_half = name.startswith("mixtures.1.experts")
    if not parameter.requires_grad or "idle" in name or ("branch" in name and rank % 2) or (of_half and rank > 1):
        return None
    numbers = torch.arange(parameter.numel(), dtype=torch.float64, device=backend.device())
    return 4**rank * (100.0 * (1 + _names().index(name)) + numbers).view(parameter.shape)


def right_mean(case, name, parameter, rank):
    """Of those made by hand: the sum over the ranks that have it, divided by all ranks."""
    return _sum(name, parameter, _have(case, name, rank)) / case.world_size


def known_sums(case, name, parameter, rank):
    """[(a mistake in words, what it makes of this gradient), ...]"""
    N, ep = case.world_size, EP[case.what]
    dp, copies = N // ep, range(rank % ep, N, ep)
    total, own = _sum(name, parameter, _have(case, name, rank)), _sum(name, parameter, [rank])
    known = [("the sum, not divided", total), ("this rank's own", own), ("this rank's own, divided", own / N)]
    known += [("divided by all ranks of the launch", total / WORLD), ("divided twice", total / N**2)]
    if "experts" in name:
        others = sum(_sum(_at_its_place(name, rank, r, ep), parameter, [r]) for r in range(N))
        known += [("divided by dp", total / dp), ("divided by ep", total / ep), ("divided twice", total / N / dp)]
        known += [("mixed with other experts'", others / n) for n in (N, 1, dp, ep)]
    else:
        of_copies = _sum(name, parameter, copies)
        known += [("the sum of the ranks with the same experts", of_copies / n) for n in (N, dp, 1)]
        known += [("divided by dp", total / dp), ("divided by ep", total / ep)]
    return known


def _have(case, name, rank):
    """Which ranks have this parameter?"""
    ep = EP[case.what]
    return range(rank % ep, case.world_size, ep) if "experts" in name else range(case.world_size)


def _sum(name, parameter, ranks):
    gradients = [made_up(name, parameter, r) for r in ranks]
    return sum((g for g in gradients if g is not None), torch.zeros_like(parameter).detach())


def _at_its_place(name, rank, other, ep):
    """The name of the parameter that has the place of `name` on another rank, where the experts are others."""
    parts = name.split(".")
    parts[3] = str(int(parts[3]) + (other % ep - rank % ep) * (E // ep))
    return ".".join(parts)


@cache
def _names():
    return [name for name, _ in Net().named_parameters()]


def _draw(seed, *shape):
    """float64 numbers, the same on every rank."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu").to(backend.device())
