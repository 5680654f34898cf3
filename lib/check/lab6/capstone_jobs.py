"""The capstone's four jobs, the plans that it asks about, and what the cost model says of them."""

import functools
from typing import NamedTuple

from lib.cost import memory as of_memory
from lib.cost import search
from lib.cost import step as of_step
from lib.cost.hardware import GPU, gpu
from lib.cost.plan import Plan
from lib.cost.shapes import Model, known, load
from lib.cost.stacks import stacks

GPUS, BATCH = 256, 512
STACK = stacks()[search.DEFAULT_STACK]


class Job(NamedTuple):
    """What is to be trained on 256 GPUs, 512 sequences in a step, in bf16 with ZeRO-1."""

    model: Model
    gpu: GPU
    # share of its peak that a GPU's work reaches, what is sent and waited for apart; as the cost
    # model
    reached: float


_DENSE, _MIXTURE, _H100, _GB200 = (
    load("gpt-3-175b"),
    known()["qwen3-235b-a22b"],
    gpu("H100-80GB"),
    gpu("GB200"),
)
JOBS = {
    "dense, H100": Job(_DENSE, _H100, 0.59),
    "dense, GB200": Job(_DENSE, _GB200, 0.41),
    "mixture, H100": Job(_MIXTURE, _H100, 0.37),
    "mixture, GB200": Job(_MIXTURE, _GB200, 0.22),
}


def _asked_for(job, b, tp, pp, dp, v=1, ep=1, recompute="none"):
    return job, Plan(
        BATCH, b, tp, pp, dp, ep=ep, v=v, zero=1, recompute=recompute, sequence_parallel=tp > 1
    )


CASES = (
    _asked_for("dense, H100", 2, 8, 4, 8), _asked_for("dense, H100", 1, 4, 8, 8, 6),
    _asked_for("dense, H100", 1, 8, 16, 2, 2), _asked_for("dense, H100", 4, 8, 16, 2),
    _asked_for("dense, H100", 8, 8, 16, 2), _asked_for("dense, H100", 2, 8, 4, 8, 12,
        recompute="full"),
    _asked_for("dense, H100", 32, 8, 16, 2, recompute="full"),
    _asked_for("dense, GB200", 8, 8, 2, 16, 16),
    _asked_for("dense, GB200", 4, 4, 8, 8, 3), _asked_for("dense, GB200", 8, 8, 8, 4),
    _asked_for("mixture, H100", 2, 1, 4, 64, 12, 16, "full"),
    _asked_for("mixture, H100", 16, 8, 4, 8, 12, 32, "full"),
    _asked_for("mixture, H100", 8, 4, 2, 32, 47, 16, "full"),
    _asked_for("mixture, H100", 16, 8, 8, 4, 3, 16, "full"),
    _asked_for("mixture, H100", 8, 4, 4, 16, 6, 32),
    _asked_for("mixture, GB200", 2, 1, 4, 64, 12, 32),
    _asked_for("mixture, GB200", 16, 8, 1, 32, 1, 64),
    _asked_for("mixture, GB200", 8, 4, 4, 16, 6, 16),
    _asked_for("mixture, GB200", 8, 4, 8, 8, 6, 32, "full"),
)  # fmt: skip
# Main costs are not asked of three, in which messages, by hand several times the cost model's
# seconds, would decide.
CLEAR = tuple(case for i, case in enumerate(CASES) if i not in (0, 13, 16))


def words(job, plan):
    return f"{job}: {plan}, m {plan.micro_batches}"


@functools.cache
def truth(job, plan):
    """(bytes, seconds) by the cost model."""
    model, device, _ = JOBS[job]
    return of_memory.peak_bytes(model, plan, STACK), sum(
        of_step.step_seconds(model, plan, device, STACK).values()
    )
