"""A plan's memory, bubble and messages, by formulas that fit on a page. A planner needs these
first.

    P = (12 h^2 L/p + V h) / t  parameters of the first stage on one GPU: layers and embedding

    memory    state        P (2 + 2 + 12)  ZeRO-1 divides the 12 by d
              activations  34 s b h / t    per layer of L/p, per micro-batch of min(m, p) in flight
    bubble    (p-1) / (v m + p - 1)
    messages  tp           m L/p x 4 all-reduces of 2 s b h bytes  a layer: 2 forward, 2 backward
              pp           m v x 2 messages of 2 s b h / t         in a middle stage: to both sides
              dp           an all-reduce of 2 P                    the first stage's gradients, once
              an all-reduce over N ranks costs each of them 2 (N-1)/N of its bytes

L layers of width h, V vocabulary, s tokens in a sequence, b sequences in a micro-batch, m
micro-batches per pipeline; p = pp, t = tp, d = dp, v stages per rank. Weights, gradients and
activations have 16 bits. Sequence parallelism is used, and the attention scores are recomputed.

`estimate` and `main_costs` add gradients of 4 bytes, interleaved stages, full recomputation and
mixtures of experts, and they also estimate seconds and MFU. In a mixture, each token is sent to
each of its k experts inside an NVLink domain, but only once to any other domain, however many of
its ranks need it. The rest of lib/cost counts what is left out here: the last stage's logits,
temporary memory, launches, context parallelism and other precisions.

Sources: Narayanan et al. 2021 for the layout, section 2.2 for the bubble; Korthikanti et al. 2022,
equation 4 for 34; DeepSeek-V3 (2024), section 3.2.2, for tokens sent between domains.
"""

COSTS = ("computing", "tensor messages", "expert messages", "pipeline bubble", "data messages")


# exercise: lab6.plan_memory
def plan_memory(model, plan):
    """Bytes of model state and activations on a GPU of the first stage, which is the fullest.

    model: has .layers, .hidden, .vocab and .seq; plan: a `lib.cost.plan.Plan` of ZeRO stage 0 or 1.
    """
    P = _first_stage(model, plan)
    state = P * (2 + 2 + 12 / (plan.dp if plan.zero == 1 else 1))
    kept = 34 * model.seq * plan.micro_batch * model.hidden / plan.tp
    return state + kept * model.layers / plan.pp * min(plan.micro_batches, plan.pp)


# exercise: lab6.plan_bubble
def plan_bubble(plan):
    """The share of a step, from 0 to 1, in which a GPU waits for other stages of its pipeline."""
    return (plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp - 1)


# exercise: lab6.plan_messages
def plan_messages(model, plan):
    """{"tp", "pp", "dp"}: bytes that a GPU sends along each axis in a step, with ring algorithms.

    "tp" and "pp" are those of a stage in the middle, which sends to both sides, and "dp" is that of
    the first stage, which has the most gradients.
    """
    # bytes of one micro-batch's activations between two layers
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

    model: a `lib.cost.shapes.Model`; plan: a Plan of ZeRO stage 1 with cp = 1, and with no or full
    recomputation; gpu: a `lib.cost.hardware.GPU`. reached: the share of its peak that a GPU reaches
    on average while it computes, without communication and waiting. For plans that are worth
    running, the memory is within 15 % of the cost model's, and the seconds are within 20 %.
    """
    h, k, full = model.hidden, model.topk, plan.recompute == "full"
    in_experts = model.experts * model.expert_parameters * model.layers
    # those on one GPU
    weights = ((model.parameters - in_experts) / plan.tp + in_experts / plan.ep) / plan.pp
    state = (2 + 4) * weights + 12 * model.parameters / plan.gpus

    # of one micro-batch; on one GPU
    tokens, layers = plan.micro_batch * model.seq / plan.tp, model.layers / plan.pp
    # bytes that a layer keeps for each token
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
    """The two of COSTS that take most of a step, in any order. The arguments are those of
    `estimate`.

    Messages along dp are mostly hidden behind computation, so their cost counts as 0 here.
    """
    parts = _parts(model, plan, gpu, reached)
    return tuple(sorted(parts, key=parts.get)[-2:])


def _operations(model, plan):
    """The operations of a step, without recomputation."""
    return 6 * model.active_parameters * plan.global_batch * model.seq


def _parts(model, plan, gpu, reached):
    """{cost: seconds of a step} for all of COSTS except data messages."""
    h, full = model.hidden, plan.recompute == "full"
    computing = _operations(model, plan) * (4 / 3 if full else 1) / (plan.gpus * gpu.bf16 * reached)
    # the tokens of a step on one GPU, times the layers that they pass through there
    passed = plan.micro_batches * plan.micro_batch * model.seq / plan.tp * model.layers / plan.pp
    # to the experts and back, in both passes
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
