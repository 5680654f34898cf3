"""1F1B written out, with each send next to the computation that it follows: read this first.

    rank 0   F0 F1 F2 .. .. B0 F3 B1 F4 B2 .. B3 .. B4        p = 3 ranks, m = 5 micro-batches
    rank 1      F0 F1 .. B0 F2 B1 F3 B2 F4 B3 .. B4
    rank 2         F0 B0 F1 B1 F2 B2 F3 B3 F4 B4

Rank i runs p-1-i forward passes ahead, one for each rank after it (warmup). It then alternates one
forward and one backward pass (steady state), and finishes with the backward passes that are left
(cooldown), so it never keeps the graphs of more than p-i micro-batches. Megatron-LM's
`forward_backward_pipelining_without_interleaving` has the same three loops. What this function has
sent, it keeps until the end of the step; `Pipeline` frees it as soon as it must have arrived
(transfers.py).

`Pipeline` (stage.py) computes the same gradients from a list of actions. That lets it run every
schedule, with several stages on a rank, split backward passes, tied parameters, and micro-batches
whose shapes differ, none of which this function supports.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lib.pipeline.links import Links


def one_f_one_b_step(
    stage: nn.Module,
    links: Links,
    microbatches: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss_fn: Callable[..., Tensor],
) -> Tensor | None:
    """Run one step of 1F1B without its update, and add the gradient of the mean over the whole
    batch to every `.grad` of this rank's stage.

    stage: the module of this rank; rank i of the pipeline has stage i.
    links: of `connect()`.
    microbatches: m tensors with the same number of rows; on the first rank the data, on the others
        tensors of the shape and dtype of what the previous rank sends, whose values are ignored.
    targets: m tensors; read on the last rank. loss_fn(y, target) -> (), the mean over the rows.
    Returns the loss, detached (), on the last rank; None elsewhere.
    Sends: each activation to the next rank, and each gradient to the previous one: 2(p-1)m
        messages.
    Source: Narayanan et al., 2021 (PipeDream-Flush).
    """
    rank, last, m = links.rank, len(links.ranks) - 1, len(microbatches)
    in_flight: deque[tuple[Tensor, Tensor]] = deque()  # (input, output) from F to B
    sends, losses = [], []

    def forward(x: Tensor, target: Tensor) -> None:
        if rank > 0:
            x = torch.empty_like(x)
            links.receive(x, rank - 1).wait()
            x.requires_grad_()
        y = stage(x)
        if rank < last:
            sends.append(links.send(y.detach(), rank + 1))
        else:
            y = loss_fn(y, target) / m
            losses.append(y.detach())
        in_flight.append((x, y))

    def backward() -> None:
        x, y = in_flight.popleft()
        grad = torch.ones_like(y)  # of the loss
        if rank < last:
            links.receive(grad, rank + 1).wait()
        y.backward(grad)
        if rank > 0:
            sends.append(links.send(x.grad, rank - 1))

    warmup = min(last - rank, m)
    work = deque(zip(microbatches, targets, strict=True))
    for _ in range(warmup):
        forward(*work.popleft())
    for _ in range(m - warmup):
        forward(*work.popleft())
        backward()
    for _ in range(warmup):
        backward()
    for send in sends:
        send.wait()
    return torch.stack(losses).sum() if losses else None
