"""DiLoCo: ranks train alone for H local steps and then synchronise, which takes 1/H of the messages
of data parallelism (Douillard et al. 2023).

    rank 0  w  --H local steps->  w_0  \\   D  =  w - mean(w_0, ... w_{N-1})
    rank 1  w  --H local steps->  w_1   }   v  <- mu v + D
    rank 2  w  --H local steps->  w_2  /    w  <- w - eta (D + mu v)

In the inner steps each rank runs AdamW on its own shard of the data, and AdamW's state stays on the
rank. The mean change of the weights, D, is then used as a gradient, the outer gradient (the paper
calls it pseudo-gradient), in an outer step of SGD with Nesterov momentum. The paper uses eta 0.7,
mu 0.9 and H 500. With H = 1, plain SGD as the inner optimizer, eta = 1 and mu = 0, DiLoCo is data
parallelism, because the mean of (w - lr g_r) is w - lr mean(g_r).

Sends: one all-reduce of all parameters per round, so psi / H elements per step for psi parameters.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group


# exercise: lab1.outer_step
@torch.no_grad()
def outer_step(
    parameters: Iterable[nn.Parameter],
    start: Sequence[Tensor],
    velocity: Sequence[Tensor],
    lr: float,
    momentum: float,
    group: Group = None,
    all_reduce: Collective = collectives.all_reduce,
) -> None:
    """End a round: update `parameters`, `start` and `velocity` in place by the outer step.
    Afterwards they are the same on every rank.

    parameters: as they are after this rank's own inner steps; may be an iterator. start: their
    values when the round began, the same on all ranks. velocity: the outer momentum, zeros at
    first. Both are lists of tensors like the parameters, in their order. lr, momentum: of the outer
    step. all_reduce(tensor, group) sums in place, and is called once for each parameter.
    """
    N = dist.get_world_size(group)
    for p, w, v in zip(parameters, start, velocity, strict=True):
        outer = w - p  # this rank's part
        all_reduce(outer, group)
        outer /= N  # the outer gradient
        v.mul_(momentum).add_(outer)
        w.sub_(lr * (outer + momentum * v))
        p.copy_(w)
