"""Sequence parallelism: between the sharded layers each rank has its own tokens (Korthikanti et al.
2022, section 4.2.2).

    tensor parallel    every rank has the same tokens
                       norm (B, T, D)    --f-->  column, row  --g-->  dropout, + (B, T, D)
    sequence parallel  every rank has its own tokens
                       norm (B, T/tp, D) --G-->  column, row  --S-->  dropout, + (B, T/tp, D)

                  forward          backward
    G   gather    all-gather       reduce-scatter   the norms' input and output, dropout's mask, the
    S   scatter   reduce-scatter   all-gather       residual stream: 1/tp of each on a rank

    here               Megatron-LM                                Korthikanti et al.
    gather_sequence    gather_from_sequence_parallel_region       g
    scatter_sequence   reduce_scatter_to_sequence_parallel_region g with a bar

Megatron's scatter_to_sequence_parallel_region, a split without a sum, is used after its embedding.
It is not needed here, because `vocab_parallel_embedding` with scatter_sequence as its
output_mapping sums and shards at once. Note whose g it is: in Shoeybi et al. 2019, and in
mappings.py, g is the all-reduce.

An all-reduce is a reduce-scatter and an all-gather. S and the next G are these two halves, with the
norm between them, so in forward they send as many bytes as g alone. In backward, the reduce-scatter
of G and the all-gather of the S before it are the two halves of f's all-reduce.

    G   y   = [x_0 | ... | x_tp-1]       dx_r = sum_s (dy_s, tokens of rank r)
    S   y_r = sum_s (x_s, tokens of r)   dx_s = [dy_0 | ... | dy_tp-1]

There is a price: the gradients of replicated parameters are incomplete. A norm's weight, a
position's vector or the bias after S is on every rank, but has seen only that rank's tokens. Its
gradient is a sum over all tokens, and therefore over the ranks, which `sum_gradients` computes.

regathered_column_parallel keeps only a rank's own tokens for backward, and gathers the others'
again:

    kept for backward         sequence_column_parallel         regathered_column_parallel
                              x of all tokens, (B, T, D)       x of this rank's tokens, (B, T/tp, D)
    sent, per G               forward   gather   (tp-1) BTD    forward   gather   (tp-1) BTD
                              backward  scatter  (tp-1) BTD    backward  gather   (tp-1) BTD
                                                                         scatter  (tp-1) BTD

The gathered x is the last of a layer's activations that tp does not divide: 4 of the 34 sbh bytes,
twice 2 sbh. Without it all of a layer's 34 sbh become 34 sbh/tp (Korthikanti et al. 2022, sections
4.2.2 and 4.2.3: the layer keeps its input's shard and gathers again in backward). The price: two
more all-gathers per layer, before attention's and before the MLP's weights get their gradients.

    Y_r = X A_r + a_r     dA_r = X^T dY_r    da_r = sum over tokens of dY_r    dX = sum_r dY_r A_r^T

Only dA_r needs all of X. So backward's all-gather could overlap with the matmul for dX, and its
reduce-scatter with the one for dA_r, as in Megatron; here they do not.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lib import collectives
from lib.backend import Collective, Group
from lib.tensor_parallel.linear import LinearLike, column_parallel, row_parallel
from lib.tensor_parallel.shards import divide, gather_along_dim
from lib.training.buckets import flatten, gradient, unflatten


# exercise: lab3.gather_sequence
def gather_sequence(
    x: Tensor,
    group: Group = None,
    all_gather: Collective = collectives.all_gather,
    reduce_scatter: Collective = collectives.reduce_scatter,
) -> Tensor:
    """G: every rank's tokens, in rank order, on every rank: (B, T/tp, D) -> (B, T, D).

    Sends: an all-gather in forward and a reduce-scatter in backward, each (tp-1) BTD elements over
    all ranks. all_gather(chunk, group) and reduce_scatter(tensor, group) work on dim 0 and return
    their result.
    """
    return _GatherSequence.apply(x, group, all_gather, reduce_scatter)


# exercise: lab3.scatter_sequence
def scatter_sequence(
    x: Tensor,
    group: Group = None,
    all_gather: Collective = collectives.all_gather,
    reduce_scatter: Collective = collectives.reduce_scatter,
) -> Tensor:
    """S: sum x, each rank's partial result, over the ranks, and return this rank's tokens of the
    sum: (B, T, D) -> (B, T/tp, D).

    Sends: a reduce-scatter in forward and an all-gather in backward, each (tp-1) BTD elements over
    all ranks. Raises ValueError if tp does not divide T.
    """
    return _ScatterSequence.apply(x, group, all_gather, reduce_scatter)


def sequence_column_parallel(
    x: Tensor,
    linears: Sequence[LinearLike],
    group: Group = None,
    input_mapping: Collective = gather_sequence,
) -> list[Tensor]:
    """`column_parallel` of this rank's tokens: (B, T/tp, D) -> [(B, T, F/tp), ...]. The gathered x
    is kept for backward."""
    return column_parallel(x, linears, group, input_mapping)


def sequence_row_parallel(
    x: Tensor,
    linear: LinearLike,
    group: Group = None,
    output_mapping: Collective = scatter_sequence,
) -> Tensor:
    """`row_parallel` into this rank's tokens: (B, T, F/tp) -> (B, T/tp, D). The bias's
    gradient is partial."""
    return row_parallel(x, linear, group, output_mapping)


# exercise: lab3.sum_gradients
@torch.no_grad()
def sum_gradients(
    parameters: Iterable[nn.Parameter],
    group: Group = None,
    all_reduce: Collective = collectives.all_reduce,
) -> None:
    """Replace the gradients of these parameters by their sums over the ranks of `group`.

    parameters: the replicated ones that were used on this rank's tokens only, in the same order on
    all ranks. Frozen ones are left alone; the gradient of one that was not used here counts as
    zeros. Call it once per step, after the last backward, because a second call would sum the sums.
    Sends: one all-reduce of a flat buffer of all gradients; nothing for an empty list.
    """
    gradients = [gradient(p) for p in parameters if p.requires_grad]
    if gradients:
        flat = flatten(gradients)  # (n,)
        all_reduce(flat, group)
        unflatten(flat, gradients)


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *how):
        ctx.how = how
        group, all_gather, _ = how
        return gather_along_dim(x, -2, group, all_gather)  # (B, T, D)

    @staticmethod
    def backward(ctx, dy):
        return scatter_sequence(dy, *ctx.how), None, None, None


class _ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *how):
        ctx.how = how
        return reduce_scatter_along_sequence(x, *how)  # (B, T/tp, D)

    @staticmethod
    def backward(ctx, dy):
        return gather_sequence(dy, *ctx.how), None, None, None


def reduce_scatter_along_sequence(x, group, all_gather, reduce_scatter):
    divide(x.shape[-2], dist.get_world_size(group), "the sequence's length")
    return reduce_scatter(x.movedim(-2, 0).contiguous(), group).movedim(0, -2).contiguous()


def regathered_column_parallel(
    x: Tensor,
    linears: Sequence[LinearLike],
    group: Group = None,
    all_gather: Collective = collectives.all_gather,
    reduce_scatter: Collective = collectives.reduce_scatter,
) -> list[Tensor]:
    """`sequence_column_parallel` that keeps only its input, this rank's tokens: (B, T/tp, D) ->
    [(B, T, F/tp), ...].

    Sends: an all-gather in forward, and an all-gather and a reduce-scatter in backward, each (tp-1)
    BTD elements over all ranks.
    """
    weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
    return _Regathered.apply((group, all_gather, reduce_scatter), x, *weights, *biases)


class _Regathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, how, x, *parameters):
        weights, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        ctx.how, ctx.has_bias = how, [bias is not None for bias in biases]
        ctx.save_for_backward(x, *weights)  # (B, T/tp, D), not (B, T, D)
        group, all_gather, _ = how
        x = gather_along_dim(x, -2, group, all_gather)  # (B, T, D), freed when this returns
        return tuple(
            F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx, *dys):
        x, *weights = ctx.saved_tensors
        group, all_gather, _ = ctx.how
        x = gather_along_dim(x, -2, group, all_gather).flatten(0, -2)  # (BT, D)
        rows = [dy.flatten(0, -2) for dy in dys]  # (BT, F/tp) each
        dweights = [dy.T @ x for dy in rows]  # (F/tp, D)  dA_r, transposed
        # (F/tp,)
        dbiases = [
            dy.sum(0) if has_bias else None for dy, has_bias in zip(rows, ctx.has_bias, strict=True)
        ]
        # (B, T, D)  partial
        partial = sum(dy @ weight for dy, weight in zip(dys, weights, strict=True))
        return None, reduce_scatter_along_sequence(partial, *ctx.how), *dweights, *dbiases
