"""Shards of unequal size, and ranks that run out of data.

The batch's loss is a mean over examples; the mean over ranks of the ranks' means is another number, unless all ranks
hold equally many. With c_r examples on rank r, C = sum_r c_r, and s_r the *sum* of rank r's losses:

    L = 1/C sum_r s_r = 1/N sum_r (N/C s_r)        so N/C s_r is the loss whose gradient rank r contributes

    rank 0   3 examples, losses 1 1 1   mean 1   --+-- mean of means        (1 + 5)/2     = 3      wrong
    rank 1   1 example,  loss   5       mean 5   --+-- mean over examples   (1+1+1+5)/4   = 2      right

A rank without examples contributes nothing, but has to take part in every all-reduce, or the others wait for ever
(torch: `Join`, "uneven inputs").
"""

import torch
import torch.distributed as dist

from lib import collectives


# exercise: lab1.weighted_loss
def weighted_loss(loss_sum, count, group=None, all_reduce=collectives.all_reduce):
    """The loss to call backward on, such that the ranks' mean gradient is the gradient of the mean over all examples.

    loss_sum: (), the sum of this rank's losses. count: how many there are, 0 or more. Returns N * loss_sum / C, ().
    Sends: one all-reduce of one number. Raises ValueError where no rank has an example.
    """
    total = torch.tensor([count], dtype=torch.float64)  # (1,)  float64 counts exactly up to 2**53
    all_reduce(total, group)
    if total == 0:
        raise ValueError("no rank has an example in this step: there is nothing to average, end the loop before")
    return loss_sum * (dist.get_world_size(group) / total.item())


# exercise: lab1.until_all_done
def until_all_done(batches, group=None, all_reduce=collectives.all_reduce):
    """Yield this rank's next batch, or None once it has no more, until no rank has one: equally often on every rank.

    batches: any iterable; ranks may have different numbers of them. Sends: one all-reduce of one number per turn.
    """
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        ranks_with_a_batch = torch.tensor([0 if batch is None else 1])  # (1,)
        all_reduce(ranks_with_a_batch, group)
        if ranks_with_a_batch == 0:
            return
        yield batch
