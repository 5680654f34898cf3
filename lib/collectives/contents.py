"""What the messages of an all-reduce contain: for each element, which ranks' values have been
summed in it so far.

A message does not record this, so we choose the values such that they do. Rank r starts with

    x[i] = 16^r + i * 16^N          element i, rank r of N

so a sum of k ranks' values of element i is (the sum of their 16^r) + k i 16^N: its lowest N
hexadecimal digits count how often each rank is in it, k is the sum of those digits, and what is
left, divided by k, is i. For 4 ranks, 0x20101 is element 1 with the values of ranks 0 and 2 in it.

    launch.run(traced, my_ring_all_reduce, nproc=4)   ->   what `plots.ring` draws
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lib import backend
from lib.backend.torch_private import TorchDispatchMode


def traced(all_reduce: Callable) -> dict[str, Any]:
    """Run `all_reduce(tensor)` on marked values, an element per rank, and read what it sent and
    what it left behind.

    Returns {"sent": [{element: counts}, ...], the contents of each message of this rank, in order,
             "held": [{element: counts}, ...], what `tensor` held when that message was posted,
             "final": {element: counts}}, what `tensor` holds at the end;
    counts[r] says how often rank r's value is in it. At most 8 ranks. Sends: what `all_reduce`
    sends. Raises ValueError for more ranks, and for a value that is no sum of marked ones, because
    `all_reduce` scaled it or sends memory that it never filled.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size > 8:
        raise ValueError(
            f"{world_size} ranks: float64 holds the marks of 8 at most, so trace with nproc=8"
        )
    x = marked(rank, world_size).to(backend.device())
    with Sent(x) as messages:
        all_reduce(x)
    return {
        "sent": [read(sent, world_size, f"rank {rank} sends") for sent, _ in messages],
        "held": [read(held, world_size, f"rank {rank} holds") for _, held in messages],
        "final": read(x, world_size, f"rank {rank} ends with"),
    }


def marked(rank: int, world_size: int) -> Tensor:
    """(N,) float64: the values that `rank` starts with, one element per rank of the world. Each
    value says which rank it is from and which element it is."""
    return 16.0**rank + torch.arange(world_size, dtype=torch.float64) * 16.0**world_size


def read(values: Tensor, world_size: int, what: str) -> dict[int, tuple[int, ...]]:
    """{element: (how often rank 0's value is in it, rank 1's, ...)} of sums of marked values. An
    element that is 0 was never filled and is left out."""
    found = {}
    for value in values.flatten().tolist():
        if value == 0:
            continue
        is_natural = value > 0 and value % 1 == 0  # nan and inf are not
        rest, digits = divmod(int(value), 16**world_size) if is_natural else (0, 0)
        counts = tuple(digits >> 4 * r & 15 for r in range(world_size))
        element, left_over = divmod(rest, sum(counts)) if any(counts) else (0, 1)
        if left_over or element >= world_size:
            raise ValueError(
                f"{what} {value:g}, which is no sum of the ranks' marked values: it was scaled, or "
                f"never filled in"
            )
        found[element] = counts
    return found


class Sent(TorchDispatchMode):
    """Within the block, keeps a copy of every tensor that this thread sends to another rank, and of
    `x` at that moment. It sees any point-to-point send, but not torch's own collectives."""

    def __init__(self, x):
        super().__init__()
        self.x, self.messages = x, []

    def __enter__(self):
        super().__enter__()
        return self.messages

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.c10d.send.default:
            self.messages.append((args[0][0].clone(), self.x.clone()))
        return func(*args, **(kwargs or {}))
