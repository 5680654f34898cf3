"""Context parallelism inside a tensor-parallel GPT: the sequence over cp, the heads over tp.

    tokens (B, T) --cp--> (B, t) --column split--> my heads q k v (B, H/tp, t, d)
                  --ring over cp--> my heads' output --row split--> (B, t, D)

A rank of the mesh has t = T/cp tokens and H/tp heads. Its keys and values are sent around the ring
of the ranks that have the same heads, and are 1/tp as large as without tensor parallelism. f and g
communicate t tokens instead of T. Otherwise the two kinds of parallelism do not interact.

`lib.tensor_parallel.context_parallel` does the same to the plain GPT. Only two modules change: the
embedding, which needs the position of a token, and attention, which reads other tokens.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib.tensor_parallel.context_parallel import ContextAttention


def split_over_context(part, layout, group):
    """Change `part`, a ParallelGPT or SequenceParallelGPT, in place so that it works on this rank's
    tokens only. Its parameters keep their names.

    layout: [positions of rank 0, of rank 1, ...], equally many on each, so that the mean over the
    ranks is the mean of the batch. This call sends nothing. Raises ValueError for unequal shares,
    and for a model with dropout, which ring attention does not support.
    """
    if len({len(positions) for positions in layout}) > 1:
        shares, cp = [len(positions) for positions in layout], len(layout)
        raise ValueError(
            f"{sum(shares)} tokens over cp={cp} ranks are {shares}: 2cp={2 * cp} has to divide them"
        )
    if part.shape.dropout > 0:
        raise ValueError(
            f"dropout is {part.shape.dropout}: ring attention has none, use dropout=0.0 or cp=1"
        )
    part.embedding.position = OwnPositions(part.embedding.position, layout[dist.get_rank(group)])
    for block in part.blocks:
        block.attention = ContextAttention(
            block.attention, layout, group, columns_of(block.attention)
        )


def columns_of(attention):
    """The `column_linear` for ContextAttention: a function of x and the layers q, k and v that
    computes this rank's columns over the attention's tensor-parallel group."""
    return lambda x, linears: attention.column_linear(x, linears, attention.group)


class OwnPositions(nn.Module):
    """The embedding of positions for this rank's tokens: maps the index of a token on this rank to
    the vector of the token's position in the sequence. The table is replicated on every rank."""

    def __init__(self, table, positions):
        super().__init__()
        self.weight, self.num_embeddings = table.weight, len(positions)  # (seq_len, D)
        self.register_buffer("positions", torch.tensor(positions), persistent=False)  # (t,)

    def forward(self, i):
        return F.embedding(self.positions[i], self.weight)
