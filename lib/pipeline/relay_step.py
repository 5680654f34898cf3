"""The relay (naive model parallelism): one batch passes through the stages of a group, one on each
rank, and its gradients pass back.

    rank 0    f_0 --+                                                        +-- back through f_0
    rank 1          +-- f_1 --+                            +-- through f_1 --+
    rank 2                    +-- f_2, loss, through f_2 --+
              ------- activations forward ------->  <------ gradients back -------

Stage i computes y_i = f_i(x_i), and its output is the input of the next stage: x_{i+1} = y_i. In
backward, a rank receives the gradient of its output, and sends the gradient of its input. The chain
rule leads from one to the other:

    grad y_i = grad x_{i+1}                    received from the next rank
    grad x_i = (dy_i / dx_i)^T grad y_i        sent to the previous rank
    grad w_i = (dy_i / dw_i)^T grad y_i        stays on this rank, which alone has stage i's weights

There are p ranks, and one of them works at a time, so if the stages take equally long, each is idle
for (p-1)/p of the step. The schedules (schedules.py) split the batch into micro-batches to fill
that time.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.backend import Group
from lib.collectives import p2p


# exercise: lab2.relay_step
def relay_step(
    stage: nn.Module, x: Tensor, target: Tensor, loss_fn: Callable[..., Tensor], group: Group = None
) -> Tensor | None:
    """Run one batch forward through the stages of `group` and back, and add the gradients that a
    single process would compute to every `.grad`.

    stage: this rank's module; rank i of the group has stage i. It takes one tensor and returns one.
    x: on the first rank the batch, (B, ...), which may be of integers (tokens). On the other ranks
    any tensor with the shape and dtype of what the previous rank sends, which the receiver must
    know, because only the elements are sent; its values are ignored. target: read on the last rank.
    loss_fn(y, target) -> (), called only there. Returns the loss, detached, (), on the last rank;
    None on the others. Sends: y_i to the next rank, once it is computed, and after backward grad
    x_i to the previous one; 2(p-1) messages in total.
    """
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group)  # x_i = y_{i-1}
        x.requires_grad_()  # the graph begins here: without it backward leaves no grad x_i
    y = stage(x)

    if rank < last:
        p2p.send(y, rank + 1, group)
        y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))  # grad y_i = grad x_{i+1}
    else:
        loss = loss_fn(y, target)
        loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)  # type: ignore[arg-type]
    return loss.detach() if rank == last else None
