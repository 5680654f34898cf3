"""Splits layers into pipeline stages on devices of unequal speed and memory, so that the slowest
stage, which sets the pace, is as fast as possible.

    costs   1 1 1 1 1 1    speeds   4 2  seconds of a stage = its layers' costs / its device's speed
            1 1 1 | 1 1 1  3/4, 3/2      an equal split: pace 1.5, the fast device half idle
            1 1 1 1 | 1 1  4/4, 2/2      in proportion: pace 1

This is the dynamic program of `lib.pipeline.balance`, whose state also contains which devices are
left. pace(left, i) is the best pace of layers i and above on the devices `left`, each of which gets
one layer or more:

    pace({k}, i)  = cost of all of them / v_k
    pace(left, i) = min over k, j of max( cost of layers i ... j-1 / v_k, pace(left without k, j) )

If the order of the devices is given, k is the first of `left`. Otherwise k is any of `left`, and
the program chooses the order too, in about 2^p p L^2 steps instead of p! searches.

A stage must also fit into its device's memory. In 1F1B stage i of p keeps p - i micro-batches,
which is how many devices are left, its own included:

    state of its layers + (p - i) * what they keep for one micro-batch  <=  memory of its device

If memory is short, early stages get fewer layers than their speed would allow, or a device with
more memory.
"""

import math
from functools import cache
from itertools import accumulate
from typing import NamedTuple


class Placed(NamedTuple):
    """A split of the layers, and the device of each stage."""

    pace: float  # seconds per micro-batch of the slowest stage
    layers: list  # [range of stage 0's layers, range of stage 1's, ...]
    devices: list  # [device of stage 0, of stage 1, ...]


def stages_by_speed(costs, speeds, memory=None):
    """The fastest Placed in which stage i is on device i.

    costs: one per layer. speeds: one per device, above 0; a layer takes cost / speed seconds.
    memory: (state, activations, room). state and activations: for each layer, the bytes of its
    state and of what it keeps for one micro-batch. room: the bytes of each device. None: everything
    fits. Raises ValueError for more devices than layers, for a speed that is not above 0, or if no
    split fits.
    """
    return _place(costs, speeds, memory, lambda left: left[:1])


def stages_in_any_order(costs, speeds, memory=None):
    """Like `stages_by_speed`, but it also chooses the device of each stage. Use it only if all
    links are equally fast, and for up to about 12 devices."""
    return _place(costs, speeds, memory, lambda left: left)


def _place(costs, speeds, memory, next_ones):
    n, p = len(costs), len(speeds)
    if not 1 <= p <= n or min(speeds) <= 0:
        raise ValueError(
            f"{n} layers on devices of speeds {list(speeds)}: use 1 to {n} devices, of speeds "
            f"above 0"
        )
    before = [0, *accumulate(costs)]
    state, activations, room = memory or ([0] * n, [0] * n, [math.inf] * p)
    state, activations = [0, *accumulate(state)], [0, *accumulate(activations)]

    def seconds(i, j, k, depth):
        """Seconds of layers i ... j-1 on device k; infinite if they do not fit. depth: how many
        micro-batches the stage keeps."""
        held = state[j] - state[i] + depth * (activations[j] - activations[i])
        return (before[j] - before[i]) / speeds[k] if held <= room[k] else math.inf

    @cache
    def pace(left, i):
        """(best pace, device of the stage that begins with layer i, where it ends)"""
        if len(left) == 1:
            return seconds(i, n, left[0], 1), left[0], n
        return min(
            (max(seconds(i, j, k, len(left)), pace(without(left, k), j)[0]), k, j)
            for k in next_ones(left)
            for j in range(i + 1, n - len(left) + 2)  # leaves a layer for each of the others
        )

    left, i, layers, devices = tuple(range(p)), 0, [], []
    best = pace(left, 0)[0]
    if best == math.inf:
        raise ValueError(
            f"{n} layers do not fit on devices with room for {list(room)}: use more devices, or "
            f"recompute"
        )
    while left:
        _, k, end = pace(left, i)
        layers.append(range(i, end))
        devices.append(k)
        left, i = without(left, k), end
    return Placed(best, layers, devices)


def without(left, k):
    """The devices of `left` except k."""
    return tuple(each for each in left if each != k)
