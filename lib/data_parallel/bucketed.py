"""The same gradients in fewer messages: all-reduce a bucket, not a parameter.

    naive      [-][-][--][-][--][-][-][--]      P messages, alpha each
    buckets    [-----][------][-----]           as many bytes, alpha a few times

Copying gradients into a flat buffer and back costs memory traffic of twice their size, far below the network's time.
"""

import torch
import torch.distributed as dist

from lib import collectives
from lib.buckets import CAPACITY, flatten, gradient, plan_buckets, unflatten
from lib.data_parallel.replicate import Replicated


# exercise: lab1.reduce_bucket
@torch.no_grad()
def reduce_bucket(parameters, group=None, all_reduce=collectives.all_reduce):
    """Replace the gradients of these parameters by their means over the ranks of `group`. Sends: one all-reduce.

    parameters: one bucket, of one dtype; one that this rank did not use contributes zeros.
    """
    gradients = [gradient(parameter) for parameter in parameters]
    flat = flatten(gradients)  # (n,)
    all_reduce(flat, group)
    flat /= dist.get_world_size(group)
    unflatten(flat, gradients)


class BucketedDataParallel(Replicated):
    """`module` on every rank, gradients averaged in buckets of at most `capacity` bytes, after backward."""

    def __init__(self, module, group=None, all_reduce=collectives.all_reduce, capacity=CAPACITY):
        super().__init__(module, group, all_reduce)
        self.buckets = plan_buckets(self.trained(), capacity)

    def average_gradients(self):
        for bucket in self.buckets:
            reduce_bucket(bucket, self.group, self.all_reduce)
