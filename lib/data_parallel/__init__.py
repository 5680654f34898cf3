"""Data parallelism: every rank has a replica of the model and computes on its share of the batch.

    rank 0  shard 0 -> gradient g_0 --+
    rank 1  shard 1 -> gradient g_1 --+-- mean over ranks --> the same gradient, update and model
    rank 2  shard 2 -> gradient g_2 --+

file                 what it adds                                   all-reduces of n elements a step
-------------------  ---------------------------------------------  --------------------------------
parameter_server.py  rank 0 holds the model, the others pull it     none: rank 0 sends (N-1) n
threaded.py          one process, a thread per device               none: copies between devices
replicate.py         a copy per rank, one all-reduce per parameter  one per parameter
                     k micro-batches, one exchange                  one per parameter, for all k
bucketed.py          the same gradients in a few flat buckets       one per bucket
                     buckets are sent while backward still runs     one per bucket, hidden
sampler.py           which examples each rank gets                  nothing
                     unequal shards, ranks that run out of data     one more, of one number
replicas.py          checks that the copies are still the same,     an all-gather, 8 bytes a tensor
                     if you call Replicas(model).compare(step)
sabotage.py          five mistakes that raise no error, their logs  one per bucket, or more
precision_runs.py    one GPT in fp32, fp16 and bf16, with masters   one; 2 or 4 bytes an element
                     or without
diloco.py            H local steps on each rank, then an outer one  one per parameter in H steps
diloco_comparison.py DiLoCo against data parallelism, three seeds,  none: one process computes all
                     stored: seeds.json, made by
                     `python -m lib.data_parallel`

In torch these are DistributedDataParallel (bucketed.py), `Join` (sampler.py), DistributedSampler
(sampler.py), DataParallel (threaded.py) and PostLocalSGDOptimizer, a relative of diloco.py.

The wrappers (naive, bucketed and overlapped) are all used in the same way, and each takes the
all-reduce to use as an argument:

    model = OverlappedDataParallel(GPT(shape), all_reduce=my_ring)
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    model.average_gradients()     # every .grad is now the mean over ranks, the same bits everywhere
    optimizer.step()

A model with shards or experts that differ between the ranks of the group is refused, because rank
0's would overwrite the others'. Wrap it over a group of ranks that hold the same shard, or leave it
to `moe.reduce_gradients`.

Replicas that drift apart raise no error. `Replicas` says when and where they do:

    replicas = Replicas(model)            # on every rank
    ...
    optimizer.step()
    replicas.compare(step)

    ReplicasDiffer: after step 3 the replicas differ, first in last.bias of Linear: rank 2 holds
    other values than ranks 0, 1 and 3. 2 of 18 parameters differ; they were the same after step 2.
    ...
"""

from lib.data_parallel.bucketed import BucketedDataParallel, OverlappedDataParallel, reduce_bucket
from lib.data_parallel.parameter_server import (
    ParameterServer,
    TrainingServer,
    parameter_server_step,
)
from lib.data_parallel.replicas import Replicas, ReplicasDiffer
from lib.data_parallel.replicate import (
    NaiveDataParallel,
    accumulate,
    average_gradients,
    broadcast_buffers,
    broadcast_parameters,
)
from lib.data_parallel.sampler import Sampler, sample_indices, until_all_done, weighted_loss
from lib.data_parallel.threaded import ThreadedDataParallel

__all__ = [
    "BucketedDataParallel", "NaiveDataParallel", "OverlappedDataParallel", "ParameterServer",
    "Replicas", "ReplicasDiffer", "Sampler", "ThreadedDataParallel", "TrainingServer",
    "accumulate", "average_gradients", "broadcast_buffers", "broadcast_parameters",
    "parameter_server_step", "reduce_bucket", "sample_indices", "until_all_done",
    "weighted_loss",
]  # fmt: skip
