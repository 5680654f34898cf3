"""Seconds of one layer, forward and backward, on one rank for one micro-batch.

    matmuls             matmul.py
    scores, kept        4 s a d operations per token at the rate of a matmul; 9 a s bytes of softmax
                        and dropout in forward, 11 in backward, because the scores pass through
                        memory
    scores, fused       the causal half of the arithmetic, at fused attention's own rate; nothing
                        passes through memory
    elementwise         22 h bytes per token for norms, residuals and dropout; 4 f for GeLU, 6 f for
                        SwiGLU; 4 (a + 2 kv) d to arrange q, k, v; 44 f more if experts have biases
                        and a clamped activation, for which there is no fused kernel in 16 bits
                        (gpt-oss). Backward takes 1.5 times that
    tensor parallelism  2 all-reduces of (tokens, h) in forward and 2 in backward; with sequence
                        parallelism each is a reduce-scatter and an all-gather, and backward has 2
                        more all-gathers. A mixture with ep > 1 has half of these
    context parallelism keys and values are sent around a ring, while attention to those that were
                        received before is computed; under a causal mask the work is uneven if ranks
                        have contiguous tokens (stacks.py)
    experts             a dispatch and a combine in forward, and two in backward; between nodes they
                        hide behind the matmuls of another micro-batch, if stages are interleaved
                        and the stack can do this. Sorting tokens by expert moves 8 bytes per
                        element

    Tensor parallelism over t ranks divides all operations and all memory traffic except the 22 h,
    which are divided only with sequence parallelism.

If the host needs longer to launch the kernels of a pass than the GPU needs to run them, the pass
takes as long as the launches, so small layers wait for Python. We use hypot(GPU, host) instead of
the maximum, because a layer consists of many kernels and some of them are small. Fused attention
recomputes the scores in backward, so its backward takes 2.5 times as long as its forward; that of
other matmuls takes about twice as long.

Experts' biases and clamps: openai/gpt-oss, gpt_oss/torch/model.py; which recipes overlap the
all-to-all, and which run from captured graphs: NVIDIA-NeMo/Megatron-Bridge
scripts/performance/configs.
Sources: Narayanan et al. 2021 and Korthikanti et al. 2022 for the operations and for what tensor
and sequence parallelism send; Dao 2023 for fused attention. The bytes are those of the kernels
listed above, which read and write each tensor once in 16 bits.
"""

from math import hypot
from typing import NamedTuple

from lib.cost import network
from lib.cost.matmul import experts, products

# Bytes that elementwise kernels move per token, each tensor read and written once in 16 bits
NORMS = 22  # per element of the residual stream: norms, residuals and dropout
GELU, SWIGLU = 4, 6  # per hidden element of the MLP
CLAMPED = 44  # per hidden element: 2 biases, 2 clamps, a sigmoid, its scale, 3 multiplications
ARRANGED = 4  # per element of q, k and v
SORTED = 8  # per element of a routed token: into the experts' order and back
SOFTMAX, SOFTMAX_BACKWARD = 9, 11  # per score that is kept: softmax and dropout

# Counted ratios of backward to forward
BACKWARD_BYTES = 1.5  # a forward kernel moves x and y; a backward kernel moves x, dy and dx
BACKWARD_SCORES = 2  # two matmuls for each of forward's
BACKWARD_FLASH = 2.5  # five matmuls for forward's two: the scores are recomputed (Dao 2023)
BACKWARD_SEQUENCE = 1.5  # six halves of an all-reduce for forward's four: two more all-gathers
BACKWARD_RING = 2  # keys and values, and their gradients
EVERY_OTHER = 0.5  # share of matmuls and messages that torchtitan's selective recomputation repeats

# Launch times relative to those of a forward pass without tensor parallelism. These three were set
# by hand when the model was first written: no source states them, and `launch` and `launch_moe`
# were fitted with these values. If one of the three is set to 1, the mean error on the 1,228 runs
# is 8.2, 8.5 and 7.8 % respectively, instead of 7.5 %.
LAUNCH_BACKWARD = 1.5
LAUNCH_TENSOR = 1.3  # collectives are launched as well
LAUNCH_CAPTURED = 0.3  # for a mixture in an NVL72 rack, where recipes replay captured graphs


class Times(NamedTuple):
    """The seconds of each kind of work, and of waiting for the host."""

    matmul: float = 0.0
    attention: float = 0.0  # scores
    elementwise: float = 0.0
    tensor: float = 0.0  # collectives of tensor parallelism
    context: float = 0.0
    expert: float = 0.0  # all-to-all
    launch: float = 0.0  # the GPU waits for the host

    @property
    def total(self):
        return sum(self)

    def __add__(self, other):
        return Times(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor):
        return Times(*(factor * seconds for seconds in self))


class Layer(NamedTuple):
    """Times of forward, of the part of it that is recomputed, and of backward without the
    recomputation."""

    forward: Times
    again: Times
    backward: Times

    @property
    def whole(self):
        return self.forward + self.again + self.backward


