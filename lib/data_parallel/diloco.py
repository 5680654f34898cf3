"""DiLoCo: ranks train alone for H local steps, and then synchronise (Douillard et al. 2023). 1/H of
data parallelism's messages.

    rank 0  w  --H local steps->  w_0  \\
    rank 1  w  --H local steps->  w_1   }  D = w - mean(w_0, ... w_{N-1})  w  <-  w - eta (D + mu v)
    rank 2  w  --H local steps->  w_2  /   v <- mu v + D

The inner steps are AdamW's, each rank on its own shard of the data; their state stays on the rank.
Their mean change, D, is the outer gradient (the paper's pseudo-gradient), and an outer step of SGD
with Nesterov's momentum follows: with eta 0.7 and mu 0.9 in the paper, H 500. With H = 1, plain SGD
inside, eta = 1 and mu = 0 it is data parallelism, for the mean of (w - lr g_r) is w - lr mean(g_r).

Sends: one all-reduce of all parameters a round, psi elements: psi / H a step.
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
    """End a round: all three become what the outer step makes of them, in place, the same on every
    rank.

    parameters: after this rank's own inner steps; may be an iterator. start: what they were when
    the round began, alike on all ranks; velocity: the outer momentum, zeros at first; lists of
    tensors like the parameters, in their order. lr, momentum: of the outer step. all_reduce(tensor,
    group) sums in place, on each parameter once.
    """
    N = dist.get_world_size(group)
    for p, w, v in zip(parameters, start, velocity, strict=True):
        outer = w - p  # this rank's part
        all_reduce(outer, group)
        outer /= N  # the outer gradient
        v.mul_(momentum).add_(outer)
        w.sub_(lr * (outer + momentum * v))
        p.copy_(w)
