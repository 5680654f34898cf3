"""Splits a sequence of layers into p stages so that the slowest stage is as fast as possible.

A pipeline moves at the pace of its slowest stage, the bottleneck. We measure the pace as the cost
of that stage, so a larger pace is a slower pipeline. p = 3, layers of cost

    2 2 2 | 1 1 1 1 | 4         6 4 4: pace 6
    2 2 | 2 1 1 1 | 1 4         4 5 5: pace 5, and no split is faster

Dynamic programming. pace(k, i) is the smallest pace of layers i and above, split into k stages:

    pace(1, i) = cost of all of them
    pace(k, i) = min over j of max( cost of layers i ... j-1, pace(k-1, j) )

For L layers this takes p L^2 / 2 steps, whereas trying every split would take (L-1 choose p-1).

Often several splits are best. Then the earliest stages take as few layers as they can: in 1F1B
stage i keeps p-i micro-batches, so a layer needs most memory in the first stage.
"""

from collections.abc import Sequence
from itertools import accumulate


# exercise: lab2.balance
def balance(costs: Sequence[float], p: int) -> list[range]:
    """The best split of layers with these costs into p stages: [range of stage 0's layers, range of
    stage 1's, ...].

    costs: one per layer, not negative: seconds, or anything that adds up. Every stage has at least
    one layer. Raises ValueError if there are no layers, or if p is not between 1 and their number.
    """
    n_layers = len(costs)
    if not n_layers:
        raise ValueError(f"there are no layers to split into {p} stages: give one cost per layer")
    if not 1 <= p <= n_layers:
        some = "1 stage" if n_layers == 1 else f"1 to {n_layers} stages"
        layers = "1 layer" if n_layers == 1 else f"{n_layers} layers"
        raise ValueError(
            f"{layers} into {p} stages: use {some}, because each has at least one layer"
        )
    before = [0, *accumulate(costs)]  # before[i]: cost of layers 0 ... i-1
    cost = lambda i, j: before[j] - before[i]  # of layers i ... j-1

    # pace(k, i) = min over j of max( cost(i, j), pace(k-1, j) )
    pace = {(1, i): cost(i, n_layers) for i in range(n_layers)}
    for k in range(2, p + 1):
        for i in range(n_layers - k + 1):
            ends = range(i + 1, n_layers - k + 2)  # leaves k-1 layers or more
            pace[k, i] = min(max(cost(i, j), pace[k - 1, j]) for j in ends)

    stages, first = [], 0
    for left in range(p - 1, 0, -1):  # stages still to come after this one
        end = next(
            j
            for j in range(first + 1, n_layers)
            if max(cost(first, j), pace[left, j]) <= pace[p, 0]
        )
        stages.append(range(first, end))
        first = end
    return [*stages, range(first, n_layers)]
