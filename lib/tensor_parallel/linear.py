"""Column-parallel and row-parallel linear layers (Shoeybi et al. 2019, section 3).

    column  x [A_1 | ... | A_tp] = [x A_1 | ... | x A_tp]  x is replicated; each rank has columns of
                                                           the result, finished: no message forward

    row  [x_1 | ... | x_tp] [B_1]
                            [...]  = sum_r x_r B_r  each rank has some columns of x; its product is
                            [B_tp]                  a partial sum, as large as the result: g

The output of a column split is the input of a row split. So of two consecutive layers, the first
column-parallel and the second row-parallel, only the end of the second sends anything in forward
(g, the output_mapping), and only the beginning of the first in backward (f, the input_mapping). Any
elementwise function may be applied between them. After a row split it must not be applied before g,
because gelu(partial + partial) is not gelu(partial) + gelu(partial).

Megatron's `ColumnParallelLinear` and `RowParallelLinear` are modules that choose their mappings by
flags (gather_output, input_is_parallel, sequence_parallel). Here the functions column_parallel and
row_parallel are given the mappings, and the modules are given the function that multiplies:
column_linear, row_linear.

torch stores weights transposed, (out, in): columns of A are rows of `weight`.
B sequences of T tokens, D inputs, F outputs, tp ranks.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from lib.backend import Collective, Group
from lib.tensor_parallel.mappings import copy_to_group, reduce_from_group
from lib.tensor_parallel.shards import own_shard


class LinearLike(Protocol):
    """This rank's shard of an nn.Linear: what `column_parallel` and `row_parallel` read."""

    weight: Tensor
    bias: Tensor | None


# exercise: lab3.column_parallel
def column_parallel(
    x: Tensor,
    linears: Sequence[LinearLike],
    group: Group = None,
    input_mapping: Collective = copy_to_group,
) -> list[Tensor]:
    """This rank's columns of x A + a, for each of the layers: (B, T, D), replicated -> [(B, T,
    F/tp), ...], sharded.

    linears: this rank's shards of the layers that read the same x (q, k and v; or just one): weight
    (F/tp, D), bias (F/tp,) or None. input_mapping(x, group), f, is applied once for all of them. It
    sends one all-reduce of (B, T, D) in backward, and nothing in forward.
    """
    # Y_r = X A_r + a_r
    x = input_mapping(x, group)  # (B, T, D)       replicated
    # (B, T, F/tp)  sharded on dim -1
    return [F.linear(x, linear.weight, linear.bias) for linear in linears]


# exercise: lab3.row_parallel
def row_parallel(
    x: Tensor,
    linear: LinearLike,
    group: Group = None,
    output_mapping: Collective = reduce_from_group,
) -> Tensor:
    """x B + b, from all ranks' columns of x: (B, T, D/tp), sharded -> (B, T, F), replicated.

    linear: weight (F, D/tp), this rank's rows of B, and the full bias (F,) or None.
    output_mapping(partial, group), g, sends one all-reduce of (B, T, F) in forward, and nothing in
    backward.
    """
    # Y = sum_r X_r B_r + b
    partial = F.linear(x, linear.weight)  # (B, T, F)  partial
    y = output_mapping(partial, group)  # (B, T, F)  replicated
    # after the sum: before it, b would be added tp times
    return y if linear.bias is None else y + linear.bias


class ColumnParallelLinear(nn.Module):
    """A rank's columns of an nn.Linear, (B, T, D) -> (B, T, F/tp). Weight and bias are sharded on
    dim 0.

    column_linear: column_linear(x, [linear], group), as `column_parallel`. Raises ValueError if tp
    does not divide F.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Group = None,
        column_linear: Callable = column_parallel,
        what: str = "out_features",
    ) -> None:
        super().__init__()
        self.group, self.column_linear = group, column_linear
        self.weight = own_shard(linear.weight, 0, group, what)  # (F/tp, D)
        self.bias = own_shard(linear.bias, 0, group, what)  # (F/tp,)

    def forward(self, x: Tensor) -> Tensor:
        return self.column_linear(x, [self], self.group)[0]


class RowParallelLinear(nn.Module):
    """A rank's rows of an nn.Linear, (B, T, D/tp) -> (B, T, F). The weight is sharded on dim 1, the
    bias is replicated.

    row_linear: row_linear(x, linear, group), as `row_parallel`. Raises ValueError if tp does not
    divide D.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Group = None,
        row_linear: Callable = row_parallel,
        what: str = "in_features",
    ) -> None:
        super().__init__()
        self.group, self.row_linear = group, row_linear
        self.weight = own_shard(linear.weight, 1, group, what)  # (F, D/tp)
        self.bias = own_shard(linear.bias, None, group, what)  # (F,)

    def forward(self, x: Tensor) -> Tensor:
        return self.row_linear(x, self, self.group)
