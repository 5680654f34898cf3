"""Lab 1's graded exercises, one file each, in the order of the notebook."""

from lib.check.lab1 import (
    accumulate,
    buckets,
    loss_scaler,
    naive_data_parallel,
    overlapped,
    parameter_server_step,
    sample_indices,
    unequal_shards,
)

EXERCISES = (
    parameter_server_step.EXERCISE,
    unequal_shards.EXERCISE,
    naive_data_parallel.EXERCISE,
    buckets.EXERCISE,
    overlapped.EXERCISE,
    accumulate.EXERCISE,
    sample_indices.EXERCISE,
    loss_scaler.EXERCISE,
)
