"""Every plan for a model on a cluster, and those that fit in memory, fastest first.

    degrees      tp: powers of two up to 8 that divide the heads, within a node
                 pp: any number of stages that leaves each at least one layer, divided as evenly as
                     possible (lib.cost.step.split)
                 v: any divisor of a stage's layers, if all stages have equally many and m allows it
                 cp: 1, or for 16,384 tokens and more also 2 to 16
                 ep: powers of two up to 64 that divide the experts
                 dp: the remaining GPUs
    micro-batch  1, 2, 4, ... 32
    ZeRO         0 to 3, or only 0 on a single data rank
    recompute    none, selective if the stack keeps scores, full

A plan fits if its fullest GPU stays below 83 % of the memory (memory.FITS). A plan that spends time
to save memory that is not needed is included as well: its position in the list shows what it loses.

The layer's times do not depend on pp, dp or ZeRO, so they are computed once for each of the other
choices. They do not depend on v either, unless the stack hides the experts' all-to-all
(`Stack.expert_overlap`), which the planner's stack does not; the search ignores that case.
"""

import itertools
from typing import NamedTuple

from lib.cost.layer import layer
from lib.cost.memory import FITS, peak_bytes
from lib.cost.parameters import parameters
from lib.cost.plan import Plan, slots
from lib.cost.stacks import DEFAULT_STACK, stacks
from lib.cost.step import split, step_seconds

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


class Choice(NamedTuple):
    """A plan and what it costs."""

    plan: Plan
    seconds: float  # of a step
    memory: float  # bytes on the fullest GPU


def divisors(n):
    """The divisors of n, from 1 to n."""
    return [d for d in range(1, n + 1) if n % d == 0]


def powers(most):
    """1, 2, 4, ... up to `most`."""
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def depths(layers, gpus):
    """Values of pp that divide `gpus` and leave at least one layer on every stage. If pp does not
    divide the layers, embedding and head count as a layer each, as in published runs: 126 layers on
    16 stages are 7, 8, ... 8, 7.
    """
    return [pp for pp in divisors(gpus) if pp <= layers and min(split(layers, pp)) > 0]


def chunks(layers, pp, m):
    """Values of v, the stages on each of pp ranks. There may be more than one if all stages are
    equal and pp divides the m micro-batches. If pp does not divide the layers, embedding and head
    count as layers here.
    """
    shared = slots(layers, pp)
    if pp == 1 or shared % pp or m % pp:
        return [1]
    return [v for v in divisors(shared // pp) if pp * v <= layers]


def plans(model, gpu, gpus, batch, stack, precision="bf16"):
    """Yield every Plan of the space above for `model` on `gpus` GPUs with `batch`
    sequences a step."""
    recomputes = ("none", "full") if stack.flash else ("none", "selective", "full")
    contexts = [1, 2, 4, 8, 16] if model.seq >= 16384 else [1]
    experts = [ep for ep in powers(64) if model.experts and model.experts % ep == 0] or [1]
    for tp in powers(min(8, gpu.per_node)):
        if model.heads % tp:
            continue
        for cp in contexts:
            if gpus % (tp * cp):
                continue
            for pp in depths(model.layers, gpus // (tp * cp)):
                dp = gpus // (tp * cp * pp)
                for b in MICRO_BATCHES:
                    if batch % (dp * b):
                        continue
                    rest = itertools.product(
                        [ep for ep in experts if (dp * cp * tp) % ep == 0],
                        chunks(model.layers, pp, batch // (dp * b)),
                        (0, 1, 2, 3) if dp * cp > 1 else (0,),
                        recomputes,
                    )
                    for ep, v, zero, recompute in rest:
                        degrees = batch, b, tp, pp, dp, cp, ep, v
                        yield Plan(*degrees, zero, recompute, tp > 1, precision)


def search(model, gpu, gpus, batch, stack=None, precision="bf16", k=None, fixed=None):
    """[Choice] of every plan that fits, fastest first; empty if none does.

    model: a Model; gpu: a GPU; gpus: how many; batch: sequences per step; stack: a Stack, by
    default Megatron-Core's; precision: of matmuls, "bf16", "fp8" or "fp4"; k: Parameters; fixed:
    {field of Plan: value} that all plans must have.
    """
    stack, k = stack or stacks()[DEFAULT_STACK], k or parameters()
    room = FITS * gpu.memory
    layers, found = {}, []
    for plan in plans(model, gpu, gpus, batch, stack, precision):
        if any(getattr(plan, key) != value for key, value in (fixed or {}).items()):
            continue
        if least_bytes(model, plan, stack) > room:
            continue
        memory = peak_bytes(model, plan, stack)
        if memory > room:
            continue
        same = plan.tp, plan.cp, plan.ep, plan.micro_batch, plan.recompute
        if same not in layers:
            layers[same] = layer(model, plan, gpu._replace(nic=stack.nic or gpu.nic), stack, k)
        seconds = sum(step_seconds(model, plan, gpu, stack, k, layers[same]).values())
        found.append(Choice(plan, seconds, memory))
    return sorted(found, key=lambda choice: (choice.seconds, choice.plan.zero, choice.memory))


def least_bytes(model, plan, stack):
    """A lower bound on a plan's memory that is quick to compute: its share of the weights
    alone."""
    ranks = plan.tp * plan.pp * plan.ep * (plan.dp * plan.cp if plan.zero == 3 else 1)
    return stack.state[0] * model.parameters / ranks


def smallest(model, gpu, gpus, batch, stack=None, precision="bf16"):
    """The Choice that needs the least memory, whether it fits or not; None if no plan divides the
    batch.

    Its micro-batch is 1, it recomputes everything and it does not interleave, because this needs
    the least memory whatever else is chosen. Its seconds are not computed, and are 0.
    """
    stack = stack or stacks()[DEFAULT_STACK]
    everything = plans(model, gpu, gpus, batch, stack, precision)
    space = (
        plan for plan in everything if plan.micro_batch == plan.v == 1 and plan.recompute == "full"
    )
    return min(
        (Choice(p, 0.0, peak_bytes(model, p, stack)) for p in space),
        key=lambda c: c.memory,
        default=None,
    )
