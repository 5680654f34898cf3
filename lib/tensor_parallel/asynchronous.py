"""Asynchronous tensor parallelism: a linear layer's communication hidden behind its own matmul.

    column, plain  [ all-gather x ][            x W^T             ]
    column, here   [x0 W^T][x3 W^T][x2 W^T][x1 W^T]  rank 0 of tp = 4: each shard of x is multiplied
    on the wire    [= x3 =][= x2 =][= x1 =]          when it arrives

With sequence parallelism a column layer must all-gather its input, and a row layer must
reduce-scatter its output. The matmul needs the result of the all-gather, or produces the input of
the reduce-scatter, so the two cannot simply overlap. However, if both are split into tp
pieces, one piece can be sent while another is multiplied ("collective matmul", Wang et al. 2023).

B sequences of T tokens, t = T/tp on this rank; D inputs and F outputs of the layer, weight (F, D)
as nn.Linear's.

    layer    weight here   forward                 backward
    column   (F/tp, D)     y = gather(x) W^T       dx = scatter(dy W),    dW = dy^T gather(x)
    row      (F, D/tp)     y = scatter(x W^T)      dx = gather(dy) W,     dW = gather(dy)^T x

For backward the column layer keeps its shard of x and not the gathered x. That takes 1/tp of the
memory, but costs one more all-gather. All ranks together send as much as with
`regathered_column_parallel` and `sequence_row_parallel`: for a column layer (tp-1) BTD elements
forward and twice that backward, for a row layer (tp-1) BTF each way.

Source: Wang et al. 2023, "Overlap communication with dependent computation via decomposition";
torch calls it async TP.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lib.backend import Group
from lib.tensor_parallel.linear import LinearLike
from lib.tensor_parallel.ring_exchange import ring_accumulate, ring_shift


def asynchronous_column_parallel(
    x: Tensor, linears: Sequence[LinearLike], group: Group = None
) -> list[Tensor]:
    """Like `regathered_column_parallel`, but multiplies each shard of x while it receives the next:
    (B, t, D) -> [(B, T, F/tp), ...].

    linears: layers that read the same x, this rank's shards: weight (F/tp, D), bias (F/tp,) or
    None. x is sent around the ring once for all of them. Sends: as `gather_linear`.
    """
    # (B, T, sum of the F/tp)
    y = gather_linear(x, torch.cat([linear.weight for linear in linears]), group)
    ys = y.split([len(linear.weight) for linear in linears], dim=-1)
    return [
        y if linear.bias is None else y + linear.bias for y, linear in zip(ys, linears, strict=True)
    ]


def asynchronous_row_parallel(x: Tensor, linear: LinearLike, group: Group = None) -> Tensor:
    """Like `sequence_row_parallel`, but sends each part of the sum while it computes the next:
    (B, T, D/tp) -> (B, t, F).

    linear: weight (F, D/tp) and the full bias (F,) or None, whose gradient is partial. Sends: as
    `linear_scatter`.
    """
    y = linear_scatter(x, linear.weight, group)  # (B, t, F)
    return y if linear.bias is None else y + linear.bias


def gather_linear(x, weight, group=None):
    """y = gather(x) W^T: x (B, t, D) sharded by tokens, weight (F/tp, D) -> y (B, T, F/tp) sharded
    by columns.

    Sends per rank: forward tp-1 shards of x; backward tp-1 shards of x and tp-1 of its gradient.
    """
    return GatherLinear.apply(x, weight, group)


def linear_scatter(x, weight, group=None):
    """y = scatter(x W^T): x (B, T, D/tp) sharded by columns, weight (F, D/tp) -> y (B, t, F)
    sharded by tokens.

    Sends per rank: forward tp-1 partial sums of shards of y; backward tp-1 shards of its gradient.
    Raises ValueError if tp does not divide T.
    """
    return LinearScatter.apply(x, weight, group)


class GatherLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        B, t, _ = x.shape
        y = x.new_empty(B, t * dist.get_world_size(group), len(weight))  # (B, T, F/tp)
        for owner, piece in _pieces(x, group):
            y[:, owner * t : (owner + 1) * t] = F.linear(piece, weight)  # (B, t, F/tp)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x, weight), group = ctx.saved_tensors, ctx.group
        dy = dy.tensor_split(dist.get_world_size(group), dim=1)  # tp of (B, t, F/tp)
        dx = ring_accumulate(lambda c: dy[c] @ weight, group)  # (B, t, D)
        dw = torch.zeros_like(weight)  # (F/tp, D)
        for owner, piece in _pieces(x, group):
            dw += dy[owner].flatten(0, 1).T @ piece.flatten(0, 1)
        return dx, dw, None


class LinearScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group):
        tp, T = dist.get_world_size(group), x.shape[1]
        if T % tp:
            raise ValueError(
                f"{T} tokens over {tp} ranks: all shards of the sum have one size, use "
                f"{T + -T % tp} tokens"
            )
        ctx.save_for_backward(x, weight)
        ctx.group = group
        x = x.tensor_split(tp, dim=1)  # tp of (B, t, D/tp)
        return ring_accumulate(lambda c: F.linear(x[c], weight), group)  # (B, t, F)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x, weight), group = ctx.saved_tensors, ctx.group
        t = dy.shape[1]
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)  # (B, T, D/tp), (F, D/tp)
        for owner, piece in _pieces(dy, group):  # (B, t, F): one gather serves both matmuls
            tokens = slice(owner * t, (owner + 1) * t)
            dx[:, tokens] = piece @ weight
            dw += piece.flatten(0, 1).T @ x[:, tokens].flatten(0, 1)
        return dx, dw, None


def _pieces(x, group):
    """Iterate over (r, x of rank r) for all ranks; the next one is received while the caller works.
    x (B, t, ...), of the same shape on every rank."""
    return ring_shift(x.contiguous(), [x.shape] * dist.get_world_size(group), group)
