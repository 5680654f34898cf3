"""Tries a plan for hundreds of GPUs on a few ranks. The small run has the same kinds of
parallelism, each with at most two ranks. The loss and the norm of its one step have to equal those
of a single process.

    tp8 pp4 dp8 v12 zero1 sp  ->  2 x 2 x 2 ranks, two stages per rank, ZeRO-1, sequence parallelism
"""

from functools import partial

import torch

from lib.hybrid.compare import train_alone
from lib.hybrid.train import Hybrid, local_batch, mesh_of
from lib.hybrid.update import ReplicatedUpdate, ShardedUpdate
from lib.pipeline import interleaved, one_f_one_b
from lib.tensor_parallel import parallel_gpt, sequence_parallel_gpt
from lib.training.model import GPT

SGD = partial(torch.optim.SGD, lr=0.1)


def small_sizes(plan):
    """{axis: ranks} of the small run: 2 for each axis along which the plan has more than one."""
    return {axis: min(2, getattr(plan, axis)) for axis in ("pp", "dp", "tp")}


def small_step(plan, shape, batch):
    """One step of a GPT in float64, on the mesh of `small_sizes`: (loss, norm).

    plan: a `lib.cost.plan.Plan`. shape: a Shape. batch: tokens and targets, (B, T) each; a
    micro-batch has B // 4 rows. Sends: what `Hybrid` sends.
    """
    mesh = mesh_of(**small_sizes(plan))
    tokens, targets = (local_batch(each, mesh) for each in batch)
    hybrid = Hybrid(
        GPT(shape).double(),
        mesh,
        tokens,
        len(batch[0]) // 4,
        SGD,
        schedule=partial(interleaved, v=2) if plan.v > 1 else one_f_one_b,
        split=sequence_parallel_gpt if plan.sequence_parallel else parallel_gpt,
        update=ShardedUpdate if plan.zero else ReplicatedUpdate,
    )
    return hybrid.backward(tokens, targets).item(), hybrid.clip(1.0).item()


def single_process(shape, batch):
    """(loss, norm) of the same step in a single process."""
    return train_alone(GPT(shape).double(), SGD, [batch])[0]
