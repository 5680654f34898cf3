"""Which examples each rank gets, and how to train if ranks have different numbers of them.

Every epoch has a new permutation of the examples, which are dealt out to the ranks like cards:

    n = 10, N = 4    permutation   7 2 9 0 | 5 1 8 3 | 6 4 [7 2]      padded with its own beginning
                     rank          0 1 2 3 | 0 1 2 3 | 0 1  2 3

Every rank computes the full permutation from the same seed and epoch, and keeps its part, so
nothing is sent. All ranks get ceil(n/N) examples, because they have to take equally many steps.
Therefore an epoch repeats up to N-1 examples.

Shards of unequal size: the loss of the batch is a mean over examples. The mean of the ranks' means
is a different number, unless all ranks have equally many examples. Let c_r be the number of
examples on rank r, C = sum_r c_r, and s_r the *sum* of rank r's losses. Then:

    L = 1/C sum_r s_r = 1/N sum_r (N/C s_r)  so rank r contributes the gradient of N/C s_r

    rank 0   3 examples, losses 1 1 1   mean 1   --+-- mean of means        (1 + 5)/2     = 3  wrong
    rank 1   1 example,  loss   5       mean 5   --+-- mean over examples   (1+1+1+5)/4   = 2  right

A rank that has run out of examples contributes nothing, but has to take part in every all-reduce,
because the others would otherwise wait for ever (torch: `Join`, "uneven inputs").
"""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives
from lib.backend import Collective, Group


# exercise: lab1.sample_indices
def sample_indices(n: int, epoch: int, rank: int, world_size: int, seed: int = 0) -> Tensor:
    """(ceil(n/N),) int64: the examples 0..n-1 that `rank` sees in this `epoch`, in order. A pure
    function.

    The ranks' parts together are a permutation of all n examples and, if N does not divide n, its
    first few once more.
    """
    if n < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"n={n}, rank={rank}, world_size={world_size}: use n >= 1 and 0 <= rank < world_size"
        )
    # With seed + epoch, seed 0 in epoch 1 would be the same as seed 1 in epoch 0. Shifting the seed
    # by 32 bits would not help, because the generator reads only the lowest 32.
    generator = torch.Generator("cpu").manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(n, generator=generator, device="cpu")  # (n,)
    length = -(-n // world_size)  # ceil(n/N)
    padded = order.repeat(-(-length * world_size // n))[: length * world_size]  # (N * ceil(n/N),)
    return padded[rank::world_size]


class Sampler(torch.utils.data.Sampler):
    """`sample_indices` for a DataLoader: `DataLoader(data, sampler=Sampler(len(data), rank,
    world_size))`.

    Call `set_epoch` before each epoch; otherwise every epoch has the order of the first.
    """

    def __init__(self, n: int, rank: int, world_size: int, seed: int = 0) -> None:
        self.n, self.rank, self.world_size, self.seed, self.epoch = n, rank, world_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self):
        return -(-self.n // self.world_size)

    def __iter__(self):
        return iter(
            sample_indices(self.n, self.epoch, self.rank, self.world_size, self.seed).tolist()
        )


# exercise: lab1.weighted_loss
def weighted_loss(
    loss_sum: Tensor,
    count: int,
    group: Group = None,
    all_reduce: Collective = collectives.all_reduce,
) -> Tensor:
    """The loss to call backward on, such that the ranks' mean gradient is the gradient of the mean
    over all examples.

    loss_sum: (), the sum of this rank's losses. count: how many there are, 0 or more. Returns N *
    loss_sum / C, (). Sends: one all-reduce of one number. Raises ValueError if no rank has an
    example.
    """
    total = torch.tensor([count], dtype=torch.float64)  # (1,)  float64 counts exactly up to 2**53
    all_reduce(total, group)
    if total == 0:
        raise ValueError(
            "no rank has an example in this step: there is nothing to average, end the loop before"
        )
    return loss_sum * (dist.get_world_size(group) / total.item())


# exercise: lab1.until_all_done
def until_all_done(
    batches: Iterable, group: Group = None, all_reduce: Collective = collectives.all_reduce
) -> Iterator:
    """Yield this rank's next batch, or None once it has no more, until no rank has one. So it
    yields equally often on every rank.

    batches: any iterable; ranks may have different numbers of them. One is fetched per turn, and
    none in advance. Sends: one all-reduce of one number per turn.
    """
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        ranks_with_a_batch = torch.tensor([0 if batch is None else 1])  # (1,)
        all_reduce(ranks_with_a_batch, group)
        if ranks_with_a_batch == 0:
            return
        yield batch
