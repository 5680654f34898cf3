"""The explorer of Lab 6: the memory and the step time of a plan for training a model on a cluster,
next to the best plan.

The student's plan has dp = gpus / (tp pp), one stage per rank, and sequence parallelism where tp is
above 1. Its costs are computed by lib.cost, with the software stack that `python -m lib.cost plan`
assumes. The best plan is the fastest one that lib.cost.search finds, and it may also interleave
stages. The search takes the most time, so its result is kept for each model, GPU, number of GPUs
and batch.
"""

import functools

from lib import plots
from lib.cost.hardware import GIB, gpu
from lib.cost.memory import FITS, memory
from lib.cost.plan import Plan
from lib.cost.search import DEFAULT_STACK, search
from lib.cost.shapes import known
from lib.cost.stacks import stacks
from lib.cost.step import split, step_seconds
from lib.explore.show import explore
from lib.plots.components import name_of

MODELS = ["llama2-13b", "llama3-70b", "gpt-3-175b", "gpt-1t"]
GPUS = ["A100-80GB", "H100-80GB", "B200"]
TP, PP = [1, 2, 4, 8, 16], [1, 2, 3, 4, 6, 8, 12, 16, 32, 64]


def plans():
    """Memory and step time of a plan of your choice, next to the best plan for the same job."""
    explore(
        draw_plans,
        model=MODELS,
        gpu_kind=GPUS,
        gpus=[8, 64, 512, 1024],
        batch=[64, 512, 1536, 3072],
        tp=TP,
        pp=PP,
        micro_batch=[1, 2, 4, 8],
        zero=[0, 1, 2, 3],
        # not "selective": the stack's attention is fused, so there are no scores to recompute
        recompute=["none", "full"],
    )


def draw_plans(
    model="gpt-3-175b",
    gpu_kind="A100-80GB",
    gpus=1024,
    batch=1536,
    tp=8,
    pp=8,
    micro_batch=1,
    zero=1,
    recompute="none",
):
    """The figure of `plans`. batch: sequences of 2,048 tokens in a step. If there is no such plan,
    the figure shows the reason instead."""
    shape, device, stack = known()[model], gpu(gpu_kind), stacks()[DEFAULT_STACK]
    job = f"{model} on {gpus:,} {gpu_kind}, {batch:,} sequences of {shape.seq:,} tokens."
    if gpus % (tp * pp):
        return plots.told("No such plan",
            f"{job} {gpus:,} GPUs are no multiple of tp {tp} x pp {pp} = {tp * pp}: make "
                          "tp or pp smaller.")  # fmt: skip
    plan = Plan(
        batch,
        micro_batch,
        tp,
        pp,
        gpus // (tp * pp),
        zero=zero,
        recompute=recompute,
        sequence_parallel=tp > 1,
    )
    if why := plan.problem(shape) or _empty(shape, plan):
        return plots.told("No such plan", f"{job} {name_of(plan)}: {why}.")
    best = best_plan(model, gpu_kind, gpus, batch)
    drawn = {"yours": plan} | ({"the best": best} if best else {})
    costs = {
        name: (memory(shape, p, stack), step_seconds(shape, p, device, stack))
        for name, p in drawn.items()
    }
    needs, takes = (sum(parts.values()) for parts in costs["yours"])
    room = FITS * device.memory
    beside = f"the best, {name_of(best)}" if best else "no plan fits"
    return plots.plan_cost(costs, device.memory, room, title=_title(needs, takes, room, costs),
                           note=f"{job} Yours: {name_of(plan)}; {beside}.")  # fmt: skip


@functools.cache
def best_plan(model, gpu_kind, gpus, batch):
    """The fastest Plan that fits into memory, found by the search; None if none fits."""
    found = search(known()[model], gpu(gpu_kind), gpus, batch)
    return found[0].plan if found else None


def _empty(shape, plan):
    """The reason why this plan has a stage without a layer; None if each stage has one."""
    if min(split(shape.layers, plan.pp)) > 0:
        return None
    fitting = [pp for pp in PP if pp <= shape.layers and min(split(shape.layers, pp)) > 0]
    return (
        f"{shape.layers} layers leave one of {plan.pp} stages without any: use pp "
        f"{', '.join(map(str, fitting))}"
    )


def _title(needs, takes, room, costs):
    if needs > room:
        return f"Does not fit: {needs / GIB:.0f} GiB on the fullest GPU, {room / GIB:.0f} to use"
    # your plan may fit although the search found none, because the search does not try all plans
    best = sum(costs["the best"][1].values()) if "the best" in costs else takes
    if takes <= best:
        return f"Fits, and takes {takes:.3g} s a step: no plan of the search is faster"
    return (
        f"Fits, and takes {takes:.3g} s a step: {takes / best:.2f} times the best plan's "
        f"{best:.3g} s"
    )
