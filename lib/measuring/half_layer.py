"""Half a transformer layer (attention or the MLP) under tensor parallelism, on paced ranks: instead
of computing its matmuls a rank sleeps, but the all-reduces are real, over an emulated link. In this
way four ranks on two cores show when tensor parallelism pays off.

    forward     [ matmul ][ g: all-reduce ]
    backward    [ gradient of x ][ gradient of the weights ][ f: all-reduce ]
    overlapped  [ gradient of x ][ gradient of the weights ]
                                 [ f: all-reduce ........ ]      in the background

Each of the three matmuls takes COMPUTE / 3 on one rank, and a tp-th of that on each of tp ranks.
If a rank's all-reduces take k (tp-1) times as long as its matmuls, and do not overlap with them, tp
ranks need (1 + (tp-1) k) / tp of one rank's time.
"""

import functools
import time
from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist

from lib import collectives, launch
from lib.backend import Group
from lib.measuring.links import in_turns_over

COMPUTE = 0.24  # seconds of matmuls on one rank
ELEMENTS = 16_000  # of x (B, T, D), the float32 tensor that an all-reduce sums


def half_layer(x: torch.Tensor, tp: int, group: Group, overlap: bool = False) -> None:
    """Forward and backward on tp ranks: paced matmuls, and two real all-reduces of x in place.

    overlap: f runs in the background while the gradient of the weights is computed, because that
    gradient does not need the result of f.
    """
    matmul = COMPUTE / 3 / tp
    time.sleep(matmul)
    collectives.ring_all_reduce(x, group)  # g, forward
    time.sleep(matmul)  # backward: the gradient of x
    if overlap:
        f = collectives.start(collectives.ring_all_reduce, x, group)
        time.sleep(matmul)  # meanwhile: the gradient of the weights
        f.wait()
    else:
        time.sleep(matmul)
        collectives.ring_all_reduce(x, group)  # f, backward


def bytes_per_second(k: float) -> float:
    """The bandwidth at which the two all-reduces take k (tp-1) times as long as a rank's
    matmuls."""
    return 2 * 2 * 4 * ELEMENTS / (COMPUTE * k)  # two all-reduces of 4 bytes per element


def half_layers(
    sides: Mapping[object, tuple[float, int, bool]], rounds: int = 6
) -> dict[object, np.ndarray]:
    """{side: (rounds,) seconds} on four ranks. A round measures every side once, and every other
    round goes through them backwards.

    sides: {name: (bytes per second, tp, overlap)}.
    """
    return launch.run(_rounds, sides, rounds, nproc=4, backend="gloo", ledger=False)[0]


def against_formula(
    found: Mapping[object, np.ndarray], ks: Mapping[str, float]
) -> tuple[dict, dict]:
    """({name: (tp, median seconds)}, {name: (tp, seconds by the formula)}) for tp = 1, 2, 4.

    found: what `half_layers` returns for the sides "one rank" and (name, tp). ks: {name: k}.
    """
    middle = {side: float(np.median(seconds)) for side, seconds in found.items()}
    tps = (1, 2, 4)
    measured = {n: (tps, [middle["one rank"], middle[n, 2], middle[n, 4]]) for n in ks}
    formula = {n: (tps, [COMPUTE * (1 + (tp - 1) * k) / tp for tp in tps]) for n, k in ks.items()}
    return measured, formula


def _rounds(sides, rounds):
    rank, x = dist.get_rank(), torch.zeros(ELEMENTS)
    groups = {
        n: [dist.new_group(range(i, i + n)) for i in range(0, 4, n)][rank // n] for n in (1, 2, 4)
    }
    over = {
        side: (rate, functools.partial(half_layer, x, tp, groups[tp], overlap))
        for side, (rate, tp, overlap) in sides.items()
    }
    return in_turns_over(over, rounds)
