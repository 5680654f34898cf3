"""The MLP over tp ranks: columns, gelu, rows (Shoeybi et al. 2019, figure 3a).

    x --f--> x A_r + a_r --gelu--> . B_r --g--> + b          Z = sum_r gelu(X A_r + a_r) B_r + b

Each rank has F/tp of the F hidden units: the weights that lead into them and those that lead out. A hidden unit needs
no other one, so between f and g nothing is sent. One all-reduce of (B, T, D) forward (g), one backward (f).
"""

import torch.nn.functional as F
from torch import nn

from lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear, column_parallel, row_parallel


class ParallelMLP(nn.Module):
    """A rank's hidden units of a `lib.model.MLP`: (B, T, D) -> (B, T, D); in sequence parallel both (B, T/tp, D).

    mlp: the plain one, alike on all ranks. columns, rows: the two ways to multiply, as in linear.py.
    Raises ValueError where tp does not divide mlp_hidden.
    """

    def __init__(self, mlp, group=None, columns=column_parallel, rows=row_parallel):
        super().__init__()
        self.up = ColumnParallelLinear(mlp.up, group, columns, "mlp_hidden")  # weight (F/tp, D)
        self.down = RowParallelLinear(mlp.down, group, rows, "mlp_hidden")  # weight (D, F/tp)
        self.dropout = nn.Dropout(mlp.dropout.p)

    def forward(self, x):
        hidden = F.gelu(self.up(x))  # (B, T, F/tp)  sharded
        return self.dropout(self.down(hidden))
