"""The alpha-beta model put to the test: fit alpha and beta, predict, find where two algorithms
cross.

    one message of m bytes   alpha + m beta             `fit`, from a ping-pong
    an algorithm on N ranks  lib.collectives.cost       `predict`: every link works at once
    the other extreme        beta * bytes of all ranks  `one_by_one`: the machine moves
                                                        one byte at a time

Times here are {bytes: seconds}.
"""

import math

import numpy as np

from lib.collectives import cost


def fit(link):
    """(alpha, beta), seconds and seconds per byte, of the times of one message; least squares of
    relative errors."""
    m, t = np.array(list(link), dtype=float), np.array(list(link.values()))
    # (alpha + m beta) / t = 1 for every size: two unknowns, a line per size
    (alpha, beta), *_ = np.linalg.lstsq(
        np.stack([1 / t, m / t], axis=1), np.ones(len(m)), rcond=None
    )
    if not (alpha > 0 and beta > 0):
        raise RuntimeError(
            f"alpha {alpha:.3g} s, beta {beta:.3g} s per byte: the ping-pong was too noisy, run it "
            f"again"
        )
    return float(alpha), float(beta)


def formulas(name, N):
    """The algorithm's Cost on N ranks; "hierarchical" is two nodes of N/2."""
    return cost.hierarchical(N // 2) if name == "hierarchical" else cost.COST[name]


def predict(name, sizes, N, alpha, beta):
    return {nbytes: formulas(name, N).time(nbytes, N, alpha, beta) for nbytes in sizes}


def one_by_one(name, nbytes, N, beta):
    return formulas(name, N).total(nbytes // 4, N) * 4 * beta  # counted in elements of 4 bytes


def overtaken(before, after):
    """The size from which `after` stays faster than `before`: inf for never, 0 for
    from the start."""
    sizes = sorted(before)
    # above 0: `after` is faster
    lead = [math.log(before[nbytes] / after[nbytes]) for nbytes in sizes]
    if lead[-1] <= 0:
        return math.inf
    # the last size where it is not
    last = max((i for i in range(len(sizes)) if lead[i] <= 0), default=None)
    if last is None:
        return 0
    # where a straight line between two sizes crosses 0
    share = lead[last] / (lead[last] - lead[last + 1])
    return sizes[last] * (sizes[last + 1] / sizes[last]) ** share
