"""How a tensor is laid out on the ranks of a group, and what changes one layout to another.

    layout       the value on rank r      its gradient on rank r    name in DTensor
    REPLICATE    x                        dx                        Replicate
    0, 1, 2 ...  part r on that dim       the same part of dx       Shard(dim)
    COPY         x                        partial: summed it is dx  Replicate, its gradient Partial
    PARTIAL      partial: summed it is x  dx                        Partial, its gradient Replicate

COPY and PARTIAL are each other's gradient. So one rule for values is the rule for gradients as
well:

    from       to           value moves by    gradient of the new becomes gradient of the old
    REPLICATE  COPY         nothing           PARTIAL -> REPLICATE: all-reduce         Megatron's f
    PARTIAL    REPLICATE    all-reduce        REPLICATE -> COPY: nothing               Megatron's g
    dim        COPY         all-gather        PARTIAL -> dim: reduce-scatter  sequence parallel's G
    PARTIAL    dim          reduce-scatter    dim -> COPY: all-gather         sequence parallel's S
    REPLICATE  dim          nothing, a slice  dim -> REPLICATE: all-gather
    dim        REPLICATE    all-gather        a slice
    dim        another dim  all-to-all        all-to-all
    REPLICATE  PARTIAL      nothing, x/N      nothing

The last one is for a bias that is added to a partial sum: a part on every rank, so that it enters
once. Collectives are the rings and the pairwise all-to-all of lib.collectives: what they send is
known to the element.
"""

import torch
import torch.distributed as dist

from lib.collectives import all_to_all, ring_all_gather, ring_all_reduce, ring_reduce_scatter

REPLICATE, COPY, PARTIAL = "replicate", "copy", "partial"
DUAL = {COPY: PARTIAL, PARTIAL: COPY}  # the layout of the gradient; the others have their own
WHOLE = (REPLICATE, COPY)  # alike as values


def gradient_layout(layout):
    """The layout, as a value, of the gradient of a tensor that has this layout."""
    return DUAL.get(layout, layout)


def collective(old, new):
    """What brings a value from layout `old` to `new`: "all_reduce", "all_gather", "reduce_scatter",
    "all_to_all", None.

    Raises ValueError for a part that should become a sum, which nothing here needs.
    """
    if old == new or (old in WHOLE):
        return None
    if new == PARTIAL:
        raise ValueError(f"from dim {old} to {PARTIAL}: only a whole tensor becomes a partial sum")
    if old == PARTIAL:
        return "all_reduce" if new in WHOLE else "reduce_scatter"
    return "all_gather" if new in WHOLE else "all_to_all"


def both_ways(old, new):
    """(collective of the value in forward, collective of its gradient in backward); None where
    nothing is sent."""
    return collective(old, new), collective(gradient_layout(new), gradient_layout(old))


def reshard(x, old, new, group=None):
    """x from layout `old` to `new`, differentiable: a part of x of any shape -> the part that `new`
    says.

    Sends: what `both_ways` says, of the full tensor; the gradient's part in backward. Its dims
    must divide by N.
    """
    return x if old == new else _Reshard.apply(x, old, new, group)


class _Reshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, old, new, group):
        ctx.how = old, new, group
        y = move(x, old, new, group)
        return y.view_as(y) if y is x else y  # autograd wants to see another tensor

    @staticmethod
    def backward(ctx, dy):
        old, new, group = ctx.how
        return move(dy, gradient_layout(new), gradient_layout(old), group), None, None, None


def move(x, old, new, group=None):
    """The value x from layout `old` to `new`, without a gradient. Sends: what
    `collective(old, new)` says."""
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
            # The parts that the others want, one after the other; theirs come back in the same
            # order.
            wanted = torch.stack(x.chunk(N, new))  # (N, ..., 1/N on both dims)
            return torch.cat(all_to_all(wanted, group).unbind(), old)
    if new == PARTIAL and old != PARTIAL:
        return x / N
    return x.chunk(N, new)[rank].contiguous() if old in WHOLE and new not in WHOLE else x
