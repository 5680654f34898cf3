"""Lab 0's graded exercises, one file each, in the order of the notebook. The number is the section:

    model_state_bytes.py        1  the memory that training needs for each parameter
    training_days.py            1  bonus: how long a training run takes
    four_splits.py              3  one matrix product split among ranks in four ways
    send_recv.py                4  an exchange that does not deadlock
    broadcast.py                5  bonus: a broadcast down a binomial tree
    ring_reduce_scatter.py      5  chunk r of the sum on rank r; read this file first
    ring_all_gather.py          5  all chunks on every rank
    ring_all_reduce.py          5  a reduce-scatter followed by an all-gather
    all_to_all.py               5  bonus: pairwise exchanges
    all_reduce_time.py          6  the costs of five all-reduces, and which is cheapest
    hierarchical_all_reduce.py  7  bonus: an all-reduce that sends little between nodes
    seconds_lost.py             8  which parallel strategies fit, and how long a GPU waits
    blame.py                   10  bonus: which rank is missing, from dumps of a Flight Recorder

What they share:

    by_messages.py                  cases, judges and hints of functions that send messages
    blame_cases.py                  the dumps, as plain data
"""

__all__ = [
    "all_reduce_time", "all_to_all", "blame", "blame_cases", "broadcast", "by_messages",
    "four_splits", "hierarchical_all_reduce", "model_state_bytes", "ring_all_gather",
    "ring_all_reduce", "ring_reduce_scatter", "seconds_lost", "send_recv", "training_days",
]  # fmt: skip
