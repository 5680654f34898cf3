"""The full GPT over tp ranks. It is made from the unsharded GPT, used in the same way, and can be
turned back into it. The table gives the number of collectives in a step:

    tokens -> embedding -> block 0 .. block L-1 -> norm -> head -> logits (B, T, V/tp) -> loss
              vocabulary   heads and hidden units  full    vocabulary                     vocabulary

                            per layer, forward     backward               outside the layers
    parallel_gpt            2 all-reduces          2 all-reduces          1 all-reduce each way
    sequence_parallel_gpt   2 gathers, 2 scatters  2 scatters, 2 gathers  1 of each, each way
      with regathered_column_parallel:
                            2 gathers, 2 scatters  2 scatters, 4 gathers  1 more gather backward

Each of them is on (B, T, D). For an all-reduce the ranks together send (tp-1) 2BTD elements, for a
gather or scatter half of that. The loss all-reduces 3BT more. With sequence parallelism,
`sum_gradients` all-reduces the gradients of the replicated parameters, which are 6D elements per
layer (norms, biases after a row split) and 2D + TD outside the layers (the last norm, positions; T
is seq_len). tp has to divide n_heads, n_kv_heads, mlp_hidden and vocab_size, and with sequence
parallelism also the length of the sequence.

Every rank builds the full model from the same seed and keeps its shard, so the values are those of
a single-process baseline, whatever tp is. All tp ranks read the same tokens and, where there is
dropout, start from the same torch.manual_seed.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group
from lib.tensor_parallel.block import ParallelBlock
from lib.tensor_parallel.dropout import ShardedDropout
from lib.tensor_parallel.linear import ColumnParallelLinear, column_parallel, row_parallel
from lib.tensor_parallel.mappings import copy_to_group, reduce_from_group
from lib.tensor_parallel.sequence import scatter_sequence, sequence_column_parallel, sum_gradients
from lib.tensor_parallel.shards import gather_along_dim, split_dim
from lib.tensor_parallel.vocabulary import (
    SequenceEmbedding,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from lib.training.model import GPT


def parallel_gpt(
    model: GPT, group: Group = None, all_reduce: Collective = collectives.all_reduce
) -> "ParallelGPT":
    """This rank's shard of `model`, a `lib.training.model.GPT` that is the same on all ranks.
    `model` itself is not changed.

    all_reduce: all_reduce(tensor, group) sums in place; f and g call it. Sends nothing now.
    Raises ValueError for a size that tp does not divide.
    """
    input_mapping = partial(copy_to_group, all_reduce=all_reduce)
    output_mapping = partial(reduce_from_group, all_reduce=all_reduce)
    return ParallelGPT(
        model, group, partial(column_parallel, input_mapping=input_mapping), output_mapping
    )


def sequence_parallel_gpt(
    model: GPT,
    group: Group = None,
    column_linear: Callable = sequence_column_parallel,
    output_mapping: Collective = scatter_sequence,
) -> "SequenceParallelGPT":
    """This rank's shard of `model`, with sequence parallelism. After backward you have to call
    `sum_gradients()`, once per step.

    column_linear: `sequence_column_parallel` keeps gathered inputs for backward,
    `regathered_column_parallel` gathers them again. output_mapping: that of the row-parallel layers
    and of the embedding. Sends nothing now. Raises ValueError for a size that tp does not divide.
    """
    return SequenceParallelGPT(model, group, column_linear, output_mapping)


class ParallelGPT(nn.Module):
    """A rank's shard of a GPT, under the GPT's names for parts and parameters. Made by
    `parallel_gpt`."""

    embedding: Any

    def __init__(
        self, model: GPT, group: Group, column_linear: Callable, output_mapping: Callable
    ) -> None:
        super().__init__()
        self.shape, self.group = model.shape, group
        row_linear = partial(row_parallel, output_mapping=output_mapping)
        self.embedding = copy.deepcopy(model.embedding)
        self.embedding.token = VocabParallelEmbedding(model.embedding.token, group, output_mapping)
        self.blocks = nn.ModuleList(
            ParallelBlock(block, group, column_linear, row_linear) for block in model.blocks
        )
        self.norm = copy.deepcopy(model.norm)
        self.head = ColumnParallelLinear(model.head, group, column_linear, "vocab_size")
        if model.head.weight is model.embedding.token.weight:
            # both are sharded by vocabulary, so they can be tied on every rank
            self.head.weight = self.embedding.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) int64, the same on all ranks -> logits (B, T, V/tp) of this
        rank's part of the vocabulary."""
        x = self.embedding(tokens)  # (B, T, D), in sequence parallel (B, T/tp, D)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # (B, T, V/tp)

    def loss(self, tokens: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The loss of predicting `targets` from `tokens`, both (B, T), the same on all
        ranks: ()."""
        return vocab_parallel_cross_entropy(self(tokens), targets, self.group, reduction)

    def replicated(self) -> list[nn.Parameter]:
        """The parameters that every rank has in full."""
        return [parameter for name, parameter in self.named_parameters() if split_dim(name) is None]

    def sum_gradients(self) -> None:
        """With sequence parallelism, call it after the last backward of a step. Here every gradient
        is complete already, so it does nothing."""


class SequenceParallelGPT(ParallelGPT):
    """A ParallelGPT in which each rank has its own tokens between the sharded layers. Made by
    `sequence_parallel_gpt`."""

    def __init__(
        self, model: GPT, group: Group, column_linear: Callable, output_mapping: Callable
    ) -> None:
        super().__init__(model, group, column_linear, output_mapping)
        own = partial(ShardedDropout, model.shape.dropout, group)
        self.embedding = SequenceEmbedding(
            self.embedding.token, self.embedding.position, own(), group
        )
        for block in self.blocks:
            block.attention.dropout, block.mlp.dropout = own(), own()

    def sum_gradients(self) -> None:
        """Replace the gradients of replicated parameters, which saw only this rank's tokens, by
        their sums over the ranks.

        Call it once per step, after the last backward. Sends: one all-reduce.
        """
        sum_gradients(self.replicated(), self.group)


@torch.no_grad()
def plain_gpt(parallel: Any) -> GPT:
    """The unsharded GPT from all ranks' shards, on every rank. Sends: an all-gather per sharded
    parameter."""
    model = GPT(parallel.shape).to(parallel.norm.weight.dtype)
    if parallel.head.weight is not parallel.embedding.token.weight:
        model.head.weight = nn.Parameter(torch.empty_like(model.head.weight))
    for (name, parameter), part in zip(
        model.named_parameters(), parallel.parameters(), strict=True
    ):
        dim = split_dim(name)
        parameter.copy_(part if dim is None else gather_along_dim(part, dim, parallel.group))
        parameter.requires_grad_(part.requires_grad)
    return model
