"""The layouts that a tensor can have on the ranks of a group, and the collectives that change one
into another. `reshard` does this with autograd, so that the gradient is communicated as well.

    layout       the value on rank r      its gradient on rank r    name in DTensor
    REPLICATE    x                        dx                        Replicate
    0, 1, 2 ...  part r on that dim       the same part of dx       Shard(dim)
    COPY         x                        partial: summed it is dx  Replicate, its gradient Partial
    PARTIAL      partial: summed it is x  dx                        Partial, its gradient Replicate

A layout says how the value is laid out, and how its gradient is. The gradient of a COPY is laid out
like the value of a PARTIAL, and vice versa. Therefore the rule that changes a value's layout also
determines what backward does:

    from       to           value moves by    gradient of the new becomes gradient of the old
    REPLICATE  COPY         nothing           PARTIAL -> REPLICATE: all-reduce         Megatron's f
    PARTIAL    REPLICATE    all-reduce        REPLICATE -> COPY: nothing               Megatron's g
    dim        COPY         all-gather        PARTIAL -> dim: reduce-scatter  sequence parallel's G
    PARTIAL    dim          reduce-scatter    dim -> COPY: all-gather         sequence parallel's S
    REPLICATE  dim          nothing, a slice  dim -> REPLICATE: all-gather
    dim        REPLICATE    all-gather        a slice
    dim        another dim  all-to-all        all-to-all
    REPLICATE  PARTIAL      nothing, x/N      nothing

The last line is for a bias that is added to a partial sum. Every rank adds b/N, so that the sum
contains b once. We use the rings and the pairwise all-to-all of lib.collectives, because we know
exactly how many elements they send.
"""

import torch
import torch.distributed as dist

from lib.collectives import all_to_all, ring_all_gather, ring_all_reduce, ring_reduce_scatter

REPLICATE, COPY, PARTIAL = "replicate", "copy", "partial"
DUAL = {COPY: PARTIAL, PARTIAL: COPY}  # the gradient's layout; otherwise it is the value's
WHOLE = (REPLICATE, COPY)  # layouts whose value is the full tensor on every rank


def gradient_layout(layout):
    """The layout of the gradient of a tensor that has this layout, described as that of a value."""
    return DUAL.get(layout, layout)


def collective(old, new):
    """The collective that changes a value from layout `old` to `new`: "all_reduce", "all_gather",
    "reduce_scatter" or "all_to_all"; None if nothing is sent.

    Raises ValueError for a change from a shard to PARTIAL, which no strategy needs.
    """
    if old == new or (old in WHOLE):
        return None
    if new == PARTIAL:
        raise ValueError(f"from dim {old} to {PARTIAL}: only a whole tensor becomes a partial sum")
    if old == PARTIAL:
        return "all_reduce" if new in WHOLE else "reduce_scatter"
    return "all_gather" if new in WHOLE else "all_to_all"


def both_ways(old, new):
    """(the collective of the value in forward, that of its gradient in backward); None if nothing
    is sent."""
    return collective(old, new), collective(gradient_layout(new), gradient_layout(old))


def reshard(x, old, new, group=None):
    """Change x from layout `old` to `new`, differentiably. x: what this rank has in layout `old`,
    of any shape; returns what it has in layout `new`.

    Sends: the first collective of `both_ways` in forward, the second in backward. N has to divide
    the dims on which the tensor is sharded.
    """
    return x if old == new else _Reshard.apply(x, old, new, group)


class _Reshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, old, new, group):
        ctx.how = old, new, group
        y = move(x, old, new, group)
        return y.view_as(y) if y is x else y  # autograd needs a new tensor

    @staticmethod
    def backward(ctx, dy):
        old, new, group = ctx.how
        return move(dy, gradient_layout(new), gradient_layout(old), group), None, None, None


def move(x, old, new, group=None):
    """Change the value x from layout `old` to `new`, without autograd. Sends: the collective that
    `collective(old, new)` names."""
    N, rank = dist.get_world_size(group), dist.get_rank(group)
    match collective(old, new):
        case "all_reduce":
            return ring_all_reduce(x.clone(memory_format=torch.contiguous_format), group)
        case "reduce_scatter":
            return (
                ring_reduce_scatter(x.movedim(new, 0).contiguous(), group)
                .movedim(0, new)
                .contiguous()
            )
        case "all_gather":
            return (
                ring_all_gather(x.movedim(old, 0).contiguous(), group).movedim(0, old).contiguous()
            )
        case "all_to_all":
            # the part that each rank wants, in the order of ranks; what arrives is in that order
            # too
            wanted = torch.stack(x.chunk(N, new))  # (N, ..., 1/N on both dims)
            return torch.cat(all_to_all(wanted, group).unbind(), old)
    if new == PARTIAL and old != PARTIAL:
        return x / N
    return x.chunk(N, new)[rank].contiguous() if old in WHOLE and new not in WHOLE else x
