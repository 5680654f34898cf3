"""Seconds of one training step, by component.

    S_i       what stage i computes for one micro-batch: its layers forward, again and backward;
              the last stage also multiplies with the vocabulary; and the wait for messages
    pipeline  m max(S)  +  (sum of the other stages' S) / v        filling and draining, v stages on each rank
    sharding  gradients and weights between data ranks, less what is hidden (sharding.py)
    optimizer 40 bytes read or written for each parameter that the rank updates
    step      (pipeline + sharding + optimizer)  x  factor of the stack  x  (1 + straggler log2(nodes))

The closed form of the pipeline is what lib.pipeline.simulate's clock gives for 1F1B with equal stages, and within 2 %
for unequal ones (tests/cost/test_step.py); the clock is too slow for a search over thousands of plans. Zero-bubble
schedules leave less idle: ZB-H1 (ZB-1p) a third, ZB-2p and ZB-V none (bubbles.py has their exact rates).
"""

from math import log2

from lib.cost import network
from lib.cost.layer import Times, layer
from lib.cost.matmul import products
from lib.cost.parameters import parameters
from lib.cost.sharding import expert_ranks, exposed, per_rank

OPTIMIZER_BYTES = 40  # weight, momentum, variance: read and written in fp32; gradient read twice; 16-bit weight written
LOGIT_BYTES = 24  # of the loss, forward and backward: logits, their fp32 copy, softmax, gradient
IDLE = {"zb-1p": 1 / 3, "zb-2p": 0.0, "zb-v": 0.0}  # share of 1F1B's idle time that is left


def split(layers, stages):
    """Layers on each stage. Where `stages` does not divide them, embedding and vocabulary count as a layer each."""
    if layers % stages == 0:
        return [layers // stages] * stages
    each, more = divmod(layers + 2, stages)
    counts = [each + (stage >= stages - more) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def step_seconds(model, plan, gpu, stack, k=None, one=None):
    """{component: seconds}; their sum is the step.

    gpu: a GPU; stack: a Stack; k: Parameters, those of data/parameters.csv if not given; one: the Layer times, where
    they are known already.
    """
    k = k or parameters()
    gpu = gpu._replace(nic=stack.nic) if stack.nic else gpu
    m, p, tp = plan.micro_batches, plan.pp, plan.tp
    memory = k.hbm * gpu.hbm
    one = one or layer(model, plan, gpu, stack, k)
    dense, expert = per_rank(model, plan)
    # with several micro-batches each adds its gradients to the sum: read and write
    adding = 2 * stack.gradient_bytes * (dense + expert) / memory if m > 1 else 0.0
    each = one.whole + Times(elementwise=adding)
    counts = split(model.layers, p)
    last = vocabulary(model, plan, gpu, k)
    waits = k.exposed * messages(model, plan, gpu, stack, k)

    stages = [n * each.total for n in counts]
    stages[-1] += last.total
    slow = max(range(p), key=lambda i: stages[i])
    busy = each.times(counts[slow]) + (last if slow == p - 1 else Times())
    seconds = {name: m * value for name, value in zip(Times._fields, busy, strict=True)}
    seconds["message"] = m * waits
    # (sum of S - max S) / v
    seconds["bubble"] = (sum(stages) - stages[slow] + (p - 1) * waits) * IDLE.get(plan.schedule, 1 / plan.v)
    seconds["sharding"] = exposed(model, plan, gpu, stack, k, one, max(counts))
    ranks = (plan.dp * plan.cp, expert_ranks(plan)) if plan.zero else (1, 1)
    held = (max(counts) * dense + model.embedding_parameters / tp) / ranks[0] + max(counts) * expert / ranks[1]
    seconds["optimizer"] = OPTIMIZER_BYTES * held / memory

    factor = k.factors.get(stack.name, 1.0) * (1 + k.straggler * log2(max(1, plan.gpus / gpu.per_node)))
    return {name: factor * value for name, value in seconds.items()}


def vocabulary(model, plan, gpu, k):
    """Times of the last product and the loss, forward and backward, for one micro-batch. Never in fp8."""
    tokens = plan.micro_batch * model.seq / plan.cp
    forward, backward = products([(model.hidden, model.vocab)], tokens, plan.tp, gpu, "bf16", k)
    loss = LOGIT_BYTES * tokens * model.vocab / plan.tp / (k.hbm * gpu.hbm)
    return Times(matmul=forward + backward, elementwise=loss)


def messages(model, plan, gpu, stack, k):
    """Seconds that one micro-batch's activations and gradients travel between neighbouring stages, v times each."""
    if plan.pp == 1:
        return 0.0
    size = 2 * plan.micro_batch * model.seq / plan.cp * model.hidden
    if stack.scatter_gather or plan.sequence_parallel:
        size /= plan.tp
    return 2 * plan.v * network.send(gpu, plan.tp * plan.cp * plan.dp, size, k.network)
