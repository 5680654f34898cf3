"""Averages the gradients of ranks with unequally many rows: each rank's gradient is weighted by its
share of the rows, because it is a mean over these rows.

Rank r has b_r of the batch's B rows, and g_r, the gradient of the mean loss over them:

    g = 1/B sum over all rows = sum_r (b_r / B) g_r  plain averaging is different: 1/N sum_r g_r

    rank 0  8 rows, g_0 = 1  --+-- 8/12 * 1 + 4/12 * 4 = 2    right
    rank 1  4 rows, g_1 = 4  --+-- (1 + 4) / 2         = 2.5  a row of rank 1 counts twice

The shares are known beforehand, so only gradients are sent. (If they are not known, use
`data_parallel.weighted_loss`, which all-reduces the counts and applies the same weights.) A rank
without rows adds zeros, but has to take part in the all-reduces.
"""

import torch

from lib import collectives
from lib.training.buckets import flatten, gradient, plan_buckets, unflatten


@torch.no_grad()
def average_by_share(parameters, share, group=None, all_reduce=collectives.all_reduce):
    """Replace the gradient of each parameter by sum_r share_r g_r over the ranks of `group`.

    parameters: the same on every rank, in the same order. Frozen ones are left alone; one without a
    gradient counts as zeros. share: this rank's b_r / B; over all ranks they add up to 1.
    Sends: one all-reduce per bucket, as data parallelism with equal shares does.
    Raises ValueError for a share below 0 or above 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(
            f"share is {share}: rows of this rank over rows of the batch, a number from 0 to 1"
        )
    for bucket in plan_buckets(p for p in parameters if p.requires_grad):
        gradients = [gradient(p) for p in bucket]
        flat = flatten(gradients)  # (n,)
        # The mean over no rows is nan, and 0 * nan is nan as well.
        flat = share * flat if share > 0 else torch.zeros_like(flat)
        all_reduce(flat, group)  # g = sum_r share_r g_r
        unflatten(flat, gradients)
