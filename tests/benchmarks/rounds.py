"""Interleaved rounds on ranks: one launch, the same process and the same buffers for every side.

    rank 0   | barrier | op op op ... op |      k calls of one side between two looks at the clock
    rank 1   | barrier | op op op ... op   |    a round takes as long as its slowest rank, per call
    ...

Ranks do not leave a barrier together; 8 ranks on 2 cores leave it milliseconds apart, and the first
to leave waits in the op for the last. So a short op is repeated k times, k alike for all sides,
until even the fastest side keeps the clock running for SHORTEST. What is left of the barrier in a
time is the same for all sides: it brings ratios nearer to 1, never away from it. The ranks' times
meet after the loop, not in it.
"""

import contextlib
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from lib import backend
from lib.measuring.rounds import interleave

SHORTEST = 20e-3  # seconds between two looks at the clock, at least


class Side(NamedTuple):
    """What is timed, and the context that it runs in, which is entered before the clock starts."""

    op: Callable[[], object]
    inside: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


def timed(sides: dict[str, Side], rounds: int) -> dict[str, np.ndarray]:
    """On every rank: interleaved rounds of all sides. Returns {side: (rounds,) seconds per call}.

    The sides must leave their buffers as the next one needs them. Every rank gets the times of the
    slowest rank.
    """
    calls = _calibrate(sides.values())
    seconds = interleave([lambda side=side: _clock(side, calls) for side in sides.values()], rounds)
    return dict(zip(sides, _slowest(seconds).T / calls, strict=True))


def where() -> str:
    """What this rank runs on: "gloo" or "nccl, NVIDIA H100"."""
    device = backend.device()
    return dist.get_backend() + (
        f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    )


def _clock(side, calls):
    with side.inside():
        dist.barrier()
        _synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            side.op()
        _synchronize()
        return time.perf_counter() - begin


def _calibrate(sides):
    """k: warm up, then raise it until the fastest side's k calls last SHORTEST."""
    calls = 1
    for side in sides:
        _clock(side, 2)
    while True:
        fastest = _slowest(np.array([_clock(side, calls) for side in sides])).min()
        if fastest >= SHORTEST:
            return calls
        calls = min(10 * calls, math.ceil(1.2 * calls * SHORTEST / fastest))


def _slowest(seconds):
    """The maximum over ranks, number by number: the same on every rank, so that all take
    the same decisions."""
    everywhere = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(everywhere, dist.ReduceOp.MAX)
    return everywhere.cpu().numpy()


def _synchronize():
    """A GPU's work is done when its stream is, not when the call returns."""
    if backend.device().type == "cuda":
        torch.cuda.synchronize()
