"""What each algorithm sends, counted and timed: pure functions, no torch.

    COST[name].rounds(N)                       messages one after another, on the longest chain
    COST[name].sent(n, N)                      elements sent by the rank that sends most
    COST[name].total(n, N)                     elements sent by all ranks together
    COST[name].time(n_bytes, N, alpha, beta)   seconds

N       ranks                              alpha   seconds per message, however short (latency)
n       elements of the full tensor        beta    seconds per byte (1 / bandwidth)
P       largest power of two up to N       L       ceil(log2 N)

The full tensor is what all_gather returns, what reduce_scatter, scatter and all_to_all are given,
and what gather collects. The counts are exact even if N does not divide n; all_to_all is counted
for equal blocks, and roots are rank 0. The time model: a message of m bytes takes alpha + m beta; a
rank can send one message and receive one at the same time (full duplex); all links are equally
fast; the additions are free; and every chunk has exactly n/N elements.

Sources: Thakur, Rabenseifner, Gropp 2005 (all but the ring's optimality); Patarasuk & Yuan 2009
(ring); Chan, Heimlich, Purkayastha, van de Geijn 2007 (lower bounds: L alpha, and 2(N-1)/N n beta
for all-reduce).
"""

from collections.abc import Callable
from typing import NamedTuple


class Cost(NamedTuple):
    """One algorithm's four formulas; see the module's legend for their arguments and units."""

    rounds: Callable  # (N) -> int
    sent: Callable  # (n, N) -> int
    total: Callable  # (n, N) -> int
    time: Callable  # (n_bytes, N, alpha, beta) -> float


