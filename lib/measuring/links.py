"""Measures how long messages and collectives take on a link, and fits alpha (seconds per message)
and beta (seconds per byte) to them.

    here, emulated = measure_links({"seconds_per_message": 0.005, "bytes_per_second": 20e6})
    here.alpha, here.beta                        seconds, seconds per byte

    seconds = race({"ring": ring_all_reduce, "tree": tree_all_reduce}, [1000, 2_000_000], link, 5)

Every function that runs on ranks measures in rounds, and a round goes through all sizes and
algorithms, so that a moment in which the machine is slow affects all of them alike. `link` is None
for the link that the ranks have, or the arguments of `slow_link` for an emulated one. Launch these
functions with ledger=False, because logging every message takes time.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from lib import backend, launch
from lib.collectives import node_groups, p2p
from lib.collectives.cost import COST
from lib.collectives.slow_link import slow_link
from lib.measuring.rounds import Claim, interleave, measure

SIZES = (4, 1000, 16_000, 250_000, 1_000_000, 4_000_000, 16_000_000)  # bytes
LARGER = (4, 1000, 16_000, 250_000, 4_000_000, 16_000_000, 64_000_000)


class Link(NamedTuple):
    """What a ping-pong found about a link.

    sizes: of the messages, in bytes. seconds: the median for each size. ratios: the median of each
    size's seconds over those of the shortest message. alpha + bytes * beta: the line through them.
    """

    name: str
    sizes: list[int]
    seconds: np.ndarray
    ratios: np.ndarray  # taken round by round, as the claims take them
    alpha: float
    beta: float
    measured: bool  # False if the claims could not be measured, so that these are typical values

    def time(self, n_bytes: float) -> float:
        """Seconds that a message of n_bytes takes: alpha + n_bytes * beta."""
        return self.alpha + n_bytes * self.beta

    def times_as_long(self, n_bytes: int) -> float:
        """The factor by which a message takes longer than the shortest one: the median over
        rounds."""
        return float(self.ratios[self.sizes.index(n_bytes)])


def measure_links(link: dict) -> tuple[Link, Link]:
    """Measure two links with a ping-pong of six rounds or more: (the link between two ranks of this
    machine, the emulated one).

    link: the arguments of `slow_link`. Prints three claims, and alpha and the bandwidth of both
    links. If a claim could not be measured, it says so and returns typical values. Raises Refuted
    if a claim is refuted.
    """
    here, emulated = sizes_for(backend.choose("auto", 2).name), list(SIZES[:5])
    run = lambda *args: launch.run(ping_pong, *args, nproc=2, ledger=False)[0]
    ratio = lambda t, size: t["here"][:, here.index(size)] / t["here"][:, 0]
    slope = lambda t: (t["emulated"][:, -1] - t["emulated"][:, 0]) / (emulated[-1] - emulated[0])
    found = measure(
        lambda: {"here": run(here, 6, 9), "emulated": run(emulated, 6, 1, link)},
        Claim("4 MB take {:.1f} times as long as 4 B", lambda t: ratio(t, 4_000_000), 1.2, 200),
        Claim("1 kB takes {:.2f} times as long as 4 B", lambda t: ratio(t, 1000), 0.5, 2),
        Claim("the emulated link carries {:.1f} MB/s", lambda t: 1e-6 / slope(t), 15, 21),
    )
    typical = 1e-4, 1 / 2e9, link["seconds_per_message"], 1 / link["bytes_per_second"]
    links = []
    for name, key, sizes, (alpha, beta) in (
        ("this machine", "here", here, typical[:2]),
        ("emulated link", "emulated", emulated, typical[2:]),
    ):
        seconds = alpha + beta * np.array(sizes, float)
        ratios = seconds / seconds[0]
        if found:
            seconds = np.median(found[key], axis=0)
            ratios = np.median(found[key] / found[key][:, :1], axis=0)
            alpha, beta = fit(sizes, seconds)
            print(f"{name}: alpha {alpha * 1e6:,.0f} µs, bandwidth {1e-6 / beta:,.0f} MB/s; at "
                  f"{alpha / beta / 1e3:,.0f} kB both parts are equal")  # fmt: skip
        links.append(Link(name, sizes, seconds, ratios, alpha, beta, bool(found)))
    return tuple(links)


def race(
    algorithms: Mapping[str, Callable], sizes: Sequence[int], link: dict, nproc: int
) -> dict[str, np.ndarray]:
    """{name: (rounds, sizes) seconds} of all-reduces, from one launch of six rounds, as `measure`
    takes them.

    algorithms: {name: all_reduce(tensor)}. sizes: bytes of the tensor. Each rank has a NIC of its
    own.
    """
    return of_the_slowest(
        launch.run(time_all_reduces, algorithms, sizes, 6, link, nproc=nproc, ledger=False)
    )


def medians(timed: Mapping[str, np.ndarray], sizes: Sequence[int]) -> dict:
    """{name: (sizes, median seconds over the rounds)}, as `plots.cost_curves` draws them. timed:
    what `race` returned."""
    return {name: (sizes, np.median(seconds, axis=0)) for name, seconds in timed.items()}


def predicted(sizes: Sequence[int], N: int, link: Link) -> dict:
    """{name: (40 sizes, seconds)}: what the five all-reduces of Lab 0 take on N ranks by their
    formulas, from the smallest to the largest of `sizes`."""
    n = np.geomspace(sizes[0], sizes[-1], 40)
    names = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
    return {
        name.replace("_", " "): (n, COST[name].time(n, N, link.alpha, link.beta)) for name in names
    }


def sizes_for(backend_name: str) -> list[int]:
    """Bytes of the messages of a ping-pong, from four bytes, where latency dominates, to a size at
    which bandwidth does.

    Over NVLink ("nccl") even 4 MB take little longer than the two calls, so larger ones are used.
    """
    return list(LARGER if backend_name == "nccl" else SIZES)


def ping_pong(
    sizes: Sequence[int], rounds: int, trips: int = 1, link: dict | None = None
) -> np.ndarray:
    """Seconds that a message of each size takes from one of two ranks to the other.

    sizes: bytes, multiples of 4. trips: how often a message is sent there and back in each round.
    Returns (rounds, sizes): half the time of the round's fastest trip there and back.
    Sends: one trip to warm up, then rounds * trips of each size, each way.
    """
    rank, x = dist.get_rank(), torch.zeros(max(sizes) // 4)
    there, back = (p2p.send, p2p.recv) if rank == 0 else (p2p.recv, p2p.send)

    def trip(size):
        start, message = time.perf_counter(), x[: size // 4]
        there(message, 1 - rank)
        back(message, 1 - rank)
        backend.synchronize()  # a call returns before the GPU has finished
        return (time.perf_counter() - start) / 2

    with _on(link, 1):
        trip(sizes[0])
        return np.array(
            [[min(trip(size) for _ in range(trips)) for size in sizes] for _ in range(rounds)]
        )


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit seconds = alpha + bytes * beta, and return (alpha, beta), both above 0.

    We minimise the squares of the relative errors. The times differ by orders of magnitude, so with
    absolute errors the short messages, which determine alpha, would hardly count.
    """
    m, t = np.asarray(sizes, float), np.asarray(seconds, float)
    alpha, beta = np.linalg.lstsq(np.stack([1 / t, m / t], axis=1), np.ones_like(t), rcond=None)[0]
    return max(float(alpha), 1e-9), max(float(beta), 1e-15)


