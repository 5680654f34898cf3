"""What forward keeps for backward in one layer, in bytes per token, and how many micro-batches keep
it at once.

Kernels that keep the scores (Megatron-LM until 2022; dropout; GeLU):

    h (10 + 24/t) + 5 a s / t  with f = 4 h; for another width 24 = 8 + 16 f / 4h.
                               Grouped queries, SwiGLU, latent attention and experts
                               as below, without what is rotated

Fused kernels (Transformer Engine; no dropout), 16 bits each:

    4 h                      inputs and outputs of the two norms; sequence parallelism divides them
                             by t, as the 10 h
    (a + 2 kv) d, (a + kv) d q, k, v as they leave the product, and q, k once more, rotated  / t
    a d                      attention's output                                              / t
    3 f                      SwiGLU: both halves and their product (GeLU: 2 f)               / t
    latent attention         the two thin products before and after their norms; q, k, v in full
    experts                  topk times: a token's copy before and after the experts, and an
                             expert's 3 f
    fp8                      Transformer Engine keeps the inputs of products in 8 bits: the norms'
                             outputs, SwiGLU's product, the experts' copies of tokens, and
                             attention's output once more

    selective recomputation  the first without 5 a s / t;
                             the second times the stack's share `selective`
    full                     2 h: the layer's input

Micro-batches in flight on stage i of p:

    1F1B         min(m, p - i)  interleaved  p (1 + (p - 1 - 2i) / (p v))
    ZB-1p, ZB-V  min(m, p)      ZB-2p        min(m, 2p - 1)

Sources: Korthikanti et al. 2022, table 2 and section 4.2.3; Qi et al. 2024, table 1; the fused list
is read from Transformer Engine's layers, and agrees with peak memory on 8 B200 within 1 % (python
-m lib.cost score).
"""


def layer_bytes(model, plan, stack):
    """Bytes per token that one layer keeps if nothing is recomputed."""
    h, t, a, kv, d = model.hidden, plan.tp, model.heads, model.kv_heads, model.head_dim
    whole = t if plan.sequence_parallel else 1
    eight = plan.precision in ("fp8", "fp4") and stack.transformer_engine
    x = 1 if eight else 2  # bytes of a product's input
    kept = (2 * (2 + x) if stack.flash else 10) * h / whole
    # attention's backward wants its output in 16 bits, the next product in 8
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
    """Bytes per token of the scores, where they are kept: 5 a s / t."""
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
    """Micro-batches whose activations stage `stage` keeps at once; a fraction where v > 1, for
    parts of its layers."""
    p, m, v = plan.pp, plan.micro_batches, plan.v
    if plan.schedule in ("zb-1p", "zb-v"):
        return min(m, p)
    if plan.schedule == "zb-2p":
        return min(m, 2 * p - 1)
    if v > 1:
        return min(m, p * (1 + (p - 1 - 2 * stage) / (p * v)))
    return min(m, p - stage)