def scores(model, plan, gpu, stack, k, tokens):
    """(matmuls, softmax): seconds of the attention scores in forward."""
    if stack.flash:
        flops = model.scores_flops(causal=True) * tokens / plan.tp
        return flops / (k.flash[gpu.family] * gpu.bf16), 0.0
    d, s, memory = model.head_dim, model.seq, k.hbm * gpu.hbm
    pairs = tokens * s * model.heads / plan.tp
    flops = k.matmul[gpu.family] * gpu.bf16
    if d % 8:  # tensor cores load 8 elements of 16 bits at a time
        flops /= k.misaligned
    # two matmuls of (s, d) and (d, s): 4 d operations and 2 x 2 (1 + 2 d / s) bytes for each pair
    # of tokens
    wide = 2 * d + (model.rope_dim if model.kv_rank else 0)
    moved = 4 * pairs * (1 + 2 * d / s)
    return 2 * pairs * wide / flops + moved / memory, SOFTMAX * pairs / memory


def layer(model, plan, gpu, stack, k):
    """The Layer of `model` under `plan`; if the model has experts, a layer with experts.

    gpu: a GPU; stack: a Stack; k: Parameters.
    """
    tokens = plan.micro_batch * model.seq / plan.cp  # (T,) on this rank
    tp, h, memory = plan.tp, model.hidden, k.hbm * gpu.hbm
    how = plan.precision, k, stack.written
    multiply = lambda matrices: products(matrices, tokens, tp, gpu, *how)

    forward, backward = multiply(model.attention_matrices())
    exchange, routed = 0.0, tokens * model.topk / tp
    if model.experts:
        # routed: T topk / tp copies of tokens on each rank, if all experts are chosen equally often
        pairs = [experts(model.expert_matrices(), routed, model.experts / plan.ep, gpu, *how)]
        pairs.append(multiply(model.shared_matrices()))
        exchange = 2 * network.all_to_all(
            gpu, plan.ep, model.topk, 2 * tokens / tp * model.travelling, k.network
        )
        if stack.expert_overlap and plan.v > 1 and plan.ep > gpu.per_node:
            exchange = max(0.0, exchange - k.hidden * (forward + sum(f for f, _ in pairs)))
    else:
        pairs = [multiply(model.expert_matrices())]
    forward, backward = forward + sum(f for f, _ in pairs), backward + sum(b for _, b in pairs)

    attended, softmax = scores(model, plan, gpu, stack, k, tokens)
    attended *= 1 if stack.even_context else 2 - 1 / plan.cp
    whole = tp if plan.sequence_parallel else 1
    width = SWIGLU if model.gated else GELU
    if model.biased and plan.precision in ("bf16", "fp16"):
        width += CLAMPED
    activation = width * model.ffn * max(1, model.topk) / tp
    arranged = ARRANGED * (model.heads + 2 * model.kv_heads) * model.head_dim / tp
    moved = k.unfused * tokens * (NORMS * h / whole + activation + arranged) / memory
    moved += SORTED * routed * model.travelling / memory

    reduced = network.all_reduce(gpu, tp, 1, 2 * tokens * h, k.network) * (1 - stack.tp_overlap)
    # with ep > 1, tp splits the experts' tokens and not their weights, so there is nothing to
    # reduce
    apart = model.experts and plan.ep > 1
    tensor = (1 if apart else 2) * reduced
    ring = 0.0
    if plan.cp > 1:
        kv = (
            4
            * tokens
            * (model.kv_rank + model.rope_dim or 2 * model.kv_heads * model.head_dim / tp)
        )
        ring = (plan.cp - 1) * network.send(gpu, tp * plan.cp // 2, kv, k.network)
        ring = max(0.0, ring - attended)

    launch = k.launch * stack.launch
    if model.experts:
        launch = k.launch * k.launch_moe * stack.launch_moe
        launch *= LAUNCH_CAPTURED if gpu.per_node > 8 else 1
    launch *= LAUNCH_TENSOR if tp > 1 else 1
    there = _launched(launch, Times(forward, attended, moved + softmax, tensor, ring, exchange))
    back = Times(
        backward,
        (BACKWARD_FLASH if stack.flash else BACKWARD_SCORES) * attended,
        BACKWARD_BYTES * moved + SOFTMAX_BACKWARD / SOFTMAX * softmax,
        (BACKWARD_SEQUENCE if plan.sequence_parallel else 1) * tensor,
        BACKWARD_RING * ring,
        exchange,
    )
    again = Times()
    if plan.recompute == "full":
        again = there
    elif (
        plan.recompute == "selective" and stack.selective < 1
    ):  # every other matmul, and all elementwise kernels
        products_again, *collectives = (EVERY_OTHER * s for s in (forward, tensor, exchange))
        again = Times(products_again, 0.0, moved, collectives[0], 0.0, collectives[1])
    elif plan.recompute == "selective":  # the scores
        again = Times(attention=attended, elementwise=softmax, context=ring)
    return Layer(there, again, _launched(LAUNCH_BACKWARD * launch, back))


def _launched(host, times):
    """`times`, with the time that the GPU waits if the host needs `host` seconds to launch all
    kernels."""
    return times._replace(launch=hypot(times.total, host) - times.total)
