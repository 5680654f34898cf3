"""Embedding over tp ranks: each has some of the vocabulary (Shoeybi et al. 2019, section 3).

    V = 8, tp = 2        tokens      2     7     3
        rank 0: 0..3                w_2    0    w_3        a token's vector is on one rank, the others give zeros,
        rank 1: 4..7                 0    w_7    0         and the sum over the ranks is the vector: g
                             sum    w_2   w_7   w_3

A sum of which all terms but one are 0 is exact. Backward sends nothing: every rank knows the gradient of each vector,
and keeps what falls on its own rows.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib.tensor_parallel.mappings import reduce_from_group
from lib.tensor_parallel.shards import divide, own_part


def own_rows(ids, rows, group=None):
    """Where `ids` fall in this rank's `rows` rows of the vocabulary: (row, elsewhere), both (B, T).

    row: int64, 0 where the id is another rank's. elsewhere: bool, True there.
    Raises ValueError for an id outside the vocabulary: no rank would have it, and all would give zeros.
    """
    rank, tp = dist.get_rank(group), dist.get_world_size(group)
    if ids.numel() and not 0 <= ids.min() <= ids.max() < rows * tp:
        raise ValueError(f"ids from {ids.min()} to {ids.max()}: the vocabulary has {rows * tp}, 0 to {rows * tp - 1}")
    row = ids - rank * rows
    elsewhere = (row < 0) | (row >= rows)
    return row.masked_fill(elsewhere, 0), elsewhere


# exercise: lab3.vocab_parallel_embedding
def vocab_parallel_embedding(tokens, weight, group=None, leave=reduce_from_group):
    """The vectors of `tokens`: (B, T) int64, replicated -> (B, T, D), replicated.

    weight: (V/tp, D), this rank's rows. Sends: one all-reduce of (B, T, D) forward, nothing backward.
    leave(partial, group) does it; `scatter_sequence` gives (B, T/tp, D), this rank's tokens, for half the bytes.
    Raises ValueError for tokens outside the vocabulary.
    """
    row, elsewhere = own_rows(tokens, weight.shape[0], group)
    partial = F.embedding(row, weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)  # (B, T, D)  partial
    return leave(partial, group)


class VocabParallelEmbedding(nn.Module):
    """A rank's rows of an nn.Embedding: tokens (B, T) -> (B, T, D). Raises ValueError where tp does not divide V."""

    def __init__(self, embedding, group=None, leave=reduce_from_group):
        super().__init__()
        self.group, self.leave = group, leave
        self.weight = own_part(embedding.weight, 0, group, "vocab_size")  # (V/tp, D)

    def forward(self, tokens):
        return vocab_parallel_embedding(tokens, self.weight, self.group, self.leave)


class SequenceEmbedding(nn.Module):
    """A `lib.model.Embedding` in sequence parallel: all tokens (B, T) -> those of this rank, (B, T/tp, D).

    token: gives (B, T/tp, D). The positions' table is whole on every rank, which reads its own tokens' rows.
    Raises ValueError where tp does not divide T, or where T is longer than the table.
    """

    def __init__(self, token, position, dropout, group=None):
        super().__init__()
        self.token, self.position, self.dropout, self.group = token, position, dropout, group

    def forward(self, tokens):
        rank, tp = dist.get_rank(self.group), dist.get_world_size(self.group)
        length, longest = tokens.shape[-1], self.position.num_embeddings
        if length > longest:
            raise ValueError(f"a sequence of {length} tokens, the model has {longest} positions: use seq_len={length}")
        mine = divide(length, tp, "the sequence's length")
        positions = torch.arange(rank * mine, (rank + 1) * mine, device=tokens.device)  # (T/tp,)
        return self.dropout(self.token(tokens) + self.position(positions))  # (B, T/tp, D)