def time_all_reduces(
    algorithms: Mapping[str, Callable], sizes: Sequence[int], rounds: int, link: dict | None = None
) -> dict[str, np.ndarray]:
    """On each rank: {name: (rounds, sizes) seconds} of all_reduce(tensor), for tensors of `sizes`
    bytes. Each rank has a NIC of its own."""
    seconds = {name: np.empty((rounds, len(sizes))) for name in algorithms}
    with _on(link, 1):
        for i, j in np.ndindex(rounds, len(sizes)):
            for name, all_reduce in algorithms.items():
                x = torch.zeros(sizes[j] // 4)
                seconds[name][i, j] = _seconds(lambda run=all_reduce, x=x: run(x))
    return seconds


def flat_and_two_levels(
    flat: Callable, hierarchical: Callable, n_bytes: int, rounds: int, link: dict | None = None
) -> dict[str, np.ndarray]:
    """On each rank: {"flat ring": (rounds,) seconds, "two levels": ...}, for nodes of 4 ranks that
    share a NIC.

    flat: called as flat(tensor); hierarchical: as hierarchical(tensor, inside, across).
    """
    inside, across = node_groups(4)
    sides = {"flat ring": flat, "two levels": lambda x: hierarchical(x, inside, across)}
    x, seconds = torch.zeros(n_bytes // 4), {name: np.empty(rounds) for name in sides}
    with _on(link, 4):
        for i in range(rounds):
            for name, all_reduce in sides.items():
                seconds[name][i] = _seconds(lambda run=all_reduce: run(x))
    return seconds


def in_turns_over(
    sides: Mapping[object, tuple[float, Callable[[], object]]], rounds: int
) -> dict[object, np.ndarray]:
    """On each rank: {side: (rounds,) seconds from a barrier until all ranks have finished}. A round
    measures every side once, and every other round goes through them backwards.

    sides: {name: (bytes per second of each rank's NIC, the function that is timed)}.
    """

    def clock(rate, run):
        with slow_link(ranks_per_node=1, seconds_per_message=0.0, bytes_per_second=rate):
            return _seconds(lambda: (run(), dist.barrier()))

    seconds = interleave([functools.partial(clock, *side) for side in sides.values()], rounds)
    return dict(zip(sides, seconds.T, strict=True))


def of_the_slowest(ranks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The seconds of a collective, from those of its ranks. A collective is over when its last rank
    has finished."""
    return {name: np.max([rank[name] for rank in ranks], axis=0) for name in ranks[0]}


def _on(link, ranks_per_node):
    if link is None:
        return contextlib.nullcontext()
    return slow_link(ranks_per_node=ranks_per_node, **link)


def _seconds(run):
    dist.barrier()
    start = time.perf_counter()
    run()
    backend.synchronize()
    return time.perf_counter() - start
