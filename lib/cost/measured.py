"""A step on this machine, from its measured parts: a layer's compute, and a link's alpha and beta.

    S_F, S_B   one stage's forward and backward for one micro-batch; if tensor parallelism splits
               the stage, each layer adds two all-reduces of the activations to either of them
    pipeline   the clock of lib.pipeline.simulate with S_F, S_B and a message of the activations
    gradients  one all-reduce over the data ranks, after the last backward
    step       pipeline + gradients + update

Nothing is fitted. The model of large clusters (step.py) computes with the rates of its GPUs,
whereas here the seconds of a CPU core are measured. alpha, beta: seconds per message and per byte
of a rank's own link, as a ping-pong measures them (Lab 0). The model assumes that ranks do not
share a core, and that messages do not share a link. Source: Patarasuk & Yuan 2009 for the ring.
"""

from typing import NamedTuple

from lib.cost.data_parallel import ring_time
from lib.cost.step import split
from lib.pipeline import interleaved, one_f_one_b, simulate


class Compute(NamedTuple):
    """Seconds that one rank computes for one micro-batch, measured under the plan's
    tensor parallelism."""

    forward: float  # one layer
    backward: float
    # what the first stage does in forward besides its layers; backward is taken to be twice that
    first: float = 0.0
    last: float = 0.0  # the same for the last stage: vocabulary and loss
    update: float = 0.0  # the optimizer's step, once


def measured_step(model, plan, compute, link, itemsize=4):
    """{"pipeline", "tensor", "gradients", "update"}: seconds; their sum is the step.

    model: a Model; plan: a Plan (tp, pp, v, dp, micro-batch); compute: Compute; link: (alpha,
    beta); itemsize: bytes of an element of activations and gradients. "pipeline" is the clock
    without tensor parallelism's all-reduces, and "tensor" is what these add to it. Raises
    ValueError for a plan with interleaved stages whose m micro-batches cannot be divided into m //
    pp groups of equal size; with m < pp there is only one group.
    """
    with_tensor = _clock(model, plan, compute, link, itemsize, True)
    without = _clock(model, plan, compute, link, itemsize, False)
    # all gradients of the fullest stage in one all-reduce: 2 (N-1) (alpha + n / N beta)
    layers = max(split(model.layers, plan.pp)) * (
        model.attention_parameters + model.expert_parameters
    )
    n_bytes = itemsize * (layers + model.embedding_parameters) / plan.tp
    gradients = ring_time(n_bytes, plan.dp, link) if plan.dp > 1 else 0.0
    return {
        "pipeline": without,
        "tensor": with_tensor - without,
        "gradients": gradients,
        "update": compute.update,
    }


def _clock(model, plan, compute, link, itemsize, tensor):
    """Makespan of the plan's schedule, with or without tensor parallelism's all-reduces."""
    alpha, beta = link
    # the activations between two layers
    n_bytes = itemsize * plan.micro_batch * model.seq * model.hidden
    # two all-reduces in each direction
    reduced = 2 * ring_time(n_bytes, plan.tp, link) if tensor and plan.tp > 1 else 0.0
    stages = plan.pp * plan.v
    counts = split(model.layers, stages)
    forward = [n * (compute.forward + reduced) for n in counts]
    backward = [n * (compute.backward + reduced) for n in counts]
    for stage, extra in ((0, compute.first), (stages - 1, compute.last)):
        forward[stage] += extra
        backward[stage] += 2 * extra
    m, p = plan.micro_batches, plan.pp
    schedule = interleaved(p, m, plan.v) if plan.v > 1 else one_f_one_b(p, m)
    return simulate(schedule, {"F": forward, "B": backward}, alpha + n_bytes * beta).makespan
