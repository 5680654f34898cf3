"""What the forward pass of one layer keeps for the backward pass, in bytes per token, and for how
many micro-batches at once a stage keeps it.

Kernels that keep the scores (Megatron-LM until 2022; dropout; GeLU):

    h (10 + 24/t) + 5 a s / t  for f = 4 h; for any other width replace 24 by 8 + 16 f / 4h.
                               Grouped queries, SwiGLU, latent attention and experts
                               count as below, but without the rotated q and k

Fused kernels (Transformer Engine; no dropout), 16 bits each:

    4 h                      inputs and outputs of the two norms; sequence parallelism divides them
                             by t, like the 10 h above
    (a + 2 kv) d, (a + kv) d q, k, v as the matmul returns them; rotated copies of q and k   / t
    a d                      attention's output                                              / t
    3 f                      SwiGLU: both halves and their product (GeLU: 2 f)               / t
    latent attention         results of the two thin matmuls before and after their norms; q, k, v
                             in full
    experts                  topk times: a token's copy before and after the experts, and the
                             3 f of an expert
    fp8                      Transformer Engine keeps the inputs of matmuls in 8 bits: the norms'
                             outputs, SwiGLU's product, the experts' copies of tokens, and
                             attention's output once more

    selective recomputation  without fused kernels: all of the above except 5 a s / t;
                             with fused kernels: the stack's share `selective` of it
    full recomputation       2 h bytes: the layer's input (sequence parallelism divides it by t)

Micro-batches in flight on stage i of p:

    1F1B         min(m, p - i)  interleaved  p (1 + (p - 1 - 2i) / (p v))
    ZB-1p, ZB-V  min(m, p)      ZB-2p        min(m, 2p - 1)

Sources: Korthikanti et al. 2022, table 2 and section 4.2.3; Qi et al. 2024, table 1; the fused list
is taken from Transformer Engine's source, and agrees with peak memory on 8 B200 within 1 %
(`python -m lib.calibration score`).
"""


def layer_bytes(model, plan, stack):
    """Bytes per token that one layer keeps if nothing is recomputed."""
    h, t, a, kv, d = model.hidden, plan.tp, model.heads, model.kv_heads, model.head_dim
    whole = t if plan.sequence_parallel else 1
    eight = plan.precision in ("fp8", "fp4") and stack.transformer_engine
    x = 1 if eight else 2  # bytes per element of a matmul's input
    kept = (2 * (2 + x) if stack.flash else 10) * h / whole
    # attention's backward needs its output in 16 bits, the next matmul in 8
    attended = (2 + eight) * a * d
    if model.kv_rank:
        q = a * (d + model.rope_dim)
        kept += 2 * 2 * (model.q_rank + model.kv_rank + model.rope_dim)
        kept += (2 * (3 * q + 2 * a * d) + attended) / t
    else:
        rotated = (a + kv) * d if stack.flash else 0
        kept += (2 * ((a + 2 * kv) * d + rotated) + attended) / t
    kept += 0 if stack.flash else score_bytes(model, plan)
    width = (4 if model.gated else 2) + x  # of an MLP: both halves and their product
    if model.experts:
        return (
            kept
            + model.topk / t * ((2 + x) * model.travelling + width * model.ffn)
            + width * model.shared_ffn / t
        )
    return kept + width * model.ffn / t


def score_bytes(model, plan):
    """Bytes per token that the scores take if they are kept: 5 a s / t."""
    return 5 * model.heads * model.seq / plan.tp


def kept_bytes(model, plan, stack):
    """Bytes per token that one layer keeps under the plan's recomputation."""
    if plan.recompute == "full":
        return 2 * model.hidden / (plan.tp if plan.sequence_parallel else 1)
    everything = layer_bytes(model, plan, stack)
    if plan.recompute == "selective":
        return (
            everything * stack.selective if stack.flash else everything - score_bytes(model, plan)
        )
    return everything


def in_flight(plan, stage):
    """For how many micro-batches stage `stage` keeps activations at once. This may be a fraction if
    v > 1, because activations of some micro-batches are then kept for only a part of its layers."""
    p, m, v = plan.pp, plan.micro_batches, plan.v
    if plan.schedule in ("zb-1p", "zb-v"):
        return min(m, p)
    if plan.schedule == "zb-2p":
        return min(m, 2 * p - 1)
    if v > 1:
        return min(m, p * (1 + (p - 1 - 2 * stage) / (p * v)))
    return min(m, p - stage)
