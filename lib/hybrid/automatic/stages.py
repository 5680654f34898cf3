"""Outer pass: splits the layers into pipeline stages, and chooses a number of devices for each
stage (Zheng et al. 2022, section 5).

    layers    0  1  2  3 | 4  5 | 6  7   a stage has consecutive layers
    devices   [ 4      ] | [ 2] | [ 2]   on a submesh of 1, 2, 4 ... devices; all D devices are used

In a pipeline of m micro-batches the first one passes all stages, and the others follow at the pace
of the slowest stage. With t_i, the seconds of stage i for one micro-batch, forward and backward:

    T = sum_i t_i + (m-1) max_i t_i

GPipe takes T if backward is the same multiple of forward in all stages. 1F1B takes T or, with few
micro-batches, less.

Dynamic programming can minimise the sum but not the maximum, because the maximum depends on all
stages together. We therefore try every possible value of it: for each time that any stage could
have, the `bound`, we find the best sum of stages that are no slower than this bound.

    rest(i, d) = min over j, s of  t(layers i ... j-1 on s devices) + rest(j, d-s)        t <= bound
    T          = min over bounds of  rest(0, D) + (m-1) bound

If the bound is above the time of the slowest stage, the formula overestimates T. That does no harm,
because this time is also among the bounds, and with it the formula is exact. We try the
bounds in increasing order, and stop when (m-1) bound alone exceeds the best T.

With L layers and S sizes of submesh there are about S L^2 / 2 bounds at most, and each takes about
S D L^2 / 2 steps. We leave out the messages between stages, and memory. (Alpa refuses a stage that
does not fit together with the activations of the micro-batches that it keeps.)
"""

import math
from functools import cache
from itertools import accumulate
from typing import NamedTuple


class Stages(NamedTuple):
    """The result of the outer pass."""

    seconds: float  # of a step: T
    layers: list  # [range of stage 0's layers, range of stage 1's, ...]
    devices: list  # [how many devices stage 0 has, ...]


def cut_into_stages(costs, n_devices, microbatches):
    """The Stages with the smallest T.

    costs: {devices of a submesh: [seconds of each layer on it, for one micro-batch, forward and
    backward]}, from the inner pass or measured; math.inf if a layer cannot run on so many devices.
    n_devices: D, all of which are used. microbatches: m.
    Of several best results it prefers the one whose first stages have the fewest layers, and then
    the fewest devices. Raises ValueError for lists that are empty or of different lengths, for m or
    n_devices below 1, or if no stages use all devices.
    """
    lengths = {len(times) for times in costs.values()}
    if len(lengths) != 1 or 0 in lengths or microbatches < 1 or n_devices < 1:
        raise ValueError(
            f"{sorted(lengths)} layers by submesh, {n_devices} devices, {microbatches} "
            f"micro-batches: use one list of layers for every submesh, all of one length, and 1 or "
            "more of each"
        )
    (n_layers,) = lengths
    before = {size: [0.0, *accumulate(times)] for size, times in costs.items()}
    seconds = lambda i, j, size: (
        before[size][j] - before[size][i] if before[size][i] < math.inf else math.inf
    )

    runs = [(i, j) for i in range(n_layers) for j in range(i + 1, n_layers + 1)]
    bounds = sorted({t for i, j in runs for size in costs if (t := seconds(i, j, size)) < math.inf})
    best = Stages(math.inf, [], [])
    for bound in bounds:
        if (microbatches - 1) * bound >= best.seconds:
            break
        found = _smallest_sum(seconds, sorted(costs), n_layers, n_devices, bound)
        if found is None:
            continue
        stages = [(range(i, j), size) for i, j, size in found]
        times = [seconds(i, j, size) for i, j, size in found]
        total = sum(times) + (microbatches - 1) * max(times)
        if total < best.seconds:
            best = Stages(total, [layers for layers, _ in stages], [size for _, size in stages])
    if best.seconds == math.inf:
        raise ValueError(
            f"no stages of {n_layers} layers use all {n_devices} devices by submeshes of "
            f"{sorted(costs)}: every stage has a layer or more; add a larger submesh, or use fewer "
            "devices"
        )
    return best


def _smallest_sum(seconds, sizes, n_layers, n_devices, bound):
    """The stages [(first layer, end, devices), ...] with the smallest sum of times among those that
    take at most `bound` each; None if there are none."""

    @cache
    def rest(i, d):
        """The best stages of layers i and later on d devices: (their sum of times, where the first
        of them ends, how many devices it has)."""
        if i == n_layers:
            return (0.0, 0, 0) if d == 0 else (math.inf, 0, 0)
        # rest(i, d) = min over j, s of  t(i ... j-1 on s) + rest(j, d-s)
        return min(
            (
                (t + rest(j, d - size)[0], j, size)
                for j in range(i + 1, n_layers + 1)
                for size in sizes
                if size <= d and (t := seconds(i, j, size)) <= bound
            ),
            default=(math.inf, 0, 0),
        )

    if rest(0, n_devices)[0] == math.inf:
        return None
    found, i, d = [], 0, n_devices
    while i < n_layers:
        _, end, size = rest(i, d)
        found.append((i, end, size))
        i, d = end, d - size
    return found
