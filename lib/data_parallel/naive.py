"""The plainest data parallelism: after backward, one all-reduce per parameter.

    forward   backward                     all-reduce w0  all-reduce b0  all-reduce w1  ...   update
    [=======] [====================]       [--]           [-]            [--]                 [=]

    g = 1/N (g_0 + g_1 + ... + g_{N-1})    the gradient of the mean loss over the batch, where shards are equal

N ranks, P parameters of n elements in all: P all-reduces per step, and a ring sends 2(N-1)n elements over all ranks.
Nothing else happens while they run: the step takes compute + communication.
"""

import torch
import torch.distributed as dist

from lib import collectives
from lib.buckets import gradient
from lib.data_parallel.replicate import Replicated


# exercise: lab1.average_gradients
@torch.no_grad()
def average_gradients(parameters, group=None, all_reduce=collectives.all_reduce):
    """Replace the gradient of each parameter by its mean over the ranks of `group`.

    parameters: the same on every rank, in the same order. Frozen ones are left alone; one that this rank did not use
    contributes zeros. Sends: one all-reduce per parameter, of its gradient.
    """
    world_size = dist.get_world_size(group)
    for parameter in parameters:
        if parameter.requires_grad:
            mean = gradient(parameter)
            all_reduce(mean, group)
            mean /= world_size  # the sum over ranks becomes the mean


class NaiveDataParallel(Replicated):
    """`module` on every rank, gradients averaged one by one."""

    def average_gradients(self):
        average_gradients(self.trained(), self.group, self.all_reduce)
