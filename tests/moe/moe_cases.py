"""What the tests of experts on ranks share: layers, the ranks' sets of tokens, one process that
takes them one by one.

Equal means: differs from the one process's by less than `tolerance` times the largest number in it.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib.moe import (
    MoE,
    assign_by_expert_choice,
    assign_slots,
    gshard_gate,
    reroute,
    switch_gate,
    top_k_gate,
    uniform_per_token,
)

D = 6
TOLERANCE = 1e-12
GROUPS = [(0,), (0, 1), (0, 1, 2, 3), (1, 3)]  # the last one's ranks are not the world's


def my_groups():
    """{members: group} of the groups that this rank is in; the world is None, as the
    default argument is."""
    made = {
        members: dist.new_group(members)
        for members in GROUPS
        if len(members) < dist.get_world_size()
    }
    return {members: made.get(members) for members in GROUPS if dist.get_rank() in members}


class Case(NamedTuple):
    """A layer and the ranks' sets."""

    gate: object
    place: object
    factor: float
    sets: tuple  # tokens of rank 0, 1, 2, 3 of the group
    router: float = 1.0  # its weights are multiplied by this; 0: every token likes expert 0 best


UNEQUAL = (5, 8, 0, 11)  # one rank has no tokens
CASES = {
    "switch": Case(switch_gate, assign_slots, 1.0, UNEQUAL),
    "switch, few slots": Case(switch_gate, assign_slots, 0.3, (16, 7, 12, 9)),
    "top 2": Case(partial(top_k_gate, k=2), assign_slots, 0.8, (6, 6, 6, 6)),
    "GShard": Case(gshard_gate, assign_slots, 1.0, UNEQUAL),
    "rerouted": Case(switch_gate, reroute, 0.7, (9, 4, 8, 1)),
    "experts choose": Case(switch_gate, assign_by_expert_choice, 1.0, UNEQUAL),
    "all to one": Case(switch_gate, assign_slots, 64.0, (3, 5, 2, 4), router=0.0),
    "all to one, most dropped": Case(
        partial(top_k_gate, k=2), assign_slots, 0.5, (6, 9, 4, 5), router=0.0
    ),
}


def draw(seed, *shape):
    """float64 numbers, the same wherever they are drawn."""
    return torch.randn(
        *shape,
        generator=torch.Generator("cpu").manual_seed(seed),
        dtype=torch.float64,
        device="cpu",
    )


def fill(module, seed):
    """Give every parameter numbers of its own, biases too."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(1000 * seed + i, *p.shape))
    return module


def expert(hidden=D):
    return nn.Sequential(nn.Linear(hidden, 4), nn.Tanh(), nn.Linear(4, hidden))


def layer(case, n_experts):
    """The whole layer, alike wherever it is built."""
    moe = MoE(D, [expert() for _ in range(n_experts)], case.gate, case.factor, case.place).double()
    fill(moe, 7)
    with torch.no_grad():
        moe.router.weight.mul_(case.router)
    return moe


def tokens_of(case, members):
    """[(x (n, D) with a gradient, dy (n, D), uniform (n,) or None), ...] of each
    rank of the group."""
    sets, first = [], 0
    for r in range(len(members)):
        n = case.sets[r]
        uniform = (
            uniform_per_token(first + torch.arange(n), seed=3) if case.gate is gshard_gate else None
        )
        sets.append((draw(10 + r, n, D).requires_grad_(), draw(20 + r, n, D), uniform))
        first += n
    return sets


def loss_of(moe, x, dy, uniform):
    """(output, loss) of a set: every number of the output counts, and both auxiliary losses."""
    y = moe(x, uniform)
    return y, (y * dy).sum() + 0.3 * moe.last.auxiliary + 0.1 * moe.last.z


def gave(moe, x, y, loss):
    """What a set's forward and backward gave."""
    last = moe.last
    return {
        "y": y.detach(), "loss": loss.detach(), "dx": x.grad, "load": last.load,
        "dropped": last.dropped,
        "left out": last.left_out, "asked": last.requested, "auxiliary": last.auxiliary.detach(),
        "z": last.z.detach(),
    }  # fmt: skip


def one_process(case, n_experts, members):
    """([what each set gave], {name: gradient summed over the sets}, [each set's Routing])."""
    moe, of_sets, routings = layer(case, n_experts), [], []
    for x, dy, uniform in tokens_of(case, members):
        y, loss = loss_of(moe, x, dy, uniform)
        loss.backward()
        of_sets.append(gave(moe, x, y, loss))
        routings.append(moe.route(x.detach(), uniform))
    return of_sets, gradients(moe), routings


def gradients(module):
    """{name: gradient}; zeros are zeros, but a missing gradient is an error."""
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def differences(got, want, tolerance=TOLERANCE):
    """["router.weight: off by 0.1, 1e-12 allowed", ...] of two {name: tensor}."""
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    wrong = []
    for name, right in want.items():
        if got[name].shape != right.shape or got[name].dtype != right.dtype:
            wrong.append(
                f"{name}: {got[name].dtype} {tuple(got[name].shape)}, expected {tuple(right.shape)}"
            )
        elif right.numel():
            off, allowed = (
                (got[name] - right).abs().max().item(),
                tolerance * right.abs().max().item(),
            )
            if not off <= allowed:
                wrong.append(f"{name}: off by {off:.3g}, {allowed:.3g} allowed")
    return wrong
