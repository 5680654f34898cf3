"""A rank's part of a tensor, and the whole again from all ranks' parts.

    dim 0, tp = 2           dim 1, tp = 2              tp ranks, part r = chunk(tp, dim)[r]
    +-------+               +---+---+
    | rank 0|               |   |   |                  torch keeps the weight of x -> x A + a transposed, (out, in):
    +-------+               | 0 | 1 |                  columns of A are rows of the weight, so a split by columns
    | rank 1|               |   |   |                  is a split on dim 0, and a split by rows one on dim 1
    +-------+               +---+---+

Parts are of one size, so that every rank multiplies as much and a whole is made of parts without further notice.
"""

import torch.distributed as dist
from torch import nn

from lib import collectives


def divide(n, tp, what):
    """n / tp, a whole number; else ValueError that names the sizes that would do."""
    if n % tp:
        fits = [d for d in range(1, min(n, 64) + 1) if n % d == 0]
        sizes = [n - n % tp, n - n % tp + tp][n < tp :]
        raise ValueError(f"{what} {n} over tp={tp} ranks is not whole: use {what} {_or(sizes)}, or tp={_or(fits)}")
    return n // tp


def own_part(parameter, dim, group, what):
    """This rank's part of `parameter` on `dim`, a parameter of its own; dim None: a copy of all of it; None stays None.

    what: what is counted along `dim`, for the ValueError where the ranks do not divide it. Sends nothing.
    """
    if parameter is None:
        return None
    part = parameter.detach()
    if dim is not None:
        rank, tp = dist.get_rank(group), dist.get_world_size(group)
        divide(part.shape[dim], tp, what)
        part = part.chunk(tp, dim)[rank]
    return nn.Parameter(part.clone(), requires_grad=parameter.requires_grad)


def whole(part, dim, group=None, all_gather=collectives.all_gather):
    """All ranks' parts, one after the other on `dim`: contiguous, `part`'s shape with tp times as much on `dim`.

    Sends: an all-gather of the parts. A part comes back from `whole` by chunk(tp, dim)[rank].
    """
    # The collective joins tensors on dim 0.
    return all_gather(part.movedim(dim, 0).contiguous(), group).movedim(0, dim).contiguous()


def _or(numbers):
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
