"""Lab 1's graded exercises, one file each, in the order of the notebook. The number is the section:

    unequal_shards.py          2  weighted_loss; with until_all_done.py
    naive_data_parallel.py     3  average_gradients; with broadcast_parameters.py
    buckets.py                 4  reduce_bucket; with plan_buckets.py
    overlapped.py              5  buckets that are sent during backward
    accumulate.py              6  k micro-batches of unequal length, one exchange
    sample_indices.py          7  which rank sees which examples in which epoch
    diagnose.py                9  which of five mistakes each sabotaged run contains
    parameter_server_step.py  10  bonus: rank 0 holds the model
    loss_scaler.py            11  bonus: a loss scale that keeps gradients within fp16's range
    exposed_seconds.py        12  bonus: communication that no computation hides
    outer_step.py             13  bonus: the end of a DiLoCo round

What they share:

    until_all_done.py             the second part of unequal_shards.py
    broadcast_parameters.py       the first part of naive_data_parallel.py
    plan_buckets.py               the first part of buckets.py
    first_steps.py                the three steps of OverlappedDataParallel, tried one by one
    models.py                     the small models
    means.py                      groups, cases and script for the mean gradient over ranks
"""

__all__ = [
    "accumulate", "broadcast_parameters", "buckets", "diagnose", "exposed_seconds", "first_steps",
    "loss_scaler", "means", "models", "naive_data_parallel", "outer_step", "overlapped",
    "parameter_server_step", "plan_buckets", "sample_indices", "unequal_shards", "until_all_done",
]  # fmt: skip
