"""The OOM clinic: jobs that run out of memory under data parallelism, and the cheapest remedy.

    bytes per GPU over one step, the second micro-batch of several

                            ______ logits           remedy               costs
              activations  /      \\                 ZeRO stage 1, 2, 3   nothing, then messages
              ____________/        \\_____           a smaller            more gathers per token
             /                           \\          micro-batch
        ____/                             \\____     checkpointing        a third more compute
        model state: weights, gradients, Adam       offload              the link to the host
        forward                    backward

The jobs use mixed precision with Adam, 16 bytes per parameter. A layer keeps 34 bytes per token and
unit of hidden size (Korthikanti et al. 2022, equation 2, without the scores, which FlashAttention
does not keep); a checkpointed layer keeps its 16-bit input. The loss has the logits in 16 bits and
a copy in fp32. At stage 3 two units are unsharded at a time, together with the full gradients of
two units. Embedding and head are units of their own, as torchtitan wraps them, and are sharded like
layers, so no root unit stays unsharded. We assume that a unit has parameters / layers elements; if
the head is one of the two units, Llama 3 needs at most 1 GB more.

These estimates have one number for each effect, which is enough to choose a remedy.
`lib.cost.memory` is more detailed.
"""

from itertools import product
from typing import NamedTuple

from lib.cost.hardware import gpus
from lib.cost.search import search
from lib.cost.shapes import load

LAYER, INPUT, LOGITS = 34, 2, 6  # bytes per token, and per hidden unit or vocabulary entry
USABLE = 66e9  # bytes of a GPU of 80 GB; the rest is for the allocator and for libraries


class Job(NamedTuple):
    """A model, and the batch with which its training ran out of memory."""

    name: str
    parameters: float
    layers: int
    hidden: int
    vocab: int
    seq: int  # tokens per sequence
    micro_batch: int  # sequences per GPU at a time
    gpus: int


class Remedy(NamedTuple):
    """ZeRO stage 1, 2 or 3; whether all layers are checkpointed; whether masters, momentum and
    variance are in the host's memory; sequences per GPU at a time."""

    stage: int
    checkpointing: bool
    offload: bool
    micro_batch: int


# with one sequence at a time, for a figure
EXAMPLES = {
    "data parallelism": Remedy(0, False, False, 1),
    "ZeRO-1": Remedy(1, False, False, 1),
    "ZeRO-2": Remedy(2, False, False, 1),
    "ZeRO-3": Remedy(3, False, False, 1),
    "ZeRO-1 with checkpointing": Remedy(1, True, False, 1),
    "ZeRO-1 with offload": Remedy(1, False, True, 1),
}


def _llama(size, gpus, seq, micro_batch):
    name = f"Llama 3 {size} on {gpus} GPUs, {micro_batch} x {seq:,} tokens"
    sizes = {"8B": (8.03e9, 32, 4096), "70B": (70.6e9, 80, 8192)}
    return Job(name, *sizes[size], 128_256, seq, micro_batch, gpus)


PATIENTS = (
    _llama("8B", 64, 2048, 2),
    _llama("8B", 8, 8192, 1),
    _llama("8B", 64, 8192, 4),
    _llama("70B", 64, 8192, 2),
    _llama("70B", 8, 8192, 1),
)


# exercise: lab4.choose_remedy
def choose_remedy(job: Job, usable: float = USABLE) -> Remedy | None:
    """The cheapest Remedy with which the peak of `job` is at most `usable` bytes per GPU; None if
    no remedy is enough.

    A remedy without offload is cheaper than one with it; among equals, one without checkpointing
    is cheaper; then the one with the larger micro-batch, out of job.micro_batch, half of it, a
    quarter (rounded down) and so on to 1; then the one with the lower stage, out of 1, 2 and 3.
    """
    for offload, checkpointing in product((False, True), repeat=2):
        micro_batch = job.micro_batch
        while micro_batch >= 1:
            for stage in (1, 2, 3):
                remedy = Remedy(stage, checkpointing, offload, micro_batch)
                if peak_bytes(job, remedy) <= usable:
                    return remedy
            micro_batch //= 2
    return None


def peak_bytes(job: Job, remedy: Remedy) -> float:
    """Bytes on a GPU at the peak, which is when the loss is computed or, with checkpointing,
    perhaps when the last layer is recomputed."""
    tokens = remedy.micro_batch * job.seq
    layer, logits = LAYER * tokens * job.hidden, LOGITS * tokens * job.vocab
    if remedy.checkpointing:
        kept = job.layers * INPUT * tokens * job.hidden + max(layer, logits)
    else:
        kept = job.layers * layer + logits
    return sum(state_parts(job, remedy).values()) + kept


def state_parts(job, remedy):
    """{part: bytes} of the model state on a GPU, whatever the batch. A Remedy of stage 0 is plain
    data parallelism."""
    n, N = job.parameters, job.gpus
    sharded = [N if remedy.stage >= first else 1 for first in (3, 2, 1)]
    weights, gradients, optimizer = (
        n * each / by for each, by in zip((2, 2, 12), sharded, strict=True)
    )
    units = 2 * (2 + 2) * n / job.layers if remedy.stage == 3 else 0.0
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": 0.0 if remedy.offload else optimizer,
        "unsharded units": units,
    }


def planned(job: Job, **fixed: int) -> str:
    """A text that describes the fastest plan that the planner finds for the same model on as many
    H100 with 80 GB, with 256 sequences per step. fixed: settings that are required, such as tp=1.
    The planner may choose another micro-batch, and it does not offload the optimizer."""
    model = load("llama3-8b" if job.hidden == 4096 else "llama3-70b", seq=job.seq)
    found = search(model, gpus()["H100-80GB"], job.gpus, 256, fixed=fixed)
    if not found:
        return "nothing fits"
    plan, seconds, _ = found[0]
    return (
        f"stage {plan.zero}, recomputes {plan.recompute}, micro-batch {plan.micro_batch}, "
        f"tp {plan.tp}, pp {plan.pp}: {seconds:.1f} s"
    )


def memory_over_a_step(job, remedy):
    """[{part: bytes}, ...] after each of 2 layers + 1 moments of a step: every layer's forward, the
    loss, and every layer's backward."""
    tokens, state = remedy.micro_batch * job.seq, state_parts(job, remedy)
    layer, logits = LAYER * tokens * job.hidden, LOGITS * tokens * job.vocab
    each = INPUT * tokens * job.hidden if remedy.checkpointing else layer
    again = layer if remedy.checkpointing else 0.0
    forward = [state | {"activations": i * each, "logits": 0.0} for i in range(1, job.layers + 1)]
    loss = state | {"activations": job.layers * each, "logits": logits}
    backward = [
        state | {"activations": i * each + again, "logits": 0.0} for i in range(job.layers, 0, -1)
    ]
    return [*forward, loss, *backward]
