"""Tensor parallelism: every rank has a shard of each layer, and all ranks work on the same tokens.

    x --f--> [ column split: heads, hidden units ] --row split--> partial --g--> x  (f and g send)

file              what it holds                                sent by all ranks / ((tp-1) BTD)
----------------  -------------------------------------------  -------------------------------------
mappings.py       f and g; split and gather of the last dim    2 per all-reduce
linear.py         column-parallel and row-parallel linear      column: backward 2; row: forward 2
block.py          heads over ranks, grouped-query too; MLP     each forward 2, backward 2
vocabulary.py     the vocabulary over ranks: embedding, loss   forward 2; loss 6/D: 3 per token
sequence.py       sequence parallelism: f and g in halves      1 per gather, 1 per scatter:
                                                               the same in all
                  ... keeping only those tokens for backward   backward 1 more per gather (G)
dropout.py        the same mask on all ranks, or a mask each   nothing
gpt.py            the full GPT to its shards, and back         see there
splits.py         one matmul, sharded in four ways (Lab 0)     see there
shards.py         shard a tensor or state_dict; merge shards   -

B sequences of T tokens, D hidden, F MLP width, V vocabulary, H heads, K key/value heads, L layers,
tp ranks.

What a layer keeps for backward, elements per token (with F = 4D and 2 bytes each, `34 sbh` less
dropout's masks):

                              norms' inputs, outputs    q k v mixed, MLP   scores
    unsharded                 4D                        4D + 2F            HT
    tensor parallel           4D                        (4D + 2F)/tp       HT/tp
    sequence parallel         2D + 2D/tp                (4D + 2F)/tp       HT/tp
      regathered              4D/tp                     (4D + 2F)/tp       HT/tp

Other splits are imported by name. Context parallelism shards the sequence: context_parallel.py,
with layouts.py (which positions a rank has), online_softmax.py (attention from partial results),
ring_attention.py, and ulysses.py (all-to-all of heads; all-gather of keys). two_d.py shards a
weight in two dims. asynchronous.py overlaps a layer's communication with its matmul.
ring_exchange.py sends blocks around a ring while the ranks compute. compare.py compares each part
with that of the unsharded model.

In Megatron-LM: `ColumnParallelLinear`, `RowParallelLinear`, `VocabParallelEmbedding`, and the
functions that mappings.py and sequence.py name. In torch: `parallelize_module` with
`ColwiseParallel`, `RowwiseParallel` and `SequenceParallel` plans; a sharded parameter has the
placement `Shard(dim)`, a replicated one `Replicate()`, and the result before g is `Partial()`.
"""

from lib.tensor_parallel.block import ParallelAttention, ParallelMLP
from lib.tensor_parallel.dropout import ShardedDropout, own_random_numbers
from lib.tensor_parallel.gpt import (
    ParallelGPT,
    SequenceParallelGPT,
    parallel_gpt,
    plain_gpt,
    sequence_parallel_gpt,
)
from lib.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    column_parallel,
    row_parallel,
)
from lib.tensor_parallel.mappings import (
    copy_to_group,
    gather_from_group,
    reduce_from_group,
    split_to_group,
)
from lib.tensor_parallel.sequence import (
    gather_sequence,
    regathered_column_parallel,
    scatter_sequence,
    sequence_column_parallel,
    sequence_row_parallel,
    sum_gradients,
)
from lib.tensor_parallel.shards import merge_state_dicts, split_dim, split_state_dict
from lib.tensor_parallel.vocabulary import (
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
    vocab_parallel_embedding,
)

__all__ = [
    "ColumnParallelLinear", "ParallelAttention", "ParallelGPT", "ParallelMLP",
    "RowParallelLinear", "SequenceParallelGPT", "ShardedDropout", "VocabParallelEmbedding",
    "column_parallel", "copy_to_group", "gather_from_group", "gather_sequence",
    "merge_state_dicts", "own_random_numbers", "parallel_gpt", "plain_gpt", "reduce_from_group",
    "regathered_column_parallel", "row_parallel", "scatter_sequence",
    "sequence_column_parallel", "sequence_parallel_gpt", "sequence_row_parallel", "split_dim",
    "split_state_dict", "split_to_group", "sum_gradients", "vocab_parallel_cross_entropy",
    "vocab_parallel_embedding",
]  # fmt: skip
