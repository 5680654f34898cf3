"""Layers with experts on paced ranks: instead of computing, experts sleep for SECONDS per routed
token, whereas the all-to-alls are real. In this way a machine with few cores can make two
measurements:

    steps    on 2 ranks, forward and backward of a layer with a shared expert: its exchanges either
             alternate with compute, or overlap with it in halves
    layers   on 4 ranks, the forward pass of a dropless layer: its router chooses experts evenly, or
             prefers some, so that all ranks wait for the one with the most routed tokens

    ranks = launch.run(paced.layers, dropless, 6, nproc=4, backend="gloo", ledger=False)
    paced.slowest(ranks)                   {way: [seconds of the slowest rank in each round]}
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import backend, collectives
from lib.collectives.slow_link import slow_link
from lib.measuring.paced import Spans
from lib.moe.capacity import assign_slots, capacity
from lib.moe.choice import Choice
from lib.moe.compare import with_start
from lib.moe.gates import top_k_gate
from lib.moe.layer import MoE
from lib.moe.overlapped import SharedMoE

SECONDS = 100e-6  # per routed token
TOKENS, D, RATE = 800, 256, 5.7e6  # on each rank; elements of a token; bytes/s of the link
# What a rank does in each lane of the picture, in order. A and B are the halves of the batch, and '
# marks the backward pass.
PLAIN = {
    "compute": "shared A, experts A, experts A', shared A'",
    "wire": "dispatch A, combine A, combine A', dispatch A'",
}
HALVES = {
    "compute": "shared A, experts A, experts B, shared B, shared B', experts B', experts A', "
    "shared A'",
    "wire": "dispatch A, dispatch B, combine A, combine B, combine B', combine A', dispatch B', "
    "dispatch A'",
}


class Paced(torch.autograd.Function):
    """Calls computes(rows), which sleeps instead of computing, in forward and again in backward."""

    @staticmethod
    def forward(ctx, rows, computes):
        ctx.computes = computes
        return computes(rows)

    @staticmethod
    def backward(ctx, dy):
        return ctx.computes(dy), None


class PacedExpert(nn.Module):
    def __init__(self, computes):
        super().__init__()
        self.computes = computes

    def forward(self, rows):
        return Paced.apply(rows, self.computes)


def alternating(logits: Tensor) -> Choice:
    """A gate that sends token t to expert t modulo 2, so that both get equally many tokens."""
    p, experts = logits.softmax(-1), (torch.arange(len(logits)) % 2).unsqueeze(1)
    return Choice(experts, p.gather(1, experts), p)


def paced_step(kind: type[SharedMoE], start_exchange: Callable, names: Mapping[str, str]) -> list:
    """Run one forward and backward pass. Returns [(lane, begin, end, label), ...] of this rank.

    names: {lane: its labels}, such as PLAIN, in the order in which a layer of this `kind` runs
    them.
    """
    spans, labels = Spans(), {lane: iter(of.split(", ")) for lane, of in names.items()}

    def computes(rows):
        with spans("compute", next(labels["compute"])):
            time.sleep(SECONDS * len(rows))
        return rows.clone()

    def sends(rows, *how):
        is_tokens = rows.is_floating_point()  # the exchange of counts is not recorded
        with spans("wire", next(labels["wire"])) if is_tokens else contextlib.nullcontext():
            return collectives.all_to_all_at_once(rows, *how)

    one = MoE(D, [PacedExpert(computes) for _ in range(2)], alternating, factor=2)
    layer = with_start(kind, start_exchange, one, PacedExpert(computes), None, sends)
    x = torch.zeros(TOKENS, D, requires_grad=True)
    dist.barrier()
    layer(x).square().sum().backward()
    return [(lane, begin, end, what) for _, lane, what, begin, end in spans]


def steps(
    overlapped: type[SharedMoE], start_exchange: Callable, rounds: int
) -> list[dict[str, list]]:
    """Run both layers in turns. Returns [{"plain": spans, "in halves": spans} of each round] on
    this rank, with spans as `paced_step` returns them."""
    ways = {"plain": (SharedMoE, PLAIN), "in halves": (overlapped, HALVES)}
    with slow_link(1, 0.0005, RATE):
        return [
            {way: paced_step(kind, start_exchange, names) for way, (kind, names) in ways.items()}
            for _ in range(rounds)
        ]


def milliseconds(spans: Sequence) -> float:
    """Milliseconds from the start of the first span to the end of the last."""
    return 1e3 * (max(end for _, _, end, _ in spans) - min(begin for _, begin, *_ in spans))


WAYS_TO_ROUTE = {  # how much the router prefers later experts, and the capacity factor
    "an even router": (0.0, 4.0),  # with a factor of 4 = E/k nothing is dropped
    "a skewed router": (2.0, 4.0),
    "skewed, factor 1.25": (2.0, 1.25),
}


def waiting_layer(dropless: Callable, tilt: float, factor: float) -> tuple[float, int, int]:
    """Run the forward pass of 512 tokens on this rank, top-2 of 8 experts. Returns (seconds, routed
    tokens that this rank computes, pairs of this rank that were dropped)."""
    generator, seen = torch.Generator(backend.device()).manual_seed(dist.get_rank()), [0]
    logits = torch.randn(512, 8, generator=generator) + torch.linspace(0, tilt, 8)
    choice = top_k_gate(logits, 2)
    routing = assign_slots(choice, 8, capacity(512, 8, 2, factor))
    kept = torch.zeros(512, 8, dtype=torch.bool).index_put(
        (routing.token, routing.expert), torch.tensor(True)
    )
    choice = choice._replace(experts=choice.experts.where(kept.gather(1, choice.experts), -1))

    def experts(rows: Tensor, counts: Tensor) -> Tensor:
        seen.append(len(rows))
        time.sleep(len(rows) * SECONDS)
        return rows

    dist.barrier()
    begin = time.monotonic()
    dropless(torch.zeros(512, 64), choice, 8, experts)
    return time.monotonic() - begin, seen[-1], 1024 - len(routing.token)


def layers(dropless: Callable, rounds: int) -> list[dict[str, tuple[float, int, int]]]:
    """Run all WAYS_TO_ROUTE in turns. Returns [{way: what waiting_layer returns} of each round] of
    this rank."""
    return [
        {way: waiting_layer(dropless, *how) for way, how in WAYS_TO_ROUTE.items()}
        for _ in range(rounds)
    ]


def slowest(ranks: Any) -> dict[str, list[float]]:
    """{way: (rounds,) seconds of the slowest rank}. ranks: what `layers` returned on each."""
    return {way: _table(ranks, way)[:, :, 0].max(0).tolist() for way in WAYS_TO_ROUTE}


def hottest(ranks: Any) -> dict[str, int]:
    """{way: the largest number of routed tokens that any rank computes}."""
    return {way: int(_table(ranks, way)[:, 0, 1].max()) for way in WAYS_TO_ROUTE}


def dropped(ranks: Any) -> dict[str, float]:
    """{way: the share of all ranks' pairs that were dropped}."""
    return {way: _table(ranks, way)[:, 0, 2].sum() / (len(ranks) * 1024) for way in WAYS_TO_ROUTE}


def _table(ranks, way):
    return np.array([[of[way] for of in rank] for rank in ranks])  # (ranks, rounds, 3)
