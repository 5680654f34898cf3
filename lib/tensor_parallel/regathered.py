"""Sequence parallelism that keeps only a rank's own tokens for backward, and gathers the others' again.

    kept for backward           sequence_columns                       regathered_columns
                                x of all tokens, (B, T, D)             x of this rank's tokens, (B, T/tp, D)
    sent, per column layer      forward   gather   (tp-1) BTD          forward   gather   (tp-1) BTD
                                backward  scatter  (tp-1) BTD          backward  gather   (tp-1) BTD
                                                                                 scatter  (tp-1) BTD

The gathered x is what is left of a layer's activations that tp does not divide: 4 of the 34 sbh bytes, twice 2 sbh.
Without it all of a layer's 34 sbh become 34 sbh/t (Korthikanti et al. 2022, sections 4.2.2 and 4.2.3: the layer keeps
its input's shard and gathers again in backward). The price: two more all-gathers per layer, before attention's and
before the MLP's weights get their gradients.

    Y_r = X A_r + a_r      dA_r = X^T dY_r      da_r = sum over tokens of dY_r      dX = sum_r dY_r A_r^T

Only dA_r needs all of X. The two messages of backward could travel while the other product is computed; here they
do not.
"""

import torch
import torch.nn.functional as F

from lib import collectives
from lib.tensor_parallel.sequence import own_tokens_of_the_sum
from lib.tensor_parallel.shards import whole


def regathered_columns(
    x, linears, group=None, all_gather=collectives.all_gather, reduce_scatter=collectives.reduce_scatter
):
    """`sequence_columns` that keeps its input alone: (B, T/tp, D), this rank's tokens -> [(B, T, F/tp), ...].

    Sends: an all-gather forward; an all-gather and a reduce-scatter backward; each (tp-1) BTD elements over all ranks.
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
        x = whole(x, -2, group, all_gather)  # (B, T, D), gone when this returns
        return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx, *dys):
        x, *weights = ctx.saved_tensors
        group, all_gather, _ = ctx.how
        x = whole(x, -2, group, all_gather).flatten(0, -2)  # (BT, D)
        rows = [dy.flatten(0, -2) for dy in dys]  # (BT, F/tp) each
        dweights = [dy.T @ x for dy in rows]  # (F/tp, D)  dA_r, transposed
        dbiases = [dy.sum(0) if has_bias else None for dy, has_bias in zip(rows, ctx.has_bias, strict=True)]  # (F/tp,)
        partial = sum(dy @ weight for dy, weight in zip(dys, weights, strict=True))  # (B, T, D)  partial
        return None, own_tokens_of_the_sum(partial, *ctx.how), *dweights, *dbiases
