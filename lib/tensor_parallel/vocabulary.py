"""The vocabulary over tp ranks: embedding and cross-entropy (Shoeybi et al. 2019, section 3).

Embedding: each rank has a shard of the rows (Megatron's `VocabParallelEmbedding`).

    V = 8, tp = 2     tokens    2    7    3
        rank 0: 0..3           w_2   0   w_3  a token's vector is on one rank, the others give
        rank 1: 4..7            0   w_7   0   zeros, and the sum over the ranks is the vector: g
                          sum  w_2  w_7  w_3

The sum is exact, because all terms but one are 0. Backward sends nothing, because every rank knows
the gradient of each vector, and uses those of its own rows.

Cross-entropy of logits that are sharded by vocabulary, without gathering them (Megatron's
`vocab_parallel_cross_entropy`, torch's `loss_parallel`):

    -log p(target) = log sum_v exp(z_v - m) - (z_target - m)        m = max_v z_v, against overflow

    per token     on a rank, over its V/tp logits     over the ranks
    m             the largest                          max
    the sum       of exp(z_v - m)                      sum
    z_target - m  if it has the target, else 0         sum

Three values per token are all-reduced, whatever V is; gathering the logits would send V of them
(GPT-2: 50,257). The two sums share one message. Backward sends nothing: dz_v = p_v - [v is the
target], and a rank has the p_v of its own part.

Exponentials and their sum are computed in float32 if logits have 16 bits, because a sum of 50,257
terms in 16 bits would stop growing when one more term is too small to change it.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lib import collectives
from lib.backend import Collective, Group
from lib.tensor_parallel.mappings import reduce_from_group
from lib.tensor_parallel.online_softmax import wide
from lib.tensor_parallel.shards import divide, own_shard


def own_rows(ids, rows, group=None):
    """Which of this rank's `rows` rows of the vocabulary `ids` are: (row, elsewhere), both (B, T).

    elsewhere: bool, True where the id is another rank's. row: int64, 0 there. Raises ValueError for
    an id outside the vocabulary, because no rank would have it and all would give zeros.
    """
    rank, tp = dist.get_rank(group), dist.get_world_size(group)
    if ids.numel() and not 0 <= ids.min() <= ids.max() < rows * tp:
        raise ValueError(
            f"ids from {ids.min()} to {ids.max()}: the vocabulary has {rows * tp}, 0 to "
            f"{rows * tp - 1}"
        )
    row = ids - rank * rows
    elsewhere = (row < 0) | (row >= rows)
    return row.masked_fill(elsewhere, 0), elsewhere


# exercise: lab3.vocab_parallel_embedding
def vocab_parallel_embedding(
    tokens: Tensor,
    weight: Tensor,
    group: Group = None,
    output_mapping: Collective = reduce_from_group,
) -> Tensor:
    """The vectors of `tokens`: (B, T) int64, replicated -> (B, T, D), replicated.

    weight: (V/tp, D), this rank's rows. Sends: one all-reduce of (B, T, D) forward, nothing
    backward. output_mapping(partial, group), g, sends it; `scatter_sequence` gives (B, T/tp, D),
    this rank's tokens, for half the bytes. Raises ValueError for tokens outside the vocabulary.
    """
    row, elsewhere = own_rows(tokens, weight.shape[0], group)
    # (B, T, D)  partial
    partial = F.embedding(row, weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
    return output_mapping(partial, group)


class VocabParallelEmbedding(nn.Module):
    """A rank's rows of an nn.Embedding: tokens (B, T) -> (B, T, D). Raises ValueError if tp does
    not divide V."""

    def __init__(
        self,
        embedding: nn.Embedding,
        group: Group = None,
        output_mapping: Collective = reduce_from_group,
    ) -> None:
        super().__init__()
        self.group, self.output_mapping = group, output_mapping
        self.weight = own_shard(embedding.weight, 0, group, "vocab_size")  # (V/tp, D)

    def forward(self, tokens: Tensor) -> Tensor:
        return vocab_parallel_embedding(tokens, self.weight, self.group, self.output_mapping)


class SequenceEmbedding(nn.Module):
    """A `lib.training.model.Embedding` in sequence parallel: all tokens (B, T) -> those of this
    rank, (B, T/tp, D).

    token: gives (B, T/tp, D). The table of positions is replicated, and each rank reads its own
    tokens' rows. Raises ValueError if tp does not divide T, or if T is longer than the table.
    """

    def __init__(
        self, token: nn.Module, position: nn.Embedding, dropout: nn.Module, group: Group = None
    ) -> None:
        super().__init__()
        self.token, self.position, self.dropout, self.group = token, position, dropout, group

    def forward(self, tokens: Tensor) -> Tensor:
        rank, tp = dist.get_rank(self.group), dist.get_world_size(self.group)
        length, longest = tokens.shape[-1], self.position.num_embeddings
        if length > longest:
            raise ValueError(
                f"a sequence of {length} tokens, the model has {longest} positions: use "
                f"seq_len={length}"
            )
        mine = divide(length, tp, "the sequence's length")
        positions = torch.arange(rank * mine, (rank + 1) * mine, device=tokens.device)  # (T/tp,)
        return self.dropout(self.token(tokens) + self.position(positions))  # (B, T/tp, D)


REDUCE: dict[str, Callable[[Tensor], Tensor]] = {"mean": torch.mean, "sum": torch.sum}


# exercise: lab3.vocab_parallel_cross_entropy
def vocab_parallel_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    group: Group = None,
    reduction: str = "mean",
    all_reduce: Collective = collectives.all_reduce,
    *,
    ignore_index: int = -100,
) -> Tensor:
    """-log p(target) in nats, the "mean" or the "sum" over all B*T tokens, the same on all ranks:
    (), float32 or float64.

    logits: (B, T, V/tp), this rank's part of the vocabulary. targets: (B, T) int64, replicated; a
    token whose target is ignore_index has neither a loss nor a gradient, and the mean is over the
    other tokens (nan if there are none). Sends: an all-reduce of (B, T) and one of (2, B, T)
    forward, nothing backward. all_reduce: all_reduce(tensor, group, op) in place, with ReduceOp.MAX
    and SUM. Raises ValueError for shapes that do not fit, or targets outside the vocabulary.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} want targets {tuple(logits.shape[:-1])}, got "
            f"{tuple(targets.shape)}: one target per token"
        )
    ignored = targets == ignore_index
    # (B, T)
    losses = _CrossEntropy.apply(logits, targets.masked_fill(ignored, 0), group, all_reduce)
    return REDUCE[reduction](losses[~ignored] if ignored.any() else losses)


