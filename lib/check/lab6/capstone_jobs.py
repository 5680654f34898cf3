"""The capstone's four jobs, the plans that it asks about, what the cost model predicts for them,
and three published runs."""

import functools
from dataclasses import replace
from typing import NamedTuple

from lib.cost import memory as of_memory
from lib.cost import search
from lib.cost import step as of_step
from lib.cost.by_hand import COSTS
from lib.cost.hardware import GPU, gpu
from lib.cost.plan import Plan
from lib.cost.published import table
from lib.cost.shapes import Model, known, load
from lib.cost.stacks import Stack, stacks

GPUS, BATCH = 256, 512
# Each was fitted on published runs of its kind: dense models, and Qwen3-235B on H100 and GB200.
STACK, EXPERT_STACK = stacks()[search.DEFAULT_STACK], stacks()["moe-zoo"]


class Job(NamedTuple):
    """What is to be trained, in bf16 with ZeRO-1. JOBS use 256 GPUs and 512 sequences per step."""

    model: Model
    gpu: GPU
    # the share of its peak that a GPU reaches while it computes, not counting communication and
    # waiting; fitted to the cost model over CASES
    reached: float
    stack: Stack  # of the cost model


_DENSE, _MIXTURE = load("gpt-3-175b"), known()["qwen3-235b-a22b"]
_H100, _GB200 = gpu("H100-80GB"), gpu("GB200")
JOBS = {
    "dense, H100": Job(_DENSE, _H100, 0.59, STACK),
    "dense, GB200": Job(_DENSE, _GB200, 0.41, STACK),
    "mixture, H100": Job(_MIXTURE, _H100, 0.4, EXPERT_STACK),
    "mixture, GB200": Job(_MIXTURE, _GB200, 0.34, EXPERT_STACK),
}


def _asked_for(job, b, tp, pp, dp, v=1, ep=1, recompute="none"):
    choices = {"zero": 1, "recompute": recompute, "sequence_parallel": tp > 1}
    return job, Plan(BATCH, b, tp, pp, dp, ep=ep, v=v, **choices)


CASES = (
    _asked_for("dense, H100", 2, 8, 4, 8), _asked_for("dense, H100", 1, 4, 8, 8, 6),
    _asked_for("dense, H100", 1, 8, 16, 2, 2), _asked_for("dense, H100", 4, 8, 16, 2),
    _asked_for("dense, H100", 8, 8, 16, 2),
    _asked_for("dense, H100", 2, 8, 4, 8, 12, recompute="full"),
    _asked_for("dense, H100", 32, 8, 16, 2, recompute="full"),
    _asked_for("dense, GB200", 8, 8, 2, 16, 16),
    _asked_for("dense, GB200", 4, 4, 8, 8, 3), _asked_for("dense, GB200", 8, 8, 8, 4),
    _asked_for("mixture, H100", 2, 1, 4, 64, 12, 16, "full"),
    _asked_for("mixture, H100", 16, 8, 4, 8, 12, 32, "full"),
    _asked_for("mixture, H100", 4, 4, 2, 32, 1, 64, "full"),
    _asked_for("mixture, H100", 16, 8, 8, 4, 3, 16, "full"),
    _asked_for("mixture, H100", 8, 4, 4, 16, 6, 32),
    _asked_for("mixture, GB200", 2, 1, 4, 64, 12, 32),
    _asked_for("mixture, GB200", 16, 8, 1, 32, 1, 64),
    _asked_for("mixture, GB200", 8, 4, 4, 16, 6, 16),
    _asked_for("mixture, GB200", 8, 4, 8, 8, 6, 32, "full"),
)  # fmt: skip


def _published(what, source, row, metric):
    """The value in one row of a table of published runs."""
    asked = source, row, metric
    (found,) = (
        each for each in table(what) if (each["source"], each["row"], each["metric"]) == asked
    )
    return found["value"]


_LONG = replace(_MIXTURE, seq=4096)
_TOKENS_PER_S = "qwen3-235b-a22b-GB200-256-BF16-gbs8192", "tokens_per_s_per_gpu"
# published runs as {name: Job}; below, their plans and how many seconds a step took
RUNS = {
    "dense, H100, published": JOBS["dense, H100"],
    "mixture, H100, published": JOBS["mixture, H100"]._replace(model=_LONG),
    "mixture, GB200, published": JOBS["mixture, GB200"]._replace(model=_LONG),
}
_PLANS = (
    Plan(1024, 1, tp=4, pp=8, dp=16, v=12, zero=1, sequence_parallel=True),
    Plan(2048, 1, tp=2, pp=8, dp=16, ep=32, v=4, zero=1, sequence_parallel=True),
    Plan(8192, 1, tp=1, pp=8, dp=32, ep=32, v=3, zero=1),
)
_SECONDS = (
    _published("unseen_stacks", "nemo-24.12-dgxc", "gpt3-175b-bf16-512", "step_time"),
    _published("rows", "moezoo-h100-bf16", "deepep-ep32-pp8", "step_time"),
    8192 * 4096 / 256 / _published("rows", "mbridge-25.11", *_TOKENS_PER_S),
)
MEASURED = dict(zip(zip(RUNS, _PLANS, strict=True), _SECONDS, strict=True))  # (job, plan): seconds


def words(job, plan):
    return f"{job}: {plan}, m {plan.micro_batches}"


@functools.cache
def truth(job, plan):
    """(bytes, seconds) by the cost model."""
    model, device, _, stack = JOBS[job]
    seconds = of_step.step_seconds(model, plan, device, stack)
    return of_memory.peak_bytes(model, plan, stack), sum(seconds.values())


# the cost model's other components count as computing
PART = {"tensor": "tensor messages", "expert": "expert messages", "sharding": "data messages"}
PART |= dict.fromkeys(("bubble", "message"), "pipeline bubble")


@functools.cache
def costs(job, plan):
    """{cost: share of the step} by the cost model."""
    model, device, _, stack = JOBS[job]
    seconds, shares = of_step.step_seconds(model, plan, device, stack), dict.fromkeys(COSTS, 0.0)
    for component, each in seconds.items():
        shares[PART.get(component, "computing")] += each / sum(seconds.values())
    return shares
