"""The layers and the ranks' sets of tokens on which ExpertParallelMoE is checked, and what one process makes of them.

One process takes the sets one by one, each with its own capacity: that is what the ranks have to compute. `mistaken`
runs the rows of all ranks through the experts as a rank with a known mistake would.
"""

from functools import cache, partial
from typing import NamedTuple

import torch
from torch import nn

from lib import backend
from lib.check.lab1.cases import WORLD, Case
from lib.moe import MoE, keep, run_experts, switch_gate, top_k_gate
from lib.moe.expert_parallel import transpose_blocks

NAME, D = "ExpertParallelMoE", 4
EVERYWHERE = tuple(range(WORLD))
TOP_2 = partial(top_k_gate, k=2)


class Setup(NamedTuple):
    """A layer of `each` experts a rank, and the tokens of rank 0, 1, 2, 3 of the group."""

    each: int
    gate: object
    factor: float
    sets: tuple
    router: float = 1.0  # its weights are multiplied by this; 0: every token likes expert 0 best


SETUPS = {
    "1 expert a rank": Setup(1, switch_gate, 1.0, (5, 3, 4, 6)),
    "2 experts a rank": Setup(2, TOP_2, 4.0, (5, 3, 4, 6)),
    "drops, a rank without tokens": Setup(2, TOP_2, 0.8, (5, 8, 0, 11)),
    "4 experts a rank": Setup(4, TOP_2, 1.0, (7, 4, 0, 0)),
    "all tokens to expert 0": Setup(2, switch_gate, 64.0, (3, 5, 2, 4), router=0.0),
    "no tokens": Setup(2, switch_gate, 1.0, (0, 0, 0, 0)),
}
ONE, TWO, DROPS, FOUR, TO_ONE, NOBODY = SETUPS
CASES = [
    Case(NAME, (0, 1), ONE), Case(NAME, (0, 1), TWO), Case(NAME, (0, 1, 2), TWO), Case(NAME, EVERYWHERE, ONE),
    Case(NAME, EVERYWHERE, DROPS), Case(NAME, (1, 3), FOUR), Case(NAME, (2,), TWO), Case(NAME, EVERYWHERE, TO_ONE),
    Case(NAME, EVERYWHERE, NOBODY),
]  # fmt: skip


class Set(NamedTuple):
    """What one process makes of one rank's tokens."""

    rows: torch.Tensor  # (m, D)  dispatched, sorted by expert
    load: torch.Tensor  # (E,)  rows for each expert
    combine: object  # (m, D) -> (n, D)
    y: torch.Tensor  # (n, D)
    gradients: dict  # {name: of this set's loss alone}; "x" too
    through_router: torch.Tensor  # (n, D)  the gradient of x, without what comes through the rows


def layer(case):
    """The whole layer, alike on all ranks."""
    setup = SETUPS[case.what]
    experts = [nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, D)) for _ in range(setup.each * case.world_size)]
    moe = MoE(D, experts, setup.gate, setup.factor, keep).to(backend.device(), torch.float64)
    for i, parameter in enumerate(moe.parameters()):
        parameter.data = _draw(i, *parameter.shape)
    moe.router.weight.data *= setup.router
    return moe


def tokens(case, rank):
    """(x, dy), (n, D) each: the loss of a rank is (y * dy).sum()."""
    n = SETUPS[case.what].sets[rank]
    return _draw(100 + rank, n, D), _draw(200 + rank, n, D)


@cache
def one_process(case):
    """([Set of rank 0, ...], the whole layer). To be read only."""
    moe, sets = layer(case), []
    for rank in range(case.world_size):
        x, dy = tokens(case, rank)
        x.requires_grad_()
        y, names = moe(x), dict(moe.named_parameters()) | {"x": x}
        found = torch.autograd.grad((y * dy).sum(), list(names.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(names.items(), found, strict=True)
        }
        routing = moe.route(x)
        rows, load = moe.dispatch(x, routing).detach(), moe.last.load
        alone = moe.combine(run_experts(moe.experts, rows, load).detach(), routing, len(x))
        (through,) = torch.autograd.grad((alone * dy).sum(), x) if len(x) else (torch.zeros_like(x),)
        combine = partial(moe.combine, routing=routing, n=len(x))
        sets.append(Set(rows, load, combine, y.detach(), gradients, through))
    return sets, moe


def counts(case, sets):
    """[(ep, E/ep) of rank 0, ...]: its rows by sender and expert."""
    each = SETUPS[case.what].each
    loads = torch.stack([one.load for one in sets]).view(len(sets), -1, each)  # (sender, receiver, E/ep)
    return [loads[:, r] for r in range(len(sets))]


@torch.no_grad()
def mistaken(case, sets, moe, there=None, back=None, experts=run_experts):
    """[y of rank 0, ...] with a mistake.

    there, back: (rows, counts (ep, E/ep)) -> rows, in place of the right transpositions; experts: of run_experts.
    """
    there = there or transpose_blocks
    back = back or (lambda rows, received: transpose_blocks(rows, received.t()))
    each, received = SETUPS[case.what].each, counts(case, sets)
    leaving = [one.rows.split(one.load.view(-1, each).sum(1).tolist()) for one in sets]  # [sender][receiver]
    home = []
    for r, mine in enumerate(received):
        rows = there(torch.cat([blocks[r] for blocks in leaving]), mine)
        rows = back(experts(list(moe.experts)[r * each : (r + 1) * each], rows, mine.sum(0)), mine)
        home.append(rows.split(mine.sum(1).tolist()))  # [expert's rank][sender]
    return [one.combine(torch.cat([blocks[i] for blocks in home])) for i, one in enumerate(sets)]


def _draw(seed, *shape):
    """float64 numbers, the same on every rank."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu").to(backend.device())
