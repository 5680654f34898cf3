"""Context parallelism inside a tensor-parallel GPT: the sequence over cp, the heads over tp.

    tokens (B, T) --cp--> (B, t) --> columns --> my heads q k v (B, H/tp, t, d) --ring over cp--> rows --> (B, t, D)

A rank of the mesh has t = T/cp tokens and H/tp heads. Its keys and values go round the ring of the ranks that have the
same heads: 1/tp of what they would be alone. f and g move t tokens instead of T. Nothing else meets.

`lib.tensor_parallel.context_parallel` does the same to the plain GPT. Two modules change: what knows the position of a
token, and what looks at other tokens.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib.model import merge_heads, split_heads
from lib.tensor_parallel.ring_attention import ring_attention


def split_over_context(part, layout, group):
    """Change `part`, a ParallelGPT or SequenceParallelGPT, to one of this rank's tokens; names stay as they are.

    layout: [positions of rank 0, of rank 1, ...], as many on each: then the mean over the ranks is the batch's.
    Sends nothing now. Raises ValueError for unequal shares, and for a model with dropout, which the ring does not have.
    """
    if len({len(positions) for positions in layout}) > 1:
        shares, cp = [len(positions) for positions in layout], len(layout)
        raise ValueError(f"{sum(shares)} tokens over cp={cp} ranks are {shares}: 2cp={2 * cp} has to divide them")
    if part.shape.dropout > 0:
        raise ValueError(f"dropout is {part.shape.dropout}: ring attention has none, use dropout=0.0 or cp=1")
    part.embedding.position = OwnPositions(part.embedding.position, layout[dist.get_rank(group)])
    for block in part.blocks:
        block.attention = ContextAttention(block.attention, layout, group)


class OwnPositions(nn.Module):
    """The table of positions as this rank counts them: index i is its i-th token. The table is whole on every rank."""

    def __init__(self, table, positions):
        super().__init__()
        self.weight, self.num_embeddings = table.weight, len(positions)  # (seq_len, D)
        self.register_buffer("positions", torch.tensor(positions), persistent=False)  # (t,)

    def forward(self, i):
        return F.embedding(self.positions[i], self.weight)


class ContextAttention(nn.Module):
    """A ParallelAttention that sees all T tokens: (B, t, D) -> (B, t, D); in sequence parallel both (B, t/tp, D)."""

    def __init__(self, attention, layout, group):
        super().__init__()
        self.q, self.k, self.v, self.out = attention.q, attention.k, attention.v, attention.out
        self.columns, self.tp, self.head_dim = attention.columns, attention.group, attention.head_dim
        self.layout, self.group = layout, group

    def forward(self, x):
        columns = self.columns(x, [self.q, self.k, self.v], self.tp)  # (B, t, H*d/tp), twice (B, t, K*d/tp)
        q, k, v = (split_heads(column, self.head_dim) for column in columns)  # (B, H/tp, t, d), twice (B, K/tp, t, d)
        mixed = ring_attention(q, k, v, self.layout, self.group)  # (B, H/tp, t, d)
        return self.out(merge_heads(mixed))
