"""Which examples are whose: every epoch a new permutation, dealt out like cards.

    n = 10, N = 4    permutation   7 2 9 0 | 5 1 8 3 | 6 4 [7 2]      padded with its own beginning
                     rank          0 1 2 3 | 0 1 2 3 | 0 1  2 3

Every rank makes the whole permutation, from the same seed and epoch, and keeps its part: nothing is sent. All ranks get
ceil(n/N) examples, so that all take equally many steps; up to N-1 examples are seen twice in an epoch.
"""

import torch


# exercise: lab1.sample_indices
def sample_indices(n, epoch, rank, world_size, seed=0):
    """(ceil(n/N),) int64: the examples 0..n-1 that `rank` sees in this `epoch`, in order. A pure function.

    The ranks' parts together are all n examples and, where N does not divide n, the first few once more.
    """
    if n < 1 or not 0 <= rank < world_size:
        raise ValueError(f"n={n}, rank={rank}, world_size={world_size}: use n >= 1 and 0 <= rank < world_size")
    # Not seed + epoch: seed 0 in epoch 1 must not be seed 1 in epoch 0. Nor a shift: the generator reads 32 bits only.
    generator = torch.Generator("cpu").manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(n, generator=generator, device="cpu")  # (n,)
    length = -(-n // world_size)  # ceil(n/N)
    padded = order.repeat(-(-length * world_size // n))[: length * world_size]  # (N * ceil(n/N),)
    return padded[rank::world_size]


class Sampler(torch.utils.data.Sampler):
    """`sample_indices` for a DataLoader: `DataLoader(data, sampler=Sampler(len(data), rank, world_size))`.

    Call `set_epoch` before each epoch, or every epoch has the order of the first.
    """

    def __init__(self, n, rank, world_size, seed=0):
        self.n, self.rank, self.world_size, self.seed, self.epoch = n, rank, world_size, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return -(-self.n // self.world_size)

    def __iter__(self):
        return iter(sample_indices(self.n, self.epoch, self.rank, self.world_size, self.seed).tolist())
