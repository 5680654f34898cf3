"""Measures one data-parallel step on paced ranks over an emulated link: how much of its
communication is hidden behind compute, and how many messages are sent before backward has ended.

    rounds = PacedRounds(A, B, hidden=plots.hidden_share)     # A: buckets leave after backward
    found = measure(rounds, *rounds.claims)   # {"alpha", "hidden", "after backward", "overlapped"}
    rounds.middle()                           # {way: spans} of the round in the middle, to be drawn
    rounds.early("overlapped")                # messages that were sent before backward returned

A wrapper is a class such as those of lib.data_parallel. It is called as Wrapper(module,
all_reduce=..., capacity=bytes), and its average_gradients() waits for what is still in flight.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from lib import collectives, launch, ledger
from lib.collectives.slow_link import slow_link
from lib.measuring.paced import PacedLayer, Spans
from lib.measuring.rounds import Claim

ELEMENTS = 125_000  # per layer: 0.5 MB of gradients, which is one bucket
# seconds per layer: backward takes twice as long, because it has two matmuls for each of forward
FORWARD, BACKWARD = 0.012, 0.024


def message_seconds(group=None) -> float:
    """Seconds that even the shortest message takes on this link (alpha): a ring all-reduce of one
    element, divided by its 2(N-1) rounds."""
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(2):
        collectives.ring_all_reduce(torch.zeros(1), group)
    return (time.perf_counter() - begin) / (2 * 2 * max(1, dist.get_world_size(group) - 1))


def paced_step(Wrapper: Callable, name: str = "", n_layers: int = 8) -> list[tuple]:
    """On each rank: run forward, backward and average_gradients() of layers that wait, and return
    what the rank did and when, as a list of the tuples in `Spans`. Marks in the ledger, in this
    order: "NAME, during backward", "NAME, after backward" and "NAME, over"."""
    spans = Spans()  # (rank, lane, label, begin, end) of all that happens

    def timed(flat, group):
        with spans("network", str(sum(lane == "network" for _, lane, *_ in spans))):
            collectives.ring_all_reduce(flat, group)

    layers = nn.Sequential(*(PacedLayer(ELEMENTS, FORWARD, BACKWARD) for _ in range(n_layers)))
    model = Wrapper(layers, all_reduce=timed, capacity=4 * ELEMENTS)
    dist.barrier()
    with spans("compute", "forward"):
        loss = model(torch.ones(1, 1)).sum()
    ledger.mark(f"{name}, during backward")
    with spans("compute", "backward"):
        loss.backward()
    ledger.mark(f"{name}, after backward")
    with spans("compute", "wait"):
        model.average_gradients()
    ledger.mark(f"{name}, over")
    return list(spans)


def steps_in_turns(ways: Mapping[str, Callable], rounds: int, bandwidth: float) -> list[tuple]:
    """On each rank, for each round: (alpha by `message_seconds`, {way: this rank's spans})."""
    with slow_link(ranks_per_node=1, seconds_per_message=0, bytes_per_second=bandwidth):
        return [
            (
                message_seconds(),
                {way: paced_step(Wrapper, f"{way} {i}") for way, Wrapper in ways.items()},
            )
            for i in range(rounds)
        ]


class PacedRounds:
    """Steps of two wrappers, in turns. A call launches the ranks and returns {"alpha", "hidden",
    "after backward", "overlapped": (rounds,)}, as `measure` takes them: alpha in seconds per
    message, the hidden share, and the seconds of a step of either wrapper.

    after, overlapped: wrappers whose buckets leave after and during backward. hidden(spans): the
    share of a step's communication that is hidden. bandwidth: bytes per second of the link.
    """

    claims = (
        Claim("overlapped: {:.1%} of communication hidden", lambda f: f["hidden"], at_least=0.6),
        Claim(
            "an overlapped step takes {:.2f} of the other's time",
            lambda f: f["overlapped"] / f["after backward"],
            at_most=0.9,
        ),
    )

    def __init__(
        self,
        after: Callable,
        overlapped: Callable,
        hidden: Callable,
        bandwidth: float = 120e6,
        rounds: int = 6,
        nproc: int = 4,
    ) -> None:
        self.ways = {"after backward": after, "overlapped": overlapped}
        self.hidden, self.bandwidth = hidden, bandwidth
        self.rounds, self.nproc = rounds, nproc
        self.spans: list[dict[str, list]] = []  # of each round, of all ranks
        self.ledgers: list[Any] = []  # of each launch

    def __call__(self) -> dict[str, np.ndarray]:
        ranks = launch.run(
            steps_in_turns, self.ways, self.rounds, self.bandwidth,
            nproc=self.nproc, backend="gloo",
        )  # fmt: skip
        self.ledgers.append(ranks.ledger)
        new = [
            {way: [span for rank in ranks for span in rank[i][1][way]] for way in self.ways}
            for i in range(self.rounds)
        ]
        self.spans += new
        took = lambda spans: max(span[4] for span in spans) - min(span[3] for span in spans)
        *_, last = self.ways
        found = {way: np.array([took(spans[way]) for spans in new]) for way in self.ways}
        found["alpha"] = np.array([alpha for alpha, _ in ranks[0]])
        found["hidden"] = np.array([self.hidden(spans[last]) for spans in new])
        return found

    def middle(self) -> dict[str, list]:
        """{way: spans} of the round with the median hidden share, which is the round to draw."""
        *_, last = self.ways
        ranked = sorted(self.spans, key=lambda spans: self.hidden(spans[last]))
        return ranked[len(ranked) // 2]

    def early(self, way: str) -> tuple[int, int, float]:
        """(messages that were sent before backward returned, messages that were sent after it, the
        share of the former). The counts are those of the last round, and the share is the median
        over all rounds."""
        sent = np.array(
            [
                [logs.section(f"{way} {i}, {when} backward").sent("messages")
                 for when in ("during", "after")]
                for logs in self.ledgers
                for i in range(self.rounds)
            ]
        )  # (rounds, 2)  # fmt: skip
        return int(sent[-1, 0]), int(sent[-1, 1]), float(np.median(sent[:, 0] / sent.sum(1)))
