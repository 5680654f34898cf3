"""The forward pass of attention under context parallelism, on four paced ranks: instead of
computing attention a rank sleeps, but the messages are real, over an emulated link. Of the three
methods only the ring sends while it computes, so only the ring can hide its messages.

    ring      [ block 0 ][ block 1 ][ block 2 ][ block 3 ]     keys and values move meanwhile
    gathered  (all-gather of k, v)[ attention over all 4 blocks ]
    Ulysses   (all-to-all of q, k, v)[ attention over all tokens of a rank's heads ](all-to-all)

`ratio` is the time that the keys and values of one block take on the link, divided by the time of
attention to that block, for as many key/value heads as query heads (HEADS). With K key/value heads
the message takes only K / HEADS of that time.
"""

import functools
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from lib import collectives, launch
from lib.collectives import p2p
from lib.measuring.links import in_turns_over

METHODS = ("ring", "gathered", "Ulysses")
CP, HEADS = 4, 8
BLOCK = 0.012  # seconds of attention over one block
ROW = 800  # float32 elements of one head, over all tokens of a rank


def forwards(
    cases: Sequence[tuple[str, int]], ratio: float, rounds: int = 6
) -> Mapping[tuple[str, int], np.ndarray]:
    """{(method, key/value heads): (rounds,) seconds}. A round measures every case once, and every
    other round goes through them backwards."""
    return launch.run(_rounds, cases, _rate(ratio), rounds, nproc=CP, backend="gloo",
                      ledger=False)[0]  # fmt: skip


def predicted(method: str, K: int, ratio: float) -> float:
    """Seconds by the formula, for K key/value heads. A message takes its bytes over the rate, and
    only the ring's messages overlap with attention."""
    message = lambda heads: heads * ROW * 4 / _rate(ratio)
    if method == "ring":
        return BLOCK + (CP - 1) * max(BLOCK, message(2 * K))
    if method == "gathered":
        return CP * BLOCK + message((CP - 1) * 2 * K)
    return CP * BLOCK + message((CP - 1) / CP * (2 * HEADS + 2 * max(K, CP)))


def _rate(ratio):
    return 2 * HEADS * ROW * 4 / (BLOCK * ratio)  # bytes/s


def _forward(method, K):
    keys, mixed = torch.zeros(2 * K, ROW), torch.zeros(HEADS, ROW)
    if method == "ring":
        right, left = (dist.get_rank() + 1) % CP, (dist.get_rank() - 1) % CP
        for step in range(CP):
            last = step == CP - 1
            arrives = None if last else collectives.start(p2p.send_recv, keys, right, left)
            time.sleep(BLOCK)
            keys = keys if last else arrives.wait()
    elif method == "gathered":
        collectives.ring_all_gather(keys)
        time.sleep(CP * BLOCK)
    else:
        collectives.all_to_all(torch.zeros(HEADS + 2 * max(K, CP), ROW))  # q, k and v
        time.sleep(CP * BLOCK)
        collectives.all_to_all(mixed)


def _rounds(cases, rate, rounds):
    return in_turns_over(
        {case: (rate, functools.partial(_forward, *case)) for case in cases}, rounds
    )
