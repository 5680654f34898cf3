"""2-D tensor parallelism: a linear layer whose weight, input and output are all sharded into
blocks (SUMMA).

    X (n, I)     W (I, O)     Y = X W (n, O)    rank (i, j) of a q x q grid holds the blocks
    X00 | X01    W00 | W01    Y00 | Y01         X_ij, W_ij and Y_ij: 1/q^2 of each
    ----+----    ----+----    ----+----
    X10 | X11    W10 | W11    Y10 | Y11         row i: ranks (i, 0) ... (i, q-1);  column j likewise

    Y_ij = sum_k X_ik W_kj  in step k X_ik is broadcast along row i, and W_kj along column j

1-D tensor parallelism shards only the weight: each of its p ranks holds, and all-reduces, the full
activation. Here no rank has a full tensor. Backward has two matmuls of the same kind, in which
partial sums are reduced instead:

    dX_ik = sum_j dY_ij W_kj^T  W_kj is broadcast along column j; the products are reduced along row
                                i to rank (i, k)
    dW_kj = sum_i X_ik^T dY_ij  X_ik is broadcast along row i; the products are reduced along column
                                j to rank (k, j)

Elements sent, all ranks: (q-1)(nI + IO) forward and twice that backward. An MLP h -> 4h -> h,
forward and backward, on p = q^2 ranks: 3(q-1)(5nh + 8h^2) in 2-D, 4(p-1)nh in 1-D. With q = 2, 2-D
never sends less; with q = 3 it sends less if n is above 24h. For larger q the ratio of the two
falls as 1/(q+1). The memory is always smaller, because activations are sharded over q^2 ranks.

Sources: van de Geijn & Watts 1997, "SUMMA: scalable universal matrix multiplication algorithm"; Xu
& You 2021, "An efficient 2D method for training super-large deep learning models" (Optimus). No
bias here.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from lib.backend import Group
from lib.collectives import broadcast, reduce


def linear_2d(x: Tensor, weight: Tensor, row: Group, column: Group) -> Tensor:
    """Y = X W on a q x q grid: x (n/q, I/q), weight (I/q, O/q) -> (n/q, O/q), block (i, j) of each
    on rank (i, j).

    row: the group of this rank's row, its ranks in the order of the columns, so that this rank is
    rank j of it. column: likewise, and this rank is rank i of it. Sends, in each of the two groups:
    q broadcasts forward, by trees; q broadcasts and q reduces backward. Raises ValueError for a
    grid that is not square, or blocks that do not fit.
    """
    q, rows = dist.get_world_size(row), dist.get_world_size(column)
    if q != rows:
        raise ValueError(
            f"a row of {q} ranks and a column of {rows}: the grid must be square, q x q"
        )
    if x.shape[-1] != len(weight) or x.dim() != 2:
        raise ValueError(
            f"x {tuple(x.shape)} times weight {tuple(weight.shape)}: x is (n/{q}, I/{q}) and "
            f"weight (I/{q}, O/{q})"
        )
    return Linear2D.apply(x, weight, row, column)


class Linear2D(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, row, column):
        ctx.save_for_backward(x, weight)
        ctx.row, ctx.column = row, column
        y = x.new_zeros(len(x), weight.shape[1])  # (n/q, O/q)
        for k in range(dist.get_world_size(row)):
            y += _from(x, k, row) @ _from(weight, k, column)  # Y_ij += X_ik W_kj
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x, weight), row, column = ctx.saved_tensors, ctx.row, ctx.column
        i, j = dist.get_rank(column), dist.get_rank(row)
        for k in range(dist.get_world_size(row)):
            # (n/q, I/q)  on rank (i, k) the sum over j
            part = reduce(dy @ _from(weight, k, column).T, k, row)
            if k == j:
                dx = part
            # (I/q, O/q)  on rank (k, j) the sum over i
            part = reduce(_from(x, k, row).T @ dy, k, column)
            if k == i:
                dw = part
        return dx, dw, None, None


def _from(block, k, group):
    """Rank k's block, on every rank of the group; all of one shape."""
    here = block.contiguous() if dist.get_rank(group) == k else torch.empty_like(block)
    return broadcast(here.detach(), k, group)
