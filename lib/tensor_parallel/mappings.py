"""Tensor parallelism from two mappings (Shoeybi et al. 2019, "Megatron-LM", section 3).

                 forward                     backward
    f   copy     x on every rank: nothing    the ranks' gradients of x are summed: all-reduce
    g   reduce   the ranks' x are summed:    the gradient of the sum is that of each term: nothing
                 all-reduce

    x --f--> x A_r --gelu--> Y_r B_r --g--> sum over r      rank r of tp, with its shards of A, B
    <--f---  each rank's part of dx  <--g--  dZ, the same on all ranks

If we see the tp ranks as one graph, each backward is one line of calculus,

    f   y_r = x for each r       dx   = sum_r dy_r
    g   y   = sum_r x_r          dx_r = dy

so the backward of each is the forward of the other. Between f and g every rank works on its own;
outside, all ranks have the same values and compute the same. Therefore the two must come as a pair.
Without f, a rank's gradient of x is missing the other ranks' terms; without g, the result is still
a partial sum. Layers take the two as arguments: input_mapping is f, output_mapping is g.

The other pair splits and gathers the last dim, for a layer that takes or returns full vectors. Each
is the other's backward:

    split_to_group     x (.., F) on every rank -> its shard (.., F/tp)
    gather_from_group  the ranks' shards (.., F/tp) -> x (.., F) on every rank

Gather needs no sum in backward, because all ranks use the same full tensor in the same way and so
have the same gradient of it.

    here                 Megatron-LM (core/tensor_parallel/mappings.py)
    copy_to_group        copy_to_tensor_model_parallel_region        f
    reduce_from_group    reduce_from_tensor_model_parallel_region    g
    split_to_group       scatter_to_tensor_model_parallel_region
    gather_from_group    gather_from_tensor_model_parallel_region

In Korthikanti et al. 2022, g is another function: the all-gather of sequence parallelism, which
sequence.py calls G.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives
from lib.backend import Collective, Group
from lib.tensor_parallel.shards import divide, gather_along_dim


# exercise: lab3.copy_to_group
def copy_to_group(
    x: Tensor, group: Group = None, all_reduce: Collective = collectives.all_reduce
) -> Tensor:
    """f: pass x, replicated, into the tensor-parallel region. Returns x, of any shape.

    Sends nothing in forward; backward all-reduces the gradient, which is as large as x. all_reduce:
    all_reduce(tensor, group) sums in place.
    """
    return _Copy.apply(x, group, all_reduce)


# exercise: lab3.reduce_from_group
def reduce_from_group(
    x: Tensor, group: Group = None, all_reduce: Collective = collectives.all_reduce
) -> Tensor:
    """g: the sum over the ranks of x, each rank's partial result, of any shape. Returns a new
    tensor, replicated.

    Sends: one all-reduce in forward, as large as x; nothing in backward. all_reduce:
    all_reduce(tensor, group) sums in place.
    """
    return _Reduce.apply(x, group, all_reduce)


def split_to_group(
    x: Tensor, group: Group = None, all_gather: Collective = collectives.all_gather
) -> Tensor:
    """This rank's shard, on the last dim, of the replicated x: (.., F) -> (.., F/tp).

    Sends nothing in forward; backward all-gathers the shards' gradients. Raises ValueError if tp
    does not divide F.
    """
    return _Split.apply(x, group, all_gather)


def gather_from_group(
    x: Tensor, group: Group = None, all_gather: Collective = collectives.all_gather
) -> Tensor:
    """The ranks' shards, concatenated on the last dim, replicated: (.., F/tp) -> (.., F).

    Sends: an all-gather in forward. Backward sends nothing, because each rank takes its shard of
    the gradient.
    """
    return _Gather.apply(x, group, all_gather)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, all_reduce):
        ctx.how = group, all_reduce
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        # dx = sum_r dy_r
        return reduce_from_group(dy, *ctx.how), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, all_reduce):
        ctx.how = group, all_reduce
        total = x.clone(memory_format=torch.contiguous_format)  # the caller's x stays partial
        all_reduce(total, group)
        return total

    @staticmethod
    def backward(ctx, dy):
        # dx_r = dy
        return copy_to_group(dy, *ctx.how), None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, all_gather):
        ctx.how = group, all_gather
        rank, tp = dist.get_rank(group), dist.get_world_size(group)
        divide(x.shape[-1], tp, "the last dim")
        return x.chunk(tp, -1)[rank].contiguous()  # (.., F/tp)

    @staticmethod
    def backward(ctx, dy):
        return gather_from_group(dy, *ctx.how), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, all_gather):
        ctx.how = group, all_gather
        return gather_along_dim(x, -1, group, all_gather)  # (.., F)

    @staticmethod
    def backward(ctx, dy):
        return split_to_group(dy, *ctx.how), None, None
