"""Weight stashing: a stage keeps the weights that a mini-batch ran forward with until it has run backward.

Rank 0 of p = 3; w_k are its weights after k updates, u1 the update that mini-batch 1's backward makes:

                 F0    F1    F2    B0 u0   F3    B1 u1   F4    B2 u2   F5
    reads        w_0   w_0   w_0   w_0     w_1   w_0     w_2   w_0     w_3         a B what its own F read
    newest       w_0 ............. w_1 ......... w_2 ......... w_3 ........
    kept too                       w_0           w_0 w_1       w_1 w_2             p-1-i of them at stage i, at most

Nothing is copied that nobody needs. Weights change in place, unless a mini-batch under way has still to read them; then
the stage goes on with a copy. So the last stage, where every F is followed by its own B, never copies.

weights     {name: tensor}, all of a stage's
version     the weights after so many updates

Narayanan et al. 2019 ("PipeDream: generalized pipeline parallelism for DNN training").
"""


class NewestOnly:
    """No stash: backward reads the newest weights, whatever its forward has read. Its gradients are of no function."""

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
    """The versions of one stage's weights that are still needed: the newest, and what mini-batches under way have read.

    For each mini-batch j a stage calls, in this order and with other mini-batches' calls between:

        weights = stash.for_forward(j)         # F: compute with these
        weights = stash.for_backward(j)        # B: once more with the same
        stash.update(change)                   # then the newest become newer
    """

    def __init__(self, weights):
        """weights: {name: tensor} of version 0, without grad. The stash may change these tensors."""
        self.newest = weights
        self.under_way = {}  # mini-batch: the weights of its forward, from F to B

    def for_forward(self, j):
        """The newest weights, {name: tensor}; remembered until mini-batch j's backward."""
        self.under_way[j] = self.newest
        return self.newest

    def for_backward(self, j):
        """The values that for_forward(j) gave; the stash forgets them, unless another mini-batch needs them."""
        return self.under_way.pop(j)

    def update(self, change):
        """change(weights) changes all of these tensors in place, from the newest version to the next.

        Call it once. What a mini-batch under way has read must not change, so the newest weights are copied if one has
        read them; else they change where they are.
        """
        if any(weights is self.newest for weights in self.under_way.values()):
            self.newest = {name: w.clone() for name, w in self.newest.items()}
        change(self.newest)
