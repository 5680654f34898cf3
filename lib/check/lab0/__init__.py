"""Lab 0's graded exercises, one file each, in the order of the notebook."""

from lib.check.lab0 import (
    all_reduce_time,
    all_to_all,
    broadcast,
    four_splits,
    hierarchical_all_reduce,
    model_state_bytes,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    send_recv,
    training_days,
)

EXERCISES = (
    model_state_bytes.EXERCISE,
    training_days.EXERCISE,
    four_splits.EXERCISE,
    send_recv.EXERCISE,
    broadcast.EXERCISE,
    ring_reduce_scatter.EXERCISE,
    ring_all_gather.EXERCISE,
    ring_all_reduce.EXERCISE,
    all_to_all.EXERCISE,
    all_reduce_time.EXERCISE,
    hierarchical_all_reduce.EXERCISE,
)
