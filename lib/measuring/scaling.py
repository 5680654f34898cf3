"""Strong and weak scaling of data parallelism, measured on paced ranks over an emulated link.

    strong_and_weak   more and more ranks, with the total rows (strong) or the rows of each rank
                      (weak) fixed
    waiting_shares    a fixed number of ranks, with more and more rows each, over several links

Both are called on all ranks of a launch, with the class to measure, which is called as
Wrapper(module, group, all_reduce, capacity), as in lib.data_parallel. The layers wait instead of
computing (see `paced`), and the messages are real.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from lib import collectives
from lib.collectives.slow_link import slow_link
from lib.measuring.overlap import message_seconds
from lib.measuring.paced import PacedLayer

GRADIENT_BYTES, BUCKETS = 1e6, 2  # of the two layers


def paced_model(Wrapper: Callable, group, compute: tuple[float, float]):
    """A Wrapper around two layers that wait, with 1 MB of gradients in two buckets. compute:
    (seconds of forward, seconds of backward) per row, for both layers together."""
    layers = (PacedLayer(125_000, *(seconds / 2 for seconds in compute)) for _ in range(BUCKETS))
    return Wrapper(nn.Sequential(*layers), group, collectives.ring_all_reduce, 500_000)


def step_seconds(model, rows: int) -> float:
    """On each rank: the seconds of one step with `rows` rows on this rank."""
    dist.barrier(model.group)
    begin = time.perf_counter()
    model(torch.ones(rows, 1)).sum().backward()
    model.average_gradients()
    return time.perf_counter() - begin


def strong_and_weak(
    Wrapper: Callable,
    rounds: int,
    ranks: Sequence[int],
    rows: int,
    compute: tuple[float, float],
    bandwidth: float,
) -> dict[tuple[str, int], np.ndarray]:
    """{("strong" or "weak", N): (rounds, 2)}: alpha (see `message_seconds`) and the seconds of a
    step on the first N ranks. A round measures every N.

    ranks: the values of N. rows: of all ranks together (strong), or of each rank (weak). compute:
    see `paced_model`. bandwidth: bytes per second. A rank returns only the N in which it took part;
    ("strong", 1) is empty on all ranks but rank 0.
    """
    found: dict = {}
    groups = {N: dist.new_group(range(N)) for N in ranks}
    models = {
        N: paced_model(Wrapper, group, compute)
        for N, group in groups.items()
        if dist.get_rank() < N
    }
    for model in models.values():
        step_seconds(model, 1)  # the first step is slower than the others
    with slow_link(ranks_per_node=1, seconds_per_message=0, bytes_per_second=bandwidth):
        for _ in range(rounds):
            for N in ranks:
                dist.barrier()  # the other ranks wait in the next barrier, and use no processor
                if N in models:
                    alpha = message_seconds(groups[N])
                    for kind, b in (("weak", rows), ("strong", rows // N))[:N]:
                        seconds = step_seconds(models[N], b)
                        found.setdefault((kind, N), []).append((alpha, seconds))
    found["strong", 1] = found.get(("weak", 1), [])  # on one rank both are the same step
    return {case: torch.tensor(of_rounds).numpy() for case, of_rounds in found.items()}


def waiting_shares(
    Wrapper: Callable,
    rounds: int,
    links: Mapping[str, float],
    batches: Sequence[int],
    compute: tuple[float, float],
) -> dict[str, np.ndarray]:
    """On each rank: {link: (rounds, 2, batches)}, which are alpha (see `message_seconds`) and the
    share of a step in which this rank does not compute, for each number of rows.

    links: {name: bytes per second}. batches: numbers of rows per rank. compute: see `paced_model`.
    """
    found: dict = {}
    model = paced_model(Wrapper, None, compute)
    step_seconds(model, 1)
    for _ in range(rounds):
        for link, bandwidth in links.items():
            with slow_link(ranks_per_node=1, seconds_per_message=0, bytes_per_second=bandwidth):
                alpha = message_seconds()
                shares = [1 - b * sum(compute) / step_seconds(model, b) for b in batches]
                found.setdefault(link, []).append(([alpha] * len(batches), shares))
    return {link: torch.tensor(of_rounds).numpy() for link, of_rounds in found.items()}
