"""Bytes on the fullest GPU at the step's peak, by component, and what divides each of them.

    component    bytes                                              divided by
    weights      w of each parameter: 2, or 4                       the part's own (parts.py: tp,
                                                                    ep, pp); with ZeRO-3 also by the
                                                                    ranks with copies: dp cp,
                                                                    for experts dp cp tp / ep
    gradients    g: 2, or 4                                         likewise from ZeRO-2; with a
                                                                    pipeline, from ZeRO-3
    optimizer    o: 12 for copy, momentum, variance; 8 without copy likewise from ZeRO-1
    activations  what a layer keeps for b s / cp tokens (kept.py),  tp; norms' and residuals' only
                 for each layer of the stage (the dense layers of   with sequence parallelism; pp,
                 an MoE model count as such) and each micro-batch   times the micro-batches in
                 in flight; under torch's pipelining also buffers   flight; experts' copies of
                 for all messages that a step receives              tokens: tp, not ep, because a
                                                                    rank gets as many as it sends;
                                                                    less the share `offload` that
                                                                    is moved to the host
    logits       results of the vocabulary's matmul, and of the     tp, cp; only on the last stage
                 loss
    working      temporary tensors: a layer that is being recomputed; with fused kernels, the
                 gradient of the largest matrix before it is added to the sum (2 + 4 bytes); what
                 ZeRO-3 gathers, which is a layer and the next, or with a pipeline the entire stage
    reserve      what the allocator reserves beyond that, if the source reports reserved memory

The loss is computed before the last layer is recomputed, so only the larger of the logits and that
layer counts. To find the fullest GPU we compare four stages: the first (most micro-batches in
flight), the second, the first of those with the most layers, and the last (logits).

A plan fits if its fullest GPU stays below the share FITS of the memory. The rest is for peaks that
are not modelled: for example, a published run ran out of memory although the model predicts only 67
of 80 GiB for it.

Sources: ZeRO (Rajbhandari et al. 2020) section 3.1; Megatron-LM
docs/user-guide/features/dist_optimizer.md for 6 + 12/d bytes; Korthikanti et al. 2022. Bytes per
parameter and logit of each stack: data/stacks.csv.
"""

from lib.cost.kept import in_flight, kept_bytes, layer_bytes
from lib.cost.parts import layer_parts, stage_parts
from lib.cost.step import split

FITS = 0.83  # of the GPU's memory


def state_bytes(parts, plan, stack):
    """{"weights", "gradients", "optimizer"}: bytes on one rank. parts: the result of
    parts.stage_parts."""
    w, g, o = stack.state
    whole = sum(part.parameters for part in parts)
    shared = sum(part.parameters / part.alike for part in parts)
    return {
        "weights": w * (shared if plan.zero >= 3 else whole),
        "gradients": g * (shared if plan.zero >= 3 or (plan.zero == 2 and plan.pp == 1) else whole),
        "optimizer": o * (shared if plan.zero >= 1 else whole),
    }


def working_bytes(model, plan, stack, parts):
    """Bytes of temporary tensors, without those of a layer that is being recomputed. parts: those
    of the stage; with ZeRO-3 in a pipeline, its weights stay gathered."""
    largest = (
        model.hidden * max(m for _, m in model.mlp_matrices(model.dense_ffn or model.ffn)) / plan.tp
    )
    adding = 6 * largest if stack.flash else 0.0
    if plan.zero < 3:
        return adding
    w, g, _ = stack.state
    # what ZeRO-3 gathers at most
    gathered = sum((1 - 1 / part.alike) * part.parameters for part in parts)
    # 16-bit weights and fp32 gradients stay unsharded from the first micro-batch to the last
    if plan.pp > 1:
        everything = sum(part.parameters for part in parts if part.alike > 1)
        return min(6 * everything, (w + g) * gathered) + adding
    layer = sum(part.parameters for part in layer_parts(model, plan) if part.alike > 1)
    # this layer's weights and gradients, and the next's
    return min(2 * 2 * 2 * layer, w * gathered + adding)


def received_bytes(model, plan, stage, tokens):
    """Bytes of buffers for all messages that a stage's ranks receive in a step. For each
    micro-batch, each of the v model chunks receives one message from each neighbour, but one of the
    chunks on the first rank and on the last has only one neighbour."""
    if plan.pp == 1:
        return 0.0
    messages = (2 * plan.v - (stage in (0, plan.pp - 1))) * plan.micro_batches
    return messages * 2 * tokens * model.hidden / (plan.tp if plan.sequence_parallel else 1)


def stage_memory(model, plan, stack, stage, layers=None):
    """{component: bytes} on a rank of stage `stage`. layers: [layers of each stage], by default
    those of lib.cost.step.split."""
    layers = layers or split(model.layers, plan.pp)
    tokens = plan.micro_batch * model.seq / plan.cp
    parts = stage_parts(model, plan, stage, layers)
    found = state_bytes(parts, plan, stack)
    plain = model.plain_on(layers)[stage]  # the dense layers of an MoE model
    kinds = [(each, n) for each, n in ((model, layers[stage] - plain), (model.plain, plain)) if n]
    kept = sum(n * kept_bytes(each, plan, stack) for each, n in kinds)
    found["activations"] = kept * tokens * in_flight(plan, stage) * (1 - plan.offload)
    found["activations"] += (
        received_bytes(model, plan, stage, tokens) if stack.kept_logit_bytes else 0.0
    )
    again = 0.0
    if plan.recompute == "full":
        again = tokens * max((layer_bytes(each, plan, stack) for each, _ in kinds), default=0.0)
    logits = tokens * model.vocab / plan.tp if stage == plan.pp - 1 else 0.0
    loss = (stack.split_logit_bytes if plan.tp > 1 else stack.logit_bytes) * logits
    loss, again = (loss, 0.0) if loss > again else (0.0, again)
    kept = stack.kept_logit_bytes * plan.micro_batches if plan.pp > 1 else 0.0
    found["logits"] = loss + kept * logits
    found["working"] = working_bytes(model, plan, stack, parts) + again
    found["reserve"] = (stack.reserve - 1) * sum(found.values()) + stack.runtime
    return found


def memory(model, plan, stack):
    """{component: bytes} on a rank of the stage that needs the most memory."""
    layers = split(model.layers, plan.pp)
    stages = sorted({0, min(1, plan.pp - 1), layers.index(max(layers)), plan.pp - 1})
    return max(
        (stage_memory(model, plan, stack, i, layers) for i in stages),
        key=lambda parts: sum(parts.values()),
    )


def peak_bytes(model, plan, stack):
    """Bytes on the fullest GPU at the step's peak."""
    return sum(memory(model, plan, stack).values())
