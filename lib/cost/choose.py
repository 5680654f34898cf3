"""The fastest plan that fits, by trying them all: what a planner is, in one loop.

    tp    a divisor of the heads, and of the GPUs of a node      never across nodes: it sends most
    pp    a divisor of the layers
    dp    the GPUs that are left: gpus / (tp pp), if that is whole
    b     a divisor of the batch's rows on one data rank

What a plan needs and takes is asked of two functions, so any cost model will do: by_hand.py, or the
one that `python -m lib.cost plan` uses on a larger space (search.py).
"""

from lib.cost.plan import Plan
from lib.cost.search import divisors


# exercise: lab6.choose_plan
def choose_plan(model, gpu, gpus, batch, memory, seconds):
    """The Plan that takes least time of those that fit, of ZeRO stage 1, with sequence parallelism
    if tp > 1.

    model: .layers .heads; gpu: .memory, bytes, and .per_node, GPUs that share a node; gpus: how
    many; batch: sequences per step. memory(plan): bytes on its fullest GPU, which must not be more
    than gpu.memory; seconds(plan): of a step. Of equally fast plans: the one that needs least
    memory. Raises ValueError if none fits.
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
