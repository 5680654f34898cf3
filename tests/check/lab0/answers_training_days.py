"""Answers to Lab 0's training_days: wrong ones, each with the hint that it must
get, and right ones."""

DAY = 24 * 60 * 60


def ignores_recomputation(parameters, tokens, gpus, flops_per_gpu, recompute):
    return 6 * parameters * tokens / (gpus * flops_per_gpu) / DAY


def always_recomputes(parameters, tokens, gpus, flops_per_gpu, recompute):
    return 8 * parameters * tokens / (gpus * flops_per_gpu) / DAY


def counts_forward_only(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (4 if recompute else 2) * parameters * tokens / (gpus * flops_per_gpu) / DAY


def recomputes_backward_too(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (12 if recompute else 6) * parameters * tokens / (gpus * flops_per_gpu) / DAY


def backward_like_forward(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (6 if recompute else 4) * parameters * tokens / (gpus * flops_per_gpu) / DAY


def counts_multiplications(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (4 if recompute else 3) * parameters * tokens / (gpus * flops_per_gpu) / DAY


def in_seconds(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (8 if recompute else 6) * parameters * tokens / (gpus * flops_per_gpu)


def in_months(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (8 if recompute else 6) * parameters * tokens / (gpus * flops_per_gpu) / DAY / 30


def on_one_gpu(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (8 if recompute else 6) * parameters * tokens / flops_per_gpu / DAY


def multiplies_by_the_gpus(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (8 if recompute else 6) * parameters * tokens / flops_per_gpu * gpus / DAY


def rounds(parameters, tokens, gpus, flops_per_gpu, recompute):
    return round((8 if recompute else 6) * parameters * tokens / (gpus * flops_per_gpu) / DAY)


def takes_flops_as_tflops(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (8 if recompute else 6) * parameters * tokens / (gpus * flops_per_gpu * 1e12) / DAY


def prints_it(parameters, tokens, gpus, flops_per_gpu, recompute):
    print((8 if recompute else 6) * parameters * tokens / (gpus * flops_per_gpu) / DAY)


def not_written(parameters, tokens, gpus, flops_per_gpu, recompute):
    raise NotImplementedError


def nine_operations(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (9 if recompute else 6) * parameters * tokens / (gpus * flops_per_gpu) / DAY


WRONG = {
    nine_operations: "not the operations of a step",
    ignores_recomputation: "recomputation ignored",
    always_recomputes: "always recomputed",
    counts_forward_only: "forward only",
    recomputes_backward_too: "everything twice",
    backward_like_forward: "backward as cheap as forward",
    counts_multiplications: "multiplications only",
    in_seconds: "another unit of time",
    in_months: "another unit of time",
    on_one_gpu: "one GPU",
    multiplies_by_the_gpus: "multiplied by the GPUs",
    rounds: "rounded",
    takes_flops_as_tflops: "FLOP/s taken as TFLOP/s",
    prints_it: "nothing returned",
    not_written: "not written",
}


def in_one_expression(parameters, tokens, gpus, flops_per_gpu, recompute):
    return (6 + 2 * recompute) * parameters * tokens / gpus / flops_per_gpu / 86_400


def pass_by_pass(parameters, tokens, gpus, flops_per_gpu, recompute):
    forward = 2 * parameters * tokens
    passes = [forward, 2 * forward] + ([forward] if recompute else [])
    seconds = sum(operations / (gpus * flops_per_gpu) for operations in passes)
    return seconds / 60 / 60 / 24


RIGHT = [in_one_expression, pass_by_pass]
