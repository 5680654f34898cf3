"""Lab 3's graded exercises, one file each, in the order of the notebook and with its sections:

    f_and_g.py              1  the mappings f and g
    linear_layers.py        2  column-parallel and row-parallel linear layers
    parallel_attention.py   4  attention with a rank's own heads
    vocabulary.py           5  the two ends of the model: embedding and cross-entropy
    sequence.py             6  sequence parallelism: each rank has its own tokens
    merge_attention.py      9  attention over all keys, merged from attention over two sets of keys
    split_state_dict.py     12 bonus: a rank's shard of the unsharded model's parameters
    ring_attention.py       17 bonus: a sharded sequence, with keys and values sent around a ring
    ulysses_attention.py    18 bonus: a sharded sequence, with sequence shards exchanged for heads

Two files are shared by several exercises:

    groups.py        the groups of ranks, cases with two calls in flight over different groups, and
                     what all exercises on ranks have in common, such as the hints on groups
    sequence_cut.py  attention over a sharded sequence: the cases and the script of sections 17 and
                     18
"""

__all__ = [
    "f_and_g", "groups", "linear_layers", "merge_attention", "parallel_attention",
    "ring_attention", "sequence", "sequence_cut", "split_state_dict", "ulysses_attention",
    "vocabulary",
]  # fmt: skip
