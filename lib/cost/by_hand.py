"""A plan's memory, bubble and messages, by formulas that fit on a page: what a planner needs first.

    P = (12 h^2 L/p + V h) / t  parameters of the first stage on one GPU: layers and embedding

    memory    state        P (2 + 2 + 12)  ZeRO-1 divides the 12 by d
              activations  34 s b h / t    per layer of L/p, per micro-batch of min(m, p) in flight
    bubble    (p-1) / (v m + p - 1)
    messages  tp           m L/p x 4 all-reduces of 2 s b h bytes  two forward, two backward a layer
              pp           m v x 2 messages of 2 s b h / t         in a middle stage: on, and back
              dp           an all-reduce of 2 P                    the first stage's gradients, once
              an all-reduce over N ranks costs each of them 2 (N-1)/N of its bytes

L layers of width h, V vocabulary, s tokens in a sequence, b sequences in a micro-batch, m
micro-batches per pipeline; p = pp, t = tp, d = dp, v stages per rank. 16 bits for weights,
gradients, activations; sequence parallelism, and the attention scores recomputed.

`estimate` and `main_costs` go further: gradients of 4 bytes, interleaved stages, full
recomputation, mixtures of experts, and on to seconds and MFU, within some per cent. Of a mixture a
token's row goes to each of its k experts inside an NVLink domain; to every other domain it goes
once, whoever wants it there. The rest of lib/cost counts what is left out here: the last stage's
logits, memory that comes and goes, launches, context parallelism, other precisions.

Sources: Narayanan et al. 2021 for the layout, section 2.2 for the bubble; Korthikanti et al. 2022,
equation 4 for 34; DeepSeek-V3 (2024), section 3.2.2, for rows between domains.
"""

COSTS = ("computing", "tensor messages", "expert messages", "pipeline bubble", "data messages")


# exercise: lab6.plan_memory
def plan_memory(model, plan):
    """Bytes on a GPU of the first stage, the fullest: model state and activations.

    model: .layers .hidden .vocab .seq; plan: a `lib.cost.plan.Plan`, of ZeRO stage 0 or 1.
    """
    P = _first_stage(model, plan)
    state = P * (2 + 2 + 12 / (plan.dp if plan.zero == 1 else 1))
    kept = 34 * model.seq * plan.micro_batch * model.hidden / plan.tp
    return state + kept * model.layers / plan.pp * min(plan.micro_batches, plan.pp)


# exercise: lab6.plan_bubble
def plan_bubble(plan):
    """The part of a step in which a GPU waits for others of its pipeline, 0 to 1."""
    return (plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp - 1)


# exercise: lab6.plan_messages
def plan_messages(model, plan):
    """{"tp", "pp", "dp"}: bytes that a GPU sends along each axis in a step, as rings.

    Of a stage in the middle, which sends both ways; dp's of the first stage, which has most
    gradients.
    """
    # bytes of one micro-batch, between two layers
    activations = 2 * model.seq * plan.micro_batch * model.hidden
    m, layers = plan.micro_batches, model.layers / plan.pp
    return {
        "tp": m * layers * 4 * 2 * (plan.tp - 1) / plan.tp * activations,
        "pp": m * plan.v * 2 * activations / plan.tp if plan.pp > 1 else 0.0,
        "dp": 2 * (plan.dp - 1) / plan.dp * 2 * _first_stage(model, plan),
    }


# exercise: lab6.estimate
def estimate(model, plan, gpu, reached):
    """(bytes on a GPU, seconds of a step, MFU from 0 to 1) of a dense model or a mixture of
    experts, roughly.

    model: a `lib.cost.shapes.Model`; plan: a Plan of ZeRO stage 1 with cp = 1, no or full
    recomputation; gpu: a `lib.cost.hardware.GPU`. reached: the share of its peak that a GPU's work
    reaches on average, what is sent and waited for apart. Against the cost model: memory within 15
    %, seconds within 20 %, on plans that one would run.
    """
    h, k, full = model.hidden, model.topk, plan.recompute == "full"
    in_experts = model.experts * model.expert_parameters * model.layers
    # on a GPU
    weights = ((model.parameters - in_experts) / plan.tp + in_experts / plan.ep) / plan.pp
    state = (2 + 4) * weights + 12 * model.parameters / plan.gpus

    # of a micro-batch; on a GPU
    tokens, layers = plan.micro_batch * model.seq / plan.tp, model.layers / plan.pp
    # bytes that a layer keeps of a token
    layer = 15 * h + k * (4 * h + 6 * model.ffn) if k else 34 * h
    in_flight = min(plan.micro_batches, plan.pp) * (
        1 + (plan.pp - 1) / (plan.pp * plan.v) * (plan.v > 1)
    )
    kept = 2 * h * layers * in_flight + layer if full else layer * layers * in_flight

    seconds = sum(_parts(model, plan, gpu, reached).values())
    return (
        state + kept * tokens,
        seconds,
        _operations(model, plan) / (plan.gpus * gpu.bf16 * seconds),
    )


# exercise: lab6.main_costs
def main_costs(model, plan, gpu, reached):
    """The two of COSTS that take most of a step, in any order. The arguments: as of `estimate`.

    What is sent along dp hides behind computing, by and large: it counts as nothing here.
    """
    parts = _parts(model, plan, gpu, reached)
    return tuple(sorted(parts, key=parts.get)[-2:])


def _operations(model, plan):
    """Of a step, without what is computed twice."""
    return 6 * model.active_parameters * plan.global_batch * model.seq


def _parts(model, plan, gpu, reached):
    """{cost: seconds of a step}, all of COSTS but data messages."""
    h, full = model.hidden, plan.recompute == "full"
    computing = _operations(model, plan) * (4 / 3 if full else 1) / (plan.gpus * gpu.bf16 * reached)
    # tokens through layers, on a GPU
    passed = plan.micro_batches * plan.micro_batch * model.seq / plan.tp * model.layers / plan.pp
    # there and back, in both passes
    trips, domains = (6 if full else 4) * passed * 2 * h, max(1, plan.ep / gpu.per_node)
    inside = trips * model.topk * (plan.ep - 1) / plan.ep / gpu.link
    across = trips * (domains - 1) * (1 - (1 - 1 / domains) ** model.topk) / gpu.nic
    sums = passed * 4 * 2 * (plan.tp - 1) * 2 * h  # along tp
    busy = {
        "computing": computing,
        "expert messages": max(inside, across),
        "tensor messages": sums / gpu.link,
    }
    bubble = plan_bubble(plan)
    return busy | {"pipeline bubble": sum(busy.values()) * bubble / (1 - bubble)}


def _first_stage(model, plan):
    """P: parameters of the first stage on one GPU."""
    return (12 * model.hidden**2 * model.layers / plan.pp + model.vocab * model.hidden) / plan.tp
