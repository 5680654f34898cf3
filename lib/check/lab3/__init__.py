"""Lab 3's graded exercises, a file each. In the order of the notebook, with the section:

    f_and_g.py              1  the two mappings
    linear_layers.py        2  columns, rows
    parallel_attention.py   4  a rank's heads
    vocabulary.py           5  where the model begins and ends: embedding, cross-entropy
    sequence.py             6  each rank its own tokens
    split_state_dict.py     12 bonus: a rank's part of the whole model's parameters
    merge_attention.py      9  attention over all keys from attention over some
    ring_attention.py       17 bonus: of a sequence that is cut, keys and values going round
    ulysses_attention.py    18 bonus: the same, sequence shards exchanged for heads

Beside them:

    groups.py        the groups of ranks; two calls under way at once, over different ones; what is
                     the same in all exercises on ranks, such as the hints on groups
    sequence_cut.py  attention over a sharded sequence: the cases, and the script of 17 and 18
"""

__all__ = [
    "f_and_g", "groups", "linear_layers", "merge_attention", "parallel_attention",
    "ring_attention", "sequence", "sequence_cut", "split_state_dict", "ulysses_attention",
    "vocabulary",
]  # fmt: skip
