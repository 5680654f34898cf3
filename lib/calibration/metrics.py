"""Converts the seconds of a step to the metric of a published row, and back: tokens per second,
TFLOP/s, share of the peak, days. Sources count operations differently, and this file follows each
source's count.

    step time           T
    tokens per second   B s / (n T)              B sequences of s tokens per step, n GPUs
    model TFLOP/s       F B s / (n T)            F: operations per token, by each source's own count
    hardware TFLOP/s    F_hw B s / (n T)         F_hw: F and the operations that recomputation
                                                 repeats
    MFU, HFU            the same two rates over the GPU's peak

All sources count about 6 operations per parameter and token, and 12 L h s per token for attention
scores, but they differ in the details:

    Megatron-LM's papers     count the vocabulary's matmul, but not the embedding; hardware: 8
                             instead of 6 if all layers are recomputed (Narayanan et al. 2021,
                             equation 3)
    NVIDIA's newer tables    count half of the scores, those that a causal mask keeps
                             (Megatron-Bridge; NeMo until 24.07 counted all)
    torchtitan, llm-foundry, count every parameter, including the embedding
    and Llama 3's table 4

Therefore the TFLOP/s of two sources cannot be compared, while seconds or tokens per second can.
Some sources print both, and these confirm the counts: Llama 3 8B at 8192 tokens takes 57.9 GFLOP
per token by NeMo 24.07, and 51.5 by Megatron-Bridge.
"""

# prefixes of the sources that count half of the scores, and of those that count embeddings
CAUSAL = ("mbridge-2",)
EVERY_PARAMETER = ("torchtitan", "llmfoundry", "llama3-table4")
TIME_METRICS = {  # {a metric that gives the step time: its unit}
    "step_time": "s", "step_time_derived": "s", "days_300B_tokens": "days",
    "tokens_per_s_per_gpu": "tok/s/GPU",
    "samples_per_gpu_s": "samples/s/GPU", "model_tflops_per_gpu": "TFLOP/s/GPU",
    "hw_tflops_per_gpu": "TFLOP/s/GPU",
    "tflops_per_gpu_with_cp": "TFLOP/s/GPU", "aggregate_pflops": "PFLOP/s", "mfu": "%", "hfu": "%",
    "pct_peak": "%",
}  # fmt: skip


def model_flops(source, model):
    """Operations per token, forward and backward, as `source` counts them."""
    flops = model.flops_per_token(causal=source.startswith(CAUSAL))
    if source.startswith(EVERY_PARAMETER) and not model.tied:
        flops += 6 * model.embedding_parameters
    return flops


def hardware_flops(source, model, plan):
    """Operations per token, including those that recomputation repeats: the forward pass of the
    layers (full), to which llm-foundry adds the vocabulary's matmul, or only the attention scores
    (selective)."""
    flops = model_flops(source, model)
    scores = model.layers * model.scores_flops(causal=source.startswith(CAUSAL))
    if plan.recompute == "full":
        layers = 2 * (model.active_parameters - model.embedding_parameters) + scores
        return (
            flops
            + layers
            + (2 * model.embedding_parameters if source.startswith("llmfoundry") else 0)
        )
    return flops + (scores if plan.recompute == "selective" else 0)


def per_second(metric, source, job):
    """The constant c that relates the metric to a step of T seconds: value = c / T for a rate, and
    value = c T for seconds and days. job: the row's Job of rows.py."""
    model, plan, gpu, _ = job
    tokens = plan.global_batch * model.seq
    per_gpu = tokens / plan.gpus
    model_rate = lambda: model_flops(source, model) * per_gpu
    hardware_rate = lambda: hardware_flops(source, model, plan) * per_gpu
    peak = gpu.bf16 if source.startswith("llmfoundry") else gpu.peak(plan.precision)
    return {
        "step_time": lambda: 1.0,
        "step_time_derived": lambda: 1.0,
        "days_300B_tokens": lambda: 300e9 / tokens / 86400,
        "tokens_per_s_per_gpu": lambda: per_gpu,
        "samples_per_gpu_s": lambda: plan.global_batch / plan.gpus,
        "model_tflops_per_gpu": lambda: model_rate() / 1e12,
        "tflops_per_gpu_with_cp": lambda: model_rate() / 1e12,
        "hw_tflops_per_gpu": lambda: hardware_rate() / 1e12,
        "aggregate_pflops": lambda: (
            (hardware_rate if "2021" in source else model_rate)() * plan.gpus / 1e15
        ),
        "mfu": lambda: 100 * model_rate() / peak,
        "hfu": lambda: 100 * hardware_rate() / peak,
        "pct_peak": lambda: 100 * hardware_rate() / peak,
    }[metric]()


def grows_with_time(metric):
    """True if a longer step makes the metric larger (seconds, days), False for a rate."""
    return metric in ("step_time", "step_time_derived", "days_300B_tokens")


def from_seconds(metric, source, job, seconds):
    """The value of the metric if a step takes `seconds`."""
    worth = per_second(metric, source, job)
    return worth * seconds if grows_with_time(metric) else worth / seconds


def to_seconds(metric, source, job, value):
    """The seconds of a step whose metric has this value: the inverse of `from_seconds`."""
    worth = per_second(metric, source, job)
    return value / worth if grows_with_time(metric) else worth / value
