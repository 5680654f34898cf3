"""The explorer of Lab 6: a plan for a model on a cluster, its memory and its step, and how far it
is from the best.

The plan has dp = gpus / (tp pp), one stage per rank, and sequence parallelism where tp > 1. The
costs are those of lib.cost with the stack of `python -m lib.cost plan`; the best plan is that of
its search, which may also interleave stages. A search is done once for a model, GPU, number of GPUs
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
    """Memory and time of a step of a plan of your choice, beside the best plan for that job."""
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
        # the stack's attention is fused: it keeps no scores to recompute
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
    """The figure of `plans`. batch: sequences of 2,048 tokens in a step. What cannot be laid out is
    told in words."""
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
    """The fastest Plan that fits, by the search; None if none does."""
    found = search(known()[model], gpu(gpu_kind), gpus, batch)
    return found[0].plan if found else None


def _empty(shape, plan):
    """Why a stage would have no layer; None if each has one."""
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
    # a plan outside of the search's space may fit where none of it does
    best = sum(costs["the best"][1].values()) if "the best" in costs else takes
    if takes <= best:
        return f"Fits, and takes {takes:.3g} s a step: no plan of the search is faster"
    return (
        f"Fits, and takes {takes:.3g} s a step: {takes / best:.2f} times the best plan's "
        f"{best:.3g} s"
    )
