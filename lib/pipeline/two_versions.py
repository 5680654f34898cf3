"""2BW, double-buffered weight updates: PipeDream with two versions of the weights on every rank, not p-i of them.

A batch is m micro-batches, m >= p. The pipeline never drains, but weights change once per batch, and all micro-batches
of batch k read the version that batch k-2 made, forward and backward, on every stage:

    batch                 0      1      2      3             version k: after the updates of batches 0 ... k-1
    reads version         0      0      1      2             w_{k+1} = w_k - lr grad f(w_{k-1})
    makes version         1      2      3      4

Why two are enough: when the last backward of batch k makes version k+1, all that is under way belongs to batch k+1 and
reads version k. So version k-1 may go, before k+1 is written.

PipeDream's gradients are p-1-i updates old at stage i; these are one update old on all stages. What is computed is the
gradient of one version of the whole model.

Narayanan et al. 2021 ("Memory-efficient pipeline-parallel DNN training").
"""


class TwoVersions:
    """A stash (stash.py) of two versions: the newest, and the one before, which batches under way read."""

    def __init__(self, weights, m):
        """weights: {name: tensor} of version 0. m: micro-batches to a batch, as many as the pipeline has stages."""
        self.m = m
        self.versions = {0: weights}

    def for_forward(self, j):
        """{name: tensor} of the version that micro-batch j reads: of batch k = j // m, version k-1."""
        return self.versions[max(0, j // self.m - 1)]

    def for_backward(self, j):
        """The same again."""
        return self.for_forward(j)

    def update(self, change):
        """After the last backward of a batch: change(weights) changes a copy of the newest into the next version."""
        k = max(self.versions)
        self.versions.pop(k - 1, None)
        self.versions[k + 1] = {name: w.clone() for name, w in self.versions[k].items()}
        change(self.versions[k + 1])
