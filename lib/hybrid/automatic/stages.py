"""Outer pass: layers into stages, and a number of devices for each stage (Zheng et al. 2022,
section 5).

    layers    0  1  2  3 | 4  5 | 6  7   a stage is a run of layers
    devices   [ 4      ] | [ 2] | [ 2]   on a submesh of 1, 2, 4 ... devices; all D devices are used

A pipeline of m micro-batches: the first passes all stages, and the others follow at the pace of the
slowest one.

    T = sum_i t_i + (m-1) max_i t_i      t_i: seconds of stage i for one micro-batch, there and back

GPipe takes T, if backward is the same multiple of forward in all stages; 1F1B takes T or, with few
micro-batches, less.

The sum can be minimised by dynamic programming; the maximum cannot, it belongs to all stages
together. So it is tried: for each time that any stage could have, as a `bound`, the best sum of
stages that are no slower,

    rest(i, d) = min over j, s of  t(layers i ... j-1 on s devices) + rest(j, d-s)        t <= bound
    T          = min over bounds of  rest(0, D) + (m-1) bound

A bound above the slowest stage counts too much, but then that stage's own time is a bound too, and
it counts right. Bounds go up; once (m-1) bound alone is more than the best T, no larger one can
win.

With L layers and S sizes of submesh there are at most S L^2 / 2 bounds, each S D L^2 / 2 steps.
Left out: memory (Alpa refuses a stage that does not fit, with the micro-batches that it keeps) and
the messages between stages.
"""

import math
from functools import cache
from itertools import accumulate
from typing import NamedTuple


class Stages(NamedTuple):
    """What the outer pass chose."""

    seconds: float  # of a step: T
    layers: list  # [range of stage 0's layers, range of stage 1's, ...]
    devices: list  # [how many devices stage 0 has, ...]


def cut_into_stages(costs, n_devices, microbatches):
    """The Stages of the smallest T.

    costs: {devices of a submesh: [seconds of each layer on it, for one micro-batch, there and
    back]}: the inner pass's times, or measured ones. math.inf where a layer cannot run on so many.
    n_devices: D, all of which are used. microbatches: m.
    Of several best, the one whose first stages have the fewest layers, then the fewest devices.
    Raises ValueError for lists of different lengths, m below 1, or where no stages use all devices.
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
    """[(first layer, end, devices), ...] with the smallest sum of times, none above `bound`; None
    if there are none."""

    @cache
    def rest(i, d):
        """(sum of the stages of layers i and later on d devices, where the first of them
        ends, its devices)."""
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
