"""DeepSpeed's ZeRO in the same run: its settings, and what it keeps besides the model state
(version 0.19.8).

    stage    numbers per parameter on a rank, after backward      after the step
    0        weight, gradient, m, v                4              3
    1, 2     weight; shards of g, m, v, copy       1 + 4/N        1 + 3/N
    3        shards of weight, g, m, v, copy       5/N            5/N            and a bucket

The copy: the optimizer works on an fp32 copy of the rank's shard, the master weights of mixed
precision. DeepSpeed makes it where the weights are fp32 already, so here it is 4/N bytes per
parameter more than the formula; in mixed precision it is in the formula. At stages 1 and 2 a
parameter that is split between two shards has its full gradient on both ranks. At stage 3 the flat
buffer of gradients, and a bucket through which they leave, stay allocated between steps.

What it sends: at stages 1 and 2 a bucket of gradients belongs to several owners, so by default it
is all-reduced and each rank keeps its part: 2 + 1 (N-1)/N psi instead of 1 + 1. With
`use_multi_rank_bucket_allreduce: false` each part is reduced to its owner, in more and smaller
messages. At stage 3 prefetching looks ahead; parameters that are still gathered where forward turns
to backward stay so, and are not gathered again: less than 3.

Its defaults are meant for billions of parameters. At stage 3 parameters below 100,000 elements stay
unsharded on every rank, and one that is needed again within the next billion elements is not
dropped: of this model nothing would be sharded. And gradients are clipped at a norm of 1, unless it
is told not to.
"""

import os

import torch.distributed as dist

from lib.demo.beside.job import BUCKET, SEQUENCES, SHAPE, adamw
from lib.training.model import GPT


def settings(stage, k, N, **zero):
    """DeepSpeed's configuration, as it takes it. zero: more settings of ZeRO."""
    return {
        "train_micro_batch_size_per_gpu": SEQUENCES // N // k,
        "gradient_accumulation_steps": k,
        "gradient_clipping": 0.0,  # left out: 1.0, and the losses would part at the second step
        # torch's AdamW, the same as for all sides; its own needs a compiler
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET,  # elements; left out: 500 million, which a rank allocates
            "allgather_bucket_size": BUCKET,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": BUCKET,
            "stage3_max_live_parameters": 2 * BUCKET,
            **zero,
        },
    }


class Engine:
    """DeepSpeed's engine around the model, on the CPU, for `job.train`. Uses the process
    group that is there."""

    def __init__(self, stage, k, **zero):
        os.environ["DS_ACCELERATOR"] = "cpu"  # before the import: else it looks for a GPU
        import deepspeed  # an optional extra: only here

        # None of its C++ ops: it would compile an all-reduce through shared memory, for inference,
        # half a minute long.
        deepspeed.ops.__compatible_ops__ = {}
        self.model = GPT(SHAPE)
        self.engine, *_ = deepspeed.initialize(
            model=self.model,
            optimizer=adamw(self.model.parameters()),
            config=settings(stage, k, dist.get_world_size(), **zero),
        )

    def forward(self, tokens):
        """tokens (B, T) -> logits (B, T, V)."""
        return self.engine(tokens)

    def backward(self, loss, last):
        """Gradients of one micro-batch; the engine divides by k, counts, and
        averages when it is time."""
        self.engine.backward(loss)
        if not last:
            self.engine.step()  # to be called after every micro-batch; it updates after the last

    def step(self):
        """Update, and forget the gradients."""
        self.engine.step()


def keeps(parameters, stage, N):
    """(bytes after backward, bytes after the step) that a rank of N holds, by the table above,
    padding left out."""
    if stage == 0:
        return 16 * parameters, 12 * parameters
    if stage == 3:
        return (20 * parameters / N + 4 * BUCKET,) * 2
    return 4 * parameters * (1 + 4 / N), 4 * parameters * (1 + 3 / N)
