"""A linear layer split by columns, and one split by rows (Shoeybi et al. 2019, section 3).

    columns  x [A_1 | ... | A_tp] = [x A_1 | ... | x A_tp]  x on every rank; each rank gets some
                                                            columns of the
                                                                 result, finished: nothing to send
                                                                 forward

    rows  [x_1 | ... | x_tp] [B_1]
                             [...]  = sum_r x_r B_r  each rank has some columns of x; its product is
                                                     a
                             [B_tp]                  partial sum, as large as the result: all-reduce

What columns give is what rows take. So of two layers in a row, the first by columns and the second
by rows, only the end of the second sends anything (g), and in backward the beginning of the first
(f). Any function of single elements may stand between. The other way round it may not: gelu(partial
+ partial) is not gelu(partial) + gelu(partial).

torch keeps weights transposed, (out, in): columns are rows of `weight`.
B sequences of T tokens, D inputs, F outputs, tp ranks.
"""

import torch.nn.functional as F
from torch import nn

from lib.tensor_parallel.mappings import copy_to_group, reduce_from_group
from lib.tensor_parallel.shards import own_part


# exercise: lab3.column_parallel
def column_parallel(x, linears, group=None, enter=copy_to_group):
    """This rank's columns of x A + a, for each of the layers: (B, T, D), replicated -> [(B, T,
    F/tp), ...], sharded.

    linears: layers that read the same x (q, k and v; or one), a rank's parts: weight (F/tp, D),
    bias (F/tp,) or None. x enters once for all of them: one all-reduce of (B, T, D) in backward,
    none forward. enter(x, group) does it.
    """
    # Y_r = X A_r + a_r
    x = enter(x, group)  # (B, T, D)       replicated
    # (B, T, F/tp)  sharded on dim -1
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


# exercise: lab3.row_parallel
def row_parallel(x, linear, group=None, leave=reduce_from_group):
    """x B + b of all ranks' columns of x: (B, T, D/tp), sharded -> (B, T, F), replicated.

    linear: weight (F, D/tp), this rank's rows of B, and the whole bias (F,) or None.
    Sends: one all-reduce of (B, T, F) forward, none in backward. leave(partial, group) does it.
    """
    # Y = sum_r X_r B_r + b
    partial = F.linear(x, linear.weight)  # (B, T, F)  partial
    y = leave(partial, group)  # (B, T, F)  replicated
    # after the sum: inside it, b would enter tp times
    return y if linear.bias is None else y + linear.bias


class ColumnParallelLinear(nn.Module):
    """A rank's columns of an nn.Linear, (B, T, D) -> (B, T, F/tp). Weight and bias are cut alike.

    columns: columns(x, [linear], group) as `column_parallel`. Raises ValueError where tp does not
    divide F.
    """

    def __init__(self, linear, group=None, columns=column_parallel, what="out_features"):
        super().__init__()
        self.group, self.columns = group, columns
        self.weight = own_part(linear.weight, 0, group, what)  # (F/tp, D)
        self.bias = own_part(linear.bias, 0, group, what)  # (F/tp,)

    def forward(self, x):
        return self.columns(x, [self], self.group)[0]


class RowParallelLinear(nn.Module):
    """A rank's rows of an nn.Linear, (B, T, D/tp) -> (B, T, F). The bias is whole on every rank.

    rows: rows(x, linear, group) as `row_parallel`. Raises ValueError where tp does not divide D.
    """

    def __init__(self, linear, group=None, rows=row_parallel, what="in_features"):
        super().__init__()
        self.group, self.rows = group, rows
        self.weight = own_part(linear.weight, 1, group, what)  # (F, D/tp)
        self.bias = own_part(linear.bias, None, group, what)  # (F,)

    def forward(self, x):
        return self.rows(x, self, self.group)
