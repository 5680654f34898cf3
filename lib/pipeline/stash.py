"""PipeDream: 1F1B that never flushes. Which weights does each action read? (Narayanan et al. 2019)

Every stage updates its weights right after each B, while the next mini-batches are already in
flight. So the pipeline never drains, and there is no bubble between two updates. The price is that
a mini-batch may run backward through other weights than it ran forward with. Rank 0 of p = 4; u1 is
the update that the backward of mini-batch 1 makes:

    0F0 0F1 0F2 0F3  0B0 u0  0F4  0B1 u1  0F5  0B2 u2  0F6  0B3 u3  0F7  0B4 u4  ...
                              |                                           |
                   4 runs forward after u0                  ... and backward after u0, u1, u2, u3

(The paper counts from 1: mini-batch 5 forward after update 1, and updates 2 to 4 before its
backward.)

Version k is what a stage's weights are after its first k updates. At stage i mini-batch j reads

                          forward            backward
    without stashing      max(0, j-(p-1-i))  j         two different weights: no function's gradient
    with weight stashing  max(0, j-(p-1-i))  the same  a gradient, of weights p-1-i updates old

(The stages' weights are of different ages, p-1 updates old at the first, none at the last. Together
they are still one function, and what is computed is its gradient.)

Weight stashing keeps the weights that each mini-batch ran forward with until its B: stage i has p-i
mini-batches in flight, so it keeps p-i versions, the newest among them. The last stage keeps just
the one that every stage keeps. Rank 0 of p = 3; w_k are its weights after k updates:

              F0    F1    F2    B0 u0   F3    B1 u1   F4    B2 u2   F5
    reads     w_0   w_0   w_0   w_0     w_1   w_0     w_2   w_0     w_3   a B what its own F read
    newest    w_0 ............. w_1 ......... w_2 ......... w_3 ........
    kept too                    w_0           w_0 w_1       w_1 w_2       at most p-1-i at stage i

Weights are copied only if a mini-batch needs them. They change in place, unless a mini-batch in
flight still has to run backward with them; then the stage continues with a copy. So the last stage,
where every F is followed by its own B, never copies.

weights     {name: tensor}, all of a stage's
version     the weights after a given number of updates
"""

from collections.abc import Callable
from typing import Any

from lib.pipeline.actions import Action
from lib.pipeline.schedules import one_f_one_b


def pipedream(p: int, n: int) -> list[list[Action]]:
    """The order of PipeDream for n mini-batches: 1F1B's. Returns a list per rank.

    What is different is when weights change: after every B, not once after all of them.
    """
    return one_f_one_b(p, n)


def versions(p: int, n: int, stashing: bool) -> Any:
    """{Action: version of its stage's weights that it reads}, for n mini-batches over p ranks.

    Version k: after k updates of that stage. stashing: B reads the version that its F read; else
    the newest.
    """
    reads = {}
    for actions in pipedream(p, n):
        updates = 0
        for action in actions:
            forward = action._replace(kind="F")
            if action.kind == "B":
                reads[action] = reads[forward] if stashing else updates
                updates += 1
            else:
                reads[action] = updates
    return reads


class NewestOnly:
    """No stash: backward reads the newest weights, whatever its forward has read. What it computes
    is the gradient of no function."""

    def __init__(self, weights):
        self.newest = weights

    def for_forward(self, j):
        return self.newest

    def for_backward(self, j):
        return self.newest

    def update(self, change):
        change(self.newest)


# exercise: lab2.WeightStash
class WeightStash:
    """The versions of one stage's weights that are still needed: the newest, and what mini-batches
    in flight have read.

    For each mini-batch j a stage makes these calls, in this order and with calls for other
    mini-batches in between:

        weights = stash.for_forward(j)         # F: compute with these
        weights = stash.for_backward(j)        # B: once more with the same
        stash.update(change)                   # then the newest weights are updated
    """

    def __init__(self, weights: dict[str, Any]) -> None:
        """weights: {name: tensor} of version 0, without grad. The stash may change these
        tensors."""
        self.newest = weights
        self.in_flight = {}  # mini-batch: the weights of its forward, from F to B

    def for_forward(self, j: int) -> Any:
        """The newest weights, {name: tensor}; remembered until mini-batch j's backward."""
        self.in_flight[j] = self.newest
        return self.newest

    def for_backward(self, j: int) -> Any:
        """The values that for_forward(j) gave. The stash forgets them, unless they are the newest
        or another mini-batch needs them."""
        return self.in_flight.pop(j)

    def update(self, change: Callable) -> None:
        """Make the newest version newer: change(weights) changes all of these tensors in place,
        from the newest version to the next.

        Call `change` once. What a mini-batch in flight has read must not change, so the newest
        weights are copied if one has read them; otherwise they change in place.
        """
        if any(weights is self.newest for weights in self.in_flight.values()):
            self.newest = {name: w.clone() for name, w in self.newest.items()}
        change(self.newest)


class TwoVersions:
    """2BW, double-buffered weight updates: PipeDream with two versions of the weights on every
    rank, not p-i of them.

    A batch is m micro-batches, m >= p. The pipeline never drains, but weights change once per
    batch, and all micro-batches of batch k read the version that batch k-2 made, forward and
    backward, on every stage:

        batch              0     1     2     3     version k: after the updates of batches 0 ... k-1
        reads version      0     0     1     2     w_{k+1} = w_k - lr grad f(w_{k-1})
        makes version      1     2     3     4

    Why two are enough: when the last backward of batch k makes version k+1, everything in flight
    belongs to batch k+1 and reads version k. So version k-1 can be freed before k+1 is written.

    PipeDream's gradients are p-1-i updates old at stage i; these are one update old on all stages.
    What is computed is the gradient of one version of the whole model.

    Narayanan et al. 2021 ("Memory-efficient pipeline-parallel DNN training").
    """

    def __init__(self, weights, m):
        """weights: {name: tensor} of version 0. m: micro-batches per batch, at least as many as the
        pipeline has stages."""
        self.m = m
        self.versions = {0: weights}

    def for_forward(self, j):
        """{name: tensor} of the version that micro-batch j reads: version k-1 for batch k = j // m,
        and version 0 for batch 0."""
        return self.versions[max(0, j // self.m - 1)]

    def for_backward(self, j):
        """The same again."""
        return self.for_forward(j)

    def update(self, change):
        """After the last backward of a batch: change(weights) changes a copy of the newest into the
        next version."""
        k = max(self.versions)
        self.versions.pop(k - 1, None)
        self.versions[k + 1] = {name: w.clone() for name, w in self.versions[k].items()}
        change(self.versions[k + 1])