def chunk_sizes(n: int, N: int) -> list[int]:
    """[elements in chunk 0, 1, ... N-1]: as in tensor_split, the first n mod N have one more."""
    return [n // N + (chunk < n % N) for chunk in range(N)]


def L(N: int) -> int:
    """ceil(log2 N): how often N has to be halved, rounding up, until 1 is left."""
    return (N - 1).bit_length()


def P(N: int) -> int:
    """The largest power of two up to N."""
    return 1 << (N.bit_length() - 1)


def folded(N: int) -> int:
    """1 if N is not a power of two, because doubling.py then has a pre-step, `fold`, and a
    post-step, `unfold`, of one round each; otherwise 0."""
    return int(P(N) < N)


def ring_sent(n: int, N: int) -> int:
    """Rank r forwards every chunk but r while reducing, and every chunk but r+1 while
    gathering."""
    size = chunk_sizes(n, N)
    return max(2 * n - size[r] - size[(r + 1) % N] for r in range(N))


def halving_doubling_sent(n: int, N: int) -> int:
    """In each round rank r sends the block that its partner keeps (halving), or its own
    (doubling)."""
    p = P(N)
    bounds = [n * chunk // p for chunk in range(p + 1)]
    block = lambda r, distance: bounds[r - r % distance + distance] - bounds[r - r % distance]
    distances = [1 << bit for bit in range(L(p))]
    sent = lambda r: sum(block(r ^ d, d) + block(r, d) for d in distances) + (n if r + p < N else 0)
    return max(max(sent(r) for r in range(p)), n if p < N else 0)


# exercise: lab0.ring_time
def ring_time(n_bytes: float, N: int, alpha: float, beta: float) -> float:
    """Seconds of a ring all-reduce of n_bytes over N ranks, in chunks of exactly n_bytes / N."""
    return 2 * (N - 1) * (alpha + n_bytes / N * beta)


COST = {
    "broadcast": Cost(
        rounds=lambda N: L(N),
        sent=lambda n, N: L(N) * n,  # by the root: every round
        total=lambda n, N: (N - 1) * n,
        time=lambda n_bytes, N, alpha, beta: L(N) * (alpha + n_bytes * beta),
    ),
    "reduce": Cost(
        rounds=lambda N: L(N),
        sent=lambda n, N: n if N > 1 else 0,  # by every rank but the root: once
        total=lambda n, N: (N - 1) * n,
        time=lambda n_bytes, N, alpha, beta: L(N) * (alpha + n_bytes * beta),
    ),
    "scatter": Cost(
        rounds=lambda N: N - 1,
        sent=lambda n, N: n - chunk_sizes(n, N)[0],
        total=lambda n, N: n - chunk_sizes(n, N)[0],
        time=lambda n_bytes, N, alpha, beta: (N - 1) * (alpha + n_bytes / N * beta),
    ),
    "gather": Cost(
        rounds=lambda N: N - 1,
        sent=lambda n, N: chunk_sizes(n, N)[1] if N > 1 else 0,
        total=lambda n, N: n - chunk_sizes(n, N)[0],
        time=lambda n_bytes, N, alpha, beta: (N - 1) * (alpha + n_bytes / N * beta),
    ),
    "all_gather": Cost(
        rounds=lambda N: N - 1,
        sent=lambda n, N: n - min(chunk_sizes(n, N)),  # all chunks but one
        total=lambda n, N: (N - 1) * n,
        time=lambda n_bytes, N, alpha, beta: (N - 1) * (alpha + n_bytes / N * beta),
    ),
    "reduce_scatter": Cost(
        rounds=lambda N: N - 1,
        sent=lambda n, N: n - min(chunk_sizes(n, N)),
        total=lambda n, N: (N - 1) * n,
        time=lambda n_bytes, N, alpha, beta: (N - 1) * (alpha + n_bytes / N * beta),
    ),
    "all_to_all": Cost(
        rounds=lambda N: N - 1,
        sent=lambda n, N: n - n // N,
        total=lambda n, N: (N - 1) * n,
        time=lambda n_bytes, N, alpha, beta: (N - 1) * (alpha + n_bytes / N * beta),
    ),
    "barrier": Cost(
        rounds=lambda N: L(N),
        sent=lambda n, N: L(N),  # one byte a round, whatever n
        total=lambda n, N: N * L(N),
        time=lambda n_bytes, N, alpha, beta: L(N) * (alpha + beta),
    ),
    # Six ways to all-reduce.
    "star": Cost(
        rounds=lambda N: 2 * (N - 1),
        sent=lambda n, N: (N - 1) * n,  # by rank 0
        total=lambda n, N: 2 * (N - 1) * n,
        # exercise: lab0.star_time
        time=lambda n_bytes, N, alpha, beta: 2 * (N - 1) * (alpha + n_bytes * beta),
    ),
    "tree": Cost(
        rounds=lambda N: 2 * L(N),
        sent=lambda n, N: L(N) * n,
        total=lambda n, N: 2 * (N - 1) * n,
        # exercise: lab0.tree_time
        time=lambda n_bytes, N, alpha, beta: 2 * L(N) * (alpha + n_bytes * beta),
    ),
    "ring": Cost(
        rounds=lambda N: 2 * (N - 1),
        sent=ring_sent,  # 2(N-1)/N n where N divides n
        total=lambda n, N: 2 * (N - 1) * n,
        time=ring_time,
    ),
    "direct": Cost(
        rounds=lambda N: 2 * (N - 1),
        # all chunks but its own, and that one N-1 times
        sent=lambda n, N: n + (N - 2) * max(chunk_sizes(n, N)),
        total=lambda n, N: 2 * (N - 1) * n,
        time=ring_time,  # the same number of rounds, and messages of the same size
    ),
    "recursive_doubling": Cost(
        rounds=lambda N: L(P(N)) + 2 * folded(N),
        sent=lambda n, N: (L(P(N)) + folded(N)) * n,
        total=lambda n, N: P(N) * L(P(N)) * n + 2 * (N - P(N)) * n,
        # exercise: lab0.recursive_doubling_time
        time=lambda n_bytes, N, alpha, beta: (L(P(N)) + 2 * folded(N)) * (alpha + n_bytes * beta),
    ),
    "halving_doubling": Cost(
        rounds=lambda N: 2 * L(P(N)) + 2 * folded(N),
        sent=halving_doubling_sent,  # 2(P-1)/P n where N = P divides n
        total=lambda n, N: 2 * (P(N) - 1) * n + 2 * (N - P(N)) * n,
        # exercise: lab0.halving_doubling_time
        time=lambda n_bytes, N, alpha, beta: (
            2 * (L(P(N)) * alpha + (P(N) - 1) / P(N) * n_bytes * beta)
            + 2 * folded(N) * (alpha + n_bytes * beta)
        ),
    ),
}


# exercise: lab0.cheapest
def cheapest(n_bytes: float, N: int, alpha: float, beta: float) -> str:
    """The name of the fastest of the five all-reduces that Lab 0 compares: star, tree, ring,
    recursive_doubling and halving_doubling."""
    names = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
    return min(names, key=lambda name: COST[name].time(n_bytes, N, alpha, beta))


def hierarchical(R: int) -> Cost:
    """The Cost of the hierarchical all-reduce with R ranks per node (R divides N), all links
    equally fast."""

    def sent(n, N):
        """Rank i of a node runs a ring over its node, and a ring over the M nodes for chunk i."""
        M, size = N // R, chunk_sizes(n, R)
        return max(2 * n - size[i] - size[(i + 1) % R] + ring_sent(size[i], M) for i in range(R))

    return Cost(
        rounds=lambda N: 2 * (R - 1) + 2 * (N // R - 1),
        sent=sent,
        # inside all nodes + between nodes
        total=lambda n, N: 2 * N // R * (R - 1) * n + 2 * (N // R - 1) * n,
        time=lambda n_bytes, N, alpha, beta: hierarchical_time(
            n_bytes, N // R, R, (alpha, beta), (alpha, beta / R)
        ),
    )


def hierarchical_time(
    n_bytes: float, M: int, R: int, inside: tuple[float, float], across: tuple[float, float]
) -> float:
    """Seconds of the hierarchical all-reduce over M nodes of R ranks.

    inside: (alpha, beta) of a rank's link to the others of its node.
    across: (alpha, beta) of the one link that connects a node with the others. Its R ranks share
        it, so in each round R messages of n/(R M) elements pass through it. If each rank has a NIC
        of its own instead, the node's bandwidth is R times that of a NIC: pass beta / R, with the
        NIC's beta.
    """
    fast = COST["ring"].time(n_bytes, R, *inside)
    slow = COST["ring"].time(n_bytes, M, *across)  # R rings of n/R each through one link: n in all
    return fast + slow
