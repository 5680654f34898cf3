"""Bytes on the fullest GPU at the step's peak, by component.

    parameters P of a stage:     (attention + MLP) L_i / t   +   E experts L_i / ep   +   V h / t  on the first and last

    weights       w P        2 bytes each, or 4          divided by the data ranks from ZeRO-3 on
    gradients     g P        2 or 4                      ZeRO-2; with a pipeline, ZeRO-3
    optimizer     o P        12: fp32 copy, momentum, variance; 8 without the copy        ZeRO-1
    activations   kept by L_i layers for each micro-batch in flight (kept.py); torch's pipelining also has a place for
                  all that neighbours send in a step, activations and their gradients
    logits        the vocabulary's product and what the loss makes of it, on the last stage
    working       what comes and goes: a layer being recomputed; the gradient of the largest matrix before it is added
                  (2 + 4 bytes); what ZeRO-3 gathers: a layer and the next, with a pipeline all of the stage
    reserve       what the allocator holds beyond that, where the source reports reserved memory

Stages compared: the first (most in flight), the second, the first with as many layers as any, the last (logits).

Sources: ZeRO (Rajbhandari et al. 2020) section 3.1; Megatron-LM docs/user-guide/features/dist_optimizer.md for 6 + 12/d
bytes; Korthikanti et al. 2022. Bytes per parameter and logit of each stack: data/stacks.csv.
"""

from lib.cost.kept import in_flight, kept_bytes, layer_bytes
from lib.cost.sharding import expert_ranks
from lib.cost.step import split


def stage_parameters(model, plan, stage, layers):
    """(dense, expert) parameters of a stage on one rank, before ZeRO divides them. layers: [layers of each stage]."""
    p, tp, n = plan.pp, plan.tp, layers[stage]
    first, last = stage == 0, stage == p - 1
    embeddings = first + (last and not (model.tied and p == 1))
    dense = n * model.attention_parameters + embeddings * model.embedding_parameters
    if not model.experts:
        return (dense + n * model.expert_parameters) / tp, 0.0
    plain = max(0, min(n, model.dense_layers - sum(layers[:stage])))  # a mixture's first layers may have a plain MLP
    dense += plain * model.dense_mlp_parameters + (n - plain) * model.shared_parameters
    return dense / tp, (n - plain) * model.experts * model.expert_parameters / plan.ep


def state_bytes(model, plan, stack, stage, layers):
    """{"weights", "gradients", "optimizer"}: bytes on one rank of a stage."""
    parts = zip(stage_parameters(model, plan, stage, layers), (plan.dp * plan.cp, expert_ranks(plan)), strict=True)
    w = g = o = 0.0
    for parameters, ranks in parts:
        w += stack.state[0] * parameters / (ranks if plan.zero >= 3 else 1)
        g += stack.state[1] * parameters / (ranks if plan.zero >= 3 or (plan.zero == 2 and plan.pp == 1) else 1)
        o += stack.state[2] * parameters / (ranks if plan.zero >= 1 else 1)
    return {"weights": w, "gradients": g, "optimizer": o}


def working_bytes(model, plan, stack, tokens, dense):
    """What comes and goes within a layer. dense: the stage's parameters, for weights that stay gathered."""
    working = layer_bytes(model, plan, stack) * tokens if plan.recompute == "full" else 0.0
    largest = model.hidden * max(m for _, m in model.mlp_matrices(model.dense_ffn or model.ffn)) / plan.tp
    adding = 6 * largest if stack.flash else 0.0
    if plan.zero < 3:
        return working + adding
    w, g, _ = stack.state
    whole = (1 - 1 / (plan.dp * plan.cp)) * dense  # what ZeRO-3 gathers at most
    if plan.pp > 1:  # weights in 16 bits and gradients in fp32 stay whole from the first micro-batch to the last
        return working + min(6 * dense, (w + g) * whole) + adding
    layer = (model.attention_parameters + (0 if model.experts else model.expert_parameters)) / plan.tp
    return working + min(2 * 2 * 2 * layer, w * whole + adding)  # this layer's weights and gradients, and the next's


def received_bytes(model, plan, stage, tokens):
    """Places for all messages of a step: from before and from behind for each of v chunks, but one at either end."""
    if plan.pp == 1:
        return 0.0
    messages = (2 * plan.v - (stage in (0, plan.pp - 1))) * plan.micro_batches
    return messages * 2 * tokens * model.hidden / (plan.tp if plan.sequence_parallel else 1)


def stage_memory(model, plan, stack, stage, layers=None):
    """{component: bytes} of a stage. layers: [layers of each stage], lib.cost.step.split if not given."""
    layers = layers or split(model.layers, plan.pp)
    tokens = plan.micro_batch * model.seq / plan.cp
    parts = state_bytes(model, plan, stack, stage, layers)
    parts["activations"] = layers[stage] * kept_bytes(model, plan, stack) * tokens * in_flight(plan, stage)
    parts["activations"] += received_bytes(model, plan, stage, tokens) if stack.kept_logit_bytes else 0.0
    logit = stack.logit_bytes + (stack.kept_logit_bytes * plan.micro_batches if plan.pp > 1 else 0.0)
    parts["logits"] = logit * tokens * model.vocab / plan.tp if stage == plan.pp - 1 else 0.0
    dense, _ = stage_parameters(model, plan, stage, layers)
    parts["working"] = working_bytes(model, plan, stack, tokens, dense)
    parts["reserve"] = (stack.reserve - 1) * sum(parts.values()) + stack.runtime
    return parts


def memory(model, plan, stack):
    """{component: bytes} of the stage that needs most."""
    layers = split(model.layers, plan.pp)
    stages = sorted({0, min(1, plan.pp - 1), layers.index(max(layers)), plan.pp - 1})
    return max((stage_memory(model, plan, stack, i, layers) for i in stages), key=lambda parts: sum(parts.values()))


def peak_bytes(model, plan, stack):
    """Bytes on the fullest GPU at the step's peak."""
    return sum(memory(model, plan, stack).values())