class _CrossEntropy(torch.autograd.Function):
    """(B, T, V/tp), (B, T) -> (B, T), a loss per token."""

    @staticmethod
    def forward(ctx, logits, targets, group, all_reduce):
        ctx.dtype, logits = logits.dtype, wide(logits)
        row, elsewhere = own_rows(targets, logits.shape[-1], group)
        largest = logits.amax(-1)  # (B, T)
        all_reduce(largest, group, op=dist.ReduceOp.MAX)
        logits = logits - largest.unsqueeze(-1)  # (B, T, V/tp)  at most 0
        p = logits.exp()  # (B, T, V/tp)  not yet normalised
        # (B, T)
        target = logits.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
        sums = torch.stack([p.sum(-1), target])  # (2, B, T)  partial
        all_reduce(sums, group)
        total, target = sums
        p /= total.unsqueeze(-1)
        ctx.save_for_backward(p, row, elsewhere)
        # -log p(target) = log sum_v exp(z_v - m) - (z_target - m)
        return total.log() - target

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        p, row, elsewhere = ctx.saved_tensors
        # dz_v = p_v - [v is the target]
        dz = p * grad.unsqueeze(-1)  # (B, T, V/tp)
        dz.scatter_add_(-1, row.unsqueeze(-1), -grad.masked_fill(elsewhere, 0.0).unsqueeze(-1))
        return dz.to(ctx.dtype), None, None, None
