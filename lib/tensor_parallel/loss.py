"""Cross-entropy of logits that are sharded by vocabulary, without gathering them (Shoeybi et al. 2019, section 3).

    -log p(target) = log sum_v exp(z_v - m) - (z_target - m)        m = max_v z_v, against overflow

    per token     on a rank, over its V/tp logits     over the ranks
    m             the largest                          max
    the sum       of exp(z_v - m)                      sum
    z_target - m  if it has the target, else 0         sum

Three numbers per token travel, whatever V is; gathered logits would be V of them (GPT-2: 50,257). The two sums go in
one message. Backward sends nothing: dz_v = p_v - [v is the target], and a rank has the p_v of its own part.
"""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from lib import collectives
from lib.tensor_parallel.embedding import own_rows

REDUCE = {"mean": torch.mean, "sum": torch.sum}


# exercise: lab3.vocab_parallel_cross_entropy
def vocab_parallel_cross_entropy(logits, targets, group=None, reduction="mean", all_reduce=collectives.all_reduce):
    """-log p(target) in nats, the "mean" or the "sum" over all B*T tokens, alike on all ranks: ().

    logits: (B, T, V/tp), this rank's part of the vocabulary. targets: (B, T) int64, replicated.
    Sends: an all-reduce of (B, T) and one of (2, B, T) forward, nothing backward.
    all_reduce: all_reduce(tensor, group, op) in place, with ReduceOp.MAX and SUM.
    Raises ValueError for shapes that do not fit, or targets outside the vocabulary.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} want targets {tuple(logits.shape[:-1])}, got {tuple(targets.shape)}: "
            "one target per token"
        )
    return REDUCE[reduction](_CrossEntropy.apply(logits, targets, group, all_reduce))


class _CrossEntropy(torch.autograd.Function):
    """(B, T, V/tp), (B, T) -> (B, T), a loss per token."""

    @staticmethod
    def forward(ctx, logits, targets, group, all_reduce):
        row, elsewhere = own_rows(targets, logits.shape[-1], group)
        largest = logits.amax(-1)  # (B, T)
        all_reduce(largest, group, op=dist.ReduceOp.MAX)
        logits = logits - largest.unsqueeze(-1)  # (B, T, V/tp)  at most 0
        p = logits.exp()  # (B, T, V/tp)  not yet normalised
        target = logits.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)  # (B, T)
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
        return dz, None, None, None
