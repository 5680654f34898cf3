"""The fastest plan that fits, found by trying them all: a planner in one loop.

    tp    a divisor of the heads, and of the GPUs of a node      not across nodes: it sends the most
    pp    a divisor of the layers
    dp    the GPUs that are left: gpus / (tp pp), if that is a whole number
    b     a divisor of the sequences on one data rank

The memory and the seconds of a plan come from two functions, so any cost model can be used:
by_hand.py, or the one with which `python -m lib.cost plan` searches a larger space (search.py).
"""

from lib.cost.plan import Plan
from lib.cost.search import divisors


# exercise: lab6.choose_plan
def choose_plan(model, gpu, gpus, batch, memory, seconds):
    """The fastest Plan that fits, with ZeRO stage 1, and with sequence parallelism if tp > 1.

    model: has .layers and .heads; gpu: has .memory, in bytes, and .per_node, the number of GPUs
    that share a node; gpus: how many there are; batch: sequences per step. memory(plan): bytes on
    the plan's fullest GPU, which must not exceed gpu.memory; seconds(plan): of a step. Of equally
    fast plans, the one that needs the least memory is returned. Raises ValueError if none fits.
    """
    found = []
    for tp in divisors(model.heads):
        for pp in divisors(model.layers):
            if gpu.per_node % tp or gpus % (tp * pp):
                continue
            dp = gpus // (tp * pp)
            for b in divisors(batch // dp) if batch % dp == 0 else []:
                plan = Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1)
                needs = memory(plan)
                if needs <= gpu.memory:
                    found.append((seconds(plan), needs, plan))
    if not found:
        raise ValueError(
            f"no plan for {batch} sequences on {gpus} GPUs fits into {gpu.memory:.3g} bytes: use "
            f"more GPUs"
        )
    return min(found, key=lambda each: each[:2])[2]
