"""Lab 0's graded exercises, a file each. In the order of the notebook, with the section:

    model_state_bytes.py        1  what training keeps for every parameter
    training_days.py            1  bonus: how long a training takes
    four_splits.py              3  one matrix product shared in four ways
    send_recv.py                4  an exchange that does not deadlock
    broadcast.py                5  bonus: down a binomial tree
    ring_reduce_scatter.py      5  rank r holds chunk r of the sum: the file to read first
    ring_all_gather.py          5  all chunks on every rank
    ring_all_reduce.py          5  the one, then the other
    all_to_all.py               5  bonus: pairwise
    all_reduce_time.py          6  what five all-reduces cost, and which of them is cheapest
    hierarchical_all_reduce.py  7  few elements cross between nodes
    seconds_lost.py             8  which ways to divide training fit, and how long a step waits
    blame.py                   10  bonus: who is missing, from dumps of a Flight Recorder

Beside them:

    by_messages.py                  what the checks of functions that send messages share
    blame_cases.py                  dumps as plain data
"""

__all__ = [
    "all_reduce_time", "all_to_all", "blame", "blame_cases", "broadcast", "by_messages",
    "four_splits", "hierarchical_all_reduce", "model_state_bytes", "ring_all_gather",
    "ring_all_reduce", "ring_reduce_scatter", "seconds_lost", "send_recv", "training_days",
]  # fmt: skip
