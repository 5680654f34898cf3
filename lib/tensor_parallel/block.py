"""A transformer block over tp ranks: heads in the attention, hidden units in the MLP (Shoeybi et
al. 2019, figure 3).

Attention: each rank has some of the heads.

    H = 4 heads, tp = 2       query heads       key/value heads (K = 2: grouped-query)
        rank 0                0 1               0            head i reads key/value head i // (H/K),
        rank 1                    2 3             1          which is on the same rank

    x --f--> q, k, v of my heads --> softmax(q k^T / sqrt(d)) v --> . O_r --g--> + o

A head is d columns of the q, k and v layers, and d rows of the out layer: a split by heads is a
column split, then a row split. Heads do not depend on each other, so nothing is sent between f and
g. There is one all-reduce of (B, T, D) forward (g) and one backward (f), because f is applied once
for q, k and v together.

Each key/value head is on one rank, so tp divides K. (With K < tp, Megatron keeps the weights
sharded, all-gathers the output of the q/k/v layer, and each rank takes the heads it needs. One can
also replicate a head on several ranks and sum its gradient over them, but then k and v no longer
shrink with tp. Neither is built here.)

MLP: each rank has F/tp of the F hidden units, with their columns of A and rows of B.

    x --f--> x A_r + a_r --gelu--> . B_r --g--> + b          Z = sum_r gelu(X A_r + a_r) B_r + b

Hidden units do not depend on each other, so nothing is sent between f and g. There is one
all-reduce of (B, T, D) in forward (g) and one in backward (f).
"""

import copy
from collections.abc import Callable

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lib.backend import Group
from lib.tensor_parallel.dropout import own_random_numbers
from lib.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    column_parallel,
    row_parallel,
)
from lib.tensor_parallel.shards import divide
from lib.training.model import MLP, Attention, causal_attention, merge_heads, split_heads


# exercise: lab3.ParallelAttention
class ParallelAttention(nn.Module):
    """A rank's heads of a `lib.training.model.Attention`: (B, T, D) -> (B, T, D); with sequence
    parallelism both are (B, T/tp, D).

    attention: the unsharded layer, the same on all ranks. column_linear, row_linear: the two linear
    functions, as in linear.py. Raises ValueError if tp does not divide n_heads or n_kv_heads.
    """

    def __init__(
        self,
        attention: Attention,
        group: Group = None,
        column_linear: Callable = column_parallel,
        row_linear: Callable = row_parallel,
    ) -> None:
        super().__init__()
        self.group, self.column_linear, self.head_dim = group, column_linear, attention.head_dim
        tp = dist.get_world_size(group)
        divide(attention.q.out_features // self.head_dim, tp, "n_heads")
        divide(attention.k.out_features // self.head_dim, tp, "n_kv_heads")
        self.q = ColumnParallelLinear(attention.q, group, column_linear)  # weight (H*d/tp, D)
        self.k = ColumnParallelLinear(attention.k, group, column_linear)  # weight (K*d/tp, D)
        self.v = ColumnParallelLinear(attention.v, group, column_linear)  # weight (K*d/tp, D)
        self.out = RowParallelLinear(attention.out, group, row_linear)  # weight (D, H*d/tp)
        self.dropout = nn.Dropout(attention.dropout.p)

    def forward(self, x: Tensor) -> Tensor:
        # (B, T, H*d/tp), twice (B, T, K*d/tp)
        columns = self.column_linear(x, [self.q, self.k, self.v], self.group)
        # (B, H/tp, T, d), twice (B, K/tp, T, d)
        q, k, v = (split_heads(column, self.head_dim) for column in columns)
        p = self.dropout.p if self.training else 0.0
        with own_random_numbers(self.group, p > 0):
            mixed = causal_attention(q, k, v, p)  # (B, H/tp, T, d)  sharded by heads
        return self.dropout(self.out(merge_heads(mixed)))


class ParallelMLP(nn.Module):
    """A rank's hidden units of a `lib.training.model.MLP`: (B, T, D) -> (B, T, D); with sequence
    parallelism both are (B, T/tp, D).

    mlp: the unsharded layer, the same on all ranks. column_linear, row_linear: the two linear
    functions, as in linear.py. Raises ValueError if tp does not divide mlp_hidden.
    """

    def __init__(
        self,
        mlp: MLP,
        group: Group = None,
        column_linear: Callable = column_parallel,
        row_linear: Callable = row_parallel,
    ) -> None:
        super().__init__()
        # weight (F/tp, D)
        self.up = ColumnParallelLinear(mlp.up, group, column_linear, "mlp_hidden")
        self.down = RowParallelLinear(mlp.down, group, row_linear, "mlp_hidden")  # weight (D, F/tp)
        self.dropout = nn.Dropout(mlp.dropout.p)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(x))  # (B, T, F/tp)  sharded
        return self.dropout(self.down(hidden))


class ParallelBlock(nn.Module):
    """A `lib.training.model.Block`, its attention and MLP sharded; the norms are replicated."""

    def __init__(self, block, group, column_linear, row_linear):
        super().__init__()
        self.norm1 = copy.deepcopy(block.norm1)
        self.attention = ParallelAttention(block.attention, group, column_linear, row_linear)
        self.norm2 = copy.deepcopy(block.norm2)
        self.mlp = ParallelMLP(block.mlp, group, column_linear, row_linear)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))
