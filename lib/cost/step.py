"""Seconds of one training step, by component.

    S_i       seconds of stage i for one micro-batch: its layers forward, recomputed and backward
              (an MoE model may also have dense layers), on the last stage the matmul with the
              vocabulary, and the wait for messages
    pipeline  m max(S)  +  (sum of the other stages' S - w W) / v
              the second term is the bubble, in which the pipeline is filled and drained, with v
              stages on each rank; zero-bubble schedules shorten it by computing W, the weights'
              gradients, meanwhile: w = 2 (ZB-1p, ZB-H1), 3 (ZB-V)
    sharding  gradients and weights between data ranks, less what is hidden (sharding.py)
    offload   activations to the host and back, if they do not fit; none of it is hidden
    optimizer 40 bytes read or written for each parameter that the rank updates
    step      (pipeline + sharding + optimizer) x factor of the stack x (1 + straggler log2(nodes))

The factor is what a stack's software adds to everything except the vocabulary's matmul and loss,
because that matmul is a single library call in every stack.

The closed form of the pipeline agrees with the clock of lib.pipeline.simulate for 1F1B with equal
stages, and within 2 % for unequal ones (tests/cost/test_step.py). The clock itself is too slow for
a search over thousands of plans. ZB-2p fills everything except the waits for messages. Source of w:
Qi et al. 2024, sections 2.3 and 6 (bubbles.py has the exact rates).
"""

from math import log2

from lib.cost import network
from lib.cost.kept import kept_bytes
from lib.cost.layer import Times, layer
from lib.cost.matmul import products
from lib.cost.parameters import parameters
from lib.cost.parts import expert_ranks
from lib.cost.plan import slots
from lib.cost.sharding import exposed, per_rank

# Weight, momentum and variance, read and written in fp32, take 24; an fp32 gradient that is read
# twice 8; and the 16-bit weight that is written 2. These make 34, and the model charges 40.
OPTIMIZER_BYTES = 40
LOGIT_BYTES = 24  # of the loss, forward and backward: logits, their fp32 copy, softmax, gradient
FILLED = {"1f1b": 0, "zb-1p": 2, "zb-v": 3, "zb-2p": 9}  # w; 9 W are longer than the bubble


def split(layers, stages):
    """[layers on each stage]. If `stages` does not divide the layers, the embedding and the
    vocabulary's matmul count as a layer each, and the first stages may have one more than the
    others.
    """
    if layers % stages == 0:
        return [layers // stages] * stages
    each, more = divmod(slots(layers, stages), stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def step_seconds(model, plan, gpu, stack, k=None, one=None):
    """{component: seconds} of one step; their sum is the step.

    gpu: a GPU; stack: a Stack; k: Parameters, by default those of data/parameters.csv; one: the
    result of `lib.cost.layer.layer`, if it has been computed already.
    """
    k = k or parameters()
    gpu = gpu._replace(nic=stack.nic) if stack.nic else gpu
    m, p, tp = plan.micro_batches, plan.pp, plan.tp
    memory = k.hbm * gpu.hbm
    one = one or layer(model, plan, gpu, stack, k)
    factor = k.factors.get(stack.name, 1.0)
    # each of several micro-batches adds its gradients to the sum, which is read and written, unless
    # the matmul has already done it
    adding = lambda held: (
        2 * stack.gradient_bytes * held / memory if m > 1 and not stack.fused_sum else 0.0
    )
    dense, expert = per_rank(model, plan)
    each, counts = one.whole + Times(elementwise=adding(dense + expert)), split(model.layers, p)
    first, plain, plain_dense = [0] * p, Times(), 0.0
    if model.plain:  # the first, dense layers of an MoE model
        first, (plain_dense, _) = model.plain_on(counts), per_rank(model.plain, plan)
        plain = layer(model.plain, plan, gpu, stack, k).whole + Times(
            elementwise=adding(plain_dense)
        )
    fullest = max(n - f for n, f in zip(counts, first, strict=True))
    last = vocabulary(model, plan, gpu, stack, k).times(1 / factor)  # the factor is not for it
    wait = k.exposed * message(model, plan, gpu, stack, k)
    # one from each side, except at the ends
    waits = [(2 * plan.v - (i in (0, p - 1))) * wait for i in range(p)]

    stages = [(n - f) * each.total + f * plain.total for n, f in zip(counts, first, strict=True)]
    stages[-1] += last.total
    slow = max(range(p), key=lambda i: stages[i] + waits[i])
    busy = (
        each.times(counts[slow] - first[slow])
        + plain.times(first[slow])
        + (last if slow == p - 1 else Times())
    )
    seconds = {name: m * value for name, value in zip(Times._fields, busy, strict=True)}
    seconds["message"] = m * waits[slow]
    # (sum of S - max S - w W) / v
    # gradients of weights, because the other half is that of the inputs
    gradients = one.backward.matmul / 2 * (model.layers - counts[slow])
    idle = max(0.0, sum(stages) - stages[slow] - FILLED[plan.schedule] * gradients)
    seconds["bubble"] = idle / plan.v + 2 * (p - 1) * wait
    seconds["sharding"] = exposed(model, plan, gpu, stack, k, one, fullest)
    ranks = (plan.dp * plan.cp, expert_ranks(plan)) if plan.zero else (1, 1)
    held = fullest * dense + (max(counts) - fullest) * plain_dense + model.embedding_parameters / tp
    seconds["optimizer"] = (
        OPTIMIZER_BYTES * (held / ranks[0] + fullest * expert / ranks[1]) / memory
    )

    if plan.offload:
        away = (
            plan.offload
            * kept_bytes(model, plan, stack)
            * plan.micro_batch
            * model.seq
            / plan.cp
            * counts[slow]
        )
        seconds["offload"] = 2 * m * away / gpu.host
    slower = factor * (1 + k.straggler * log2(max(1, plan.gpus / gpu.per_node)))
    return {name: slower * value for name, value in seconds.items()}


def vocabulary(model, plan, gpu, stack, k):
    """Times of the last matmul, which is never in fp8, and of the loss: forward and backward for
    one micro-batch."""
    tokens = plan.micro_batch * model.seq / plan.cp
    forward, backward = products(
        [(model.hidden, model.vocab)], tokens, plan.tp, gpu, "bf16", k, stack.written
    )
    loss = LOGIT_BYTES * tokens * model.vocab / plan.tp / (k.hbm * gpu.hbm)
    return Times(matmul=forward + backward, elementwise=loss)


def message(model, plan, gpu, stack, k):
    """Seconds that a micro-batch's activations, or their gradients, take to the next stage: those
    of the slowest message.

    If a pipeline has several stages in each node, some of them have a neighbour on another node,
    and all others wait for those.
    """
    if plan.pp == 1:
        return 0.0
    size, away = (
        2 * plan.micro_batch * model.seq / plan.cp * model.hidden,
        plan.tp * plan.cp * plan.dp,
    )
    if plan.pp * away > gpu.per_node:  # the pipeline leaves its node
        away = max(away, gpu.per_node)
    if plan.sequence_parallel:
        return network.send(gpu, away, size / plan.tp, k.network)
    if stack.scatter_gather:  # each tensor rank sends a part; the next stage gathers them
        return network.send(gpu, away, size / plan.tp, k.network) + network.one_pass(
            gpu, plan.tp, 1, size, k.network
        )
    return network.send(gpu, away, size, k.network)
