"""The layers that bench_moe.py times over ranks: expert-parallel against torch's, and the exchange
behind computing."""

import copy
import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.collectives.slow_link import slow_link
from lib.measuring.paced import PacedLayer
from lib.moe import (
    Choice,
    ExpertParallelMoE,
    MoE,
    OverlappedMoE,
    SharedMoE,
    capacity,
    top_k_gate,
)
from tests.benchmarks.rounds import Side, timed, where
from tests.benchmarks.torch_moe import TorchMoE

K, FACTOR = 2, 1.25
TOLERANCE = 1e-5  # of a tensor's largest element: float32, sums in another order stay far below
# of a rank; of a row's product, each way; bytes a second
PACED_ROWS, PACED_SECONDS, PACED_LINK = 400, 1e-4, 5.7e6


class Size(NamedTuple):
    """n tokens of a rank, D hidden, F the width of an expert, E experts over all ranks."""

    n: int
    D: int
    F: int
    E: int


class Pair(NamedTuple):
    """One of two sides: a step, and what it left behind."""

    step: Callable  # () -> None: forward and backward
    found: Callable  # () -> {name: tensor}


def numbers(seed, *size):
    return torch.randn(size, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(
        backend.device()
    )


def check_equal(what, ours, theirs):
    """Both sides do the same, or nothing is timed."""
    for side in (ours, theirs):
        side.step()
    found, right = ours.found(), theirs.found()
    if found.keys() != right.keys():
        raise RuntimeError(
            f"{what}: {sorted(found.keys() ^ right.keys())} on one side only: nothing to time"
        )
    for name, expected in right.items():
        off, largest = (found[name] - expected).abs().max(), expected.abs().max()
        if not off <= TOLERANCE * largest:
            raise RuntimeError(
                f"{what}: {name} is off by {off / largest:.2g} of its largest element: nothing to "
                f"time"
            )


# --- the exchange behind computing ----------------------------------------------------------------


def halves_on_ranks(rounds):
    """{"in halves": (rounds,) seconds per step, ...} and what it ran on."""

    def step(kind):
        experts = [
            PacedLayer(1, PACED_SECONDS, PACED_SECONDS) for _ in range(dist.get_world_size())
        ]
        layer = kind(
            MoE(256, experts, in_turn, dist.get_world_size()),
            PacedLayer(1, PACED_SECONDS, PACED_SECONDS),
        )
        x = numbers(dist.get_rank(), PACED_ROWS, 256).requires_grad_()
        return Side(lambda: layer(x).square().sum().backward())

    with slow_link(1, 0.0005, PACED_LINK):
        return timed(
            {"in halves": step(OverlappedMoE), "plain": step(SharedMoE), "again": step(SharedMoE)},
            rounds,
        ), where()


def in_turn(logits):
    """Token t to expert t modulo E: every expert gets as many rows, of each half, too."""
    p, (n, E) = logits.softmax(-1), logits.shape
    experts = (torch.arange(n) % E).unsqueeze(1)
    return Choice(experts, p.gather(1, experts), p)


# --- a layer over ranks ---------------------------------------------------------------------------


def layers_on_ranks(size, rounds):
    """{side: (rounds,) seconds per step} and what it ran on."""
    ours, theirs = both_layers(size)
    check_equal("the layer", ours, theirs)
    return timed(
        {"ours": Side(ours.step), "theirs": Side(theirs.step), "again": Side(theirs.step)}, rounds
    ), where()


def both_layers(size):
    """lib's layer and torch's, with the same numbers, on this rank's tokens."""
    whole = whole_layer(size)
    mine = ExpertParallelMoE(whole)
    experts = [copy.deepcopy(expert) for expert in mine.experts.values()]
    theirs = TorchMoE(copy.deepcopy(whole.router), experts, K, capacity(size.n, size.E, K, FACTOR))
    rank = dist.get_rank()
    x, dy = numbers(10 + rank, size.n, size.D), numbers(20 + rank, size.n, size.D)

    def pair(layer, losses, names):
        leaf, seen = x.clone().requires_grad_(), {}

        def step():
            leaf.grad = None
            layer.zero_grad()
            seen["y"] = layer(leaf)
            auxiliary, z = losses()
            ((seen["y"] * dy).sum() + 0.01 * auxiliary + 0.001 * z).backward()

        def found():
            gradients = {name: p.grad for name, p in zip(names, layer.parameters(), strict=True)}
            return {"y": seen["y"].detach(), "dx": leaf.grad} | gradients

        return Pair(step, found)

    names = [name for name, _ in mine.named_parameters()]
    # as TorchMoE holds them
    theirs_first = sorted(names, key=lambda name: not name.startswith("router"))
    return (
        pair(mine, lambda: (mine.last.auxiliary, mine.last.z), names),
        pair(theirs, lambda: (theirs.auxiliary, theirs.z), theirs_first),
    )


def whole_layer(size):
    """The layer of one process, alike on all ranks."""
    experts = [
        nn.Sequential(nn.Linear(size.D, size.F), nn.GELU(),
                      nn.Linear(size.F, size.D)) for _ in range(size.E)
    ]  # fmt: skip
    moe = MoE(size.D, experts, functools.partial(top_k_gate, k=K), FACTOR).to(backend.device())
    with torch.no_grad():
        for i, p in enumerate(moe.parameters()):
            p.copy_(numbers(100 + i, *p.shape) / size.D**0.5)
    return moe
