"""What the capstone's cells print and draw: the jobs, and a student's estimates next to published
runs and next to the cost model."""

from dataclasses import replace

from lib.check.lab6.capstone_jobs import BATCH, GPUS, JOBS, MEASURED, RUNS, costs
from lib.cost.hardware import GIB
from lib.cost.memory import memory, peak_bytes
from lib.cost.plan import Plan
from lib.cost.published import table
from lib.cost.search import search
from lib.cost.step import step_seconds
from lib.measuring.predictions import show_prediction

# the plan of the dense model on H100 that students estimate before they write any code
ASKED = Plan(BATCH, 2, tp=8, pp=4, dp=8, v=12, zero=1, sequence_parallel=True)


def mfu_of(model, plan, gpu, seconds):
    """The MFU, from 0 to 1, of a step that takes this many seconds, without the FLOPs of attention
    scores."""
    tokens = plan.global_batch * model.seq
    return 6 * model.active_parameters * tokens / (plan.gpus * gpu.bf16 * seconds)


def print_jobs():
    """Print the four jobs, and the published runs with their MFU."""
    for job, (model, _, reached, _) in JOBS.items():
        in_experts = model.experts * model.expert_parameters * model.layers
        each = (n / 1e9 for n in (model.parameters, in_experts, model.active_parameters))
        told = "{:3.0f} billion parameters, {:3.0f} in experts, {:3.0f} active".format(*each)
        print(f"{job:<14} {told}; r = {reached}")
    for (job, plan), seconds in MEASURED.items():
        mfu = mfu_of(RUNS[job].model, plan, RUNS[job].gpu, seconds)
        print(f"{job}: {plan} on {plan.gpus} GPUs, {seconds:.1f} s, MFU {mfu:.0%}")


def print_published(estimate, plans):
    """Print estimates of the published runs, next to what was measured. Then print the bf16 runs of
    the mixture on 256 H100s to which the cost model was fitted, and the estimate for the mixture's
    plan on H100 in `plans`, {job: Plan}, with the batch of these runs."""
    for (job, plan), measured in MEASURED.items():
        model, device, reached, _ = RUNS[job]
        seconds = estimate(model, plan, device, reached)[1]
        print(f"{job}: your estimate {seconds:.1f} s, measured {measured:.1f} s")
    model, device, reached, _ = RUNS["mixture, H100, published"]
    plan = replace(plans["mixture, H100"], global_batch=2048)
    for run in table("rows"):
        what = run["source"], run["model"], run["gpu"], run["metric"]
        if what == ("moezoo-h100-bf16", model.name, device.name, "step_time"):
            mfu = mfu_of(model, plan, device, run["value"])
            print(f"  {run['row']:<30} {run['value']:5.1f} s, MFU {mfu:.0%}")
    _, seconds, mfu = estimate(model, plan, device, reached)
    print(f"  {'your plan, by your estimate':<30} {seconds:5.1f} s, MFU {mfu:.0%}: {plan}")


def print_plans(estimate, main_costs, plans):
    """Print each plan of `plans` by the student's functions and by the cost model, then the best
    plan that the cost model finds. Returns {job: the best Plan}."""
    best = {}
    for job, (model, device, reached, stack) in JOBS.items():
        plan, choice = plans[job], search(model, device, GPUS, BATCH, stack)[0]
        best[job] = choice.plan
        needed, seconds, mfu = estimate(model, plan, device, reached)
        largest = " and ".join(main_costs(model, plan, device, reached))
        print(f"{job}: {plan}")
        print(f"   you       {needed / GIB:3.0f} GiB, {seconds:.2f} s, MFU {mfu:.0%}: {largest}")
        needed, parts = peak_bytes(model, plan, stack), costs(job, plan)
        took = sum(step_seconds(model, plan, device, stack).values())
        mfu = mfu_of(model, plan, device, took)
        three = sorted(parts, key=parts.get, reverse=True)[:3]
        largest = ", ".join(f"{cost} {parts[cost]:.0%}" for cost in three)
        print(f"   the model {needed / GIB:3.0f} GiB, {took:.2f} s, MFU {mfu:.0%}: {largest}")
        more = took / choice.seconds - 1
        print(f"   the best, {choice.seconds:.2f} s (yours +{more:.0%}): {choice.plan}")
    return best


def costs_of(job, plan):
    """Return the components of memory use, in bytes, and of step time, in seconds, of a plan for a
    job in the cost model, as two dicts."""
    model, device, _, stack = JOBS[job]
    return memory(model, plan, stack), step_seconds(model, plan, device, stack)


def show_asked(gib, seconds, mfu):
    """Show a student's predictions for ASKED next to the cost model's memory, step time and MFU."""
    model, device, *_ = JOBS["dense, H100"]
    needed, took = (sum(parts.values()) for parts in costs_of("dense, H100", ASKED))
    show_prediction("tp 8, pp 4, dp 8 needs", gib, "GiB", model=needed / GIB)
    show_prediction("a step takes", seconds, "s", model=took)
    reached = 100 * mfu_of(model, ASKED, device, took)
    show_prediction("MFU", mfu, "%", 2, model=reached)
