"""Lab 0, section 1, bonus: training_days(parameters, tokens, gpus, flops_per_gpu, recompute)."""

from lib.check.causes import hints
from lib.check.left_out import NO_RANKS
from lib.check.numbers import numbers
from lib.cost.compute import training_days

GPT3 = (175e9, 300e9, 1024, 140e12, True)  # Narayanan et al. 2021, section 5.1
NOT_RECOMPUTED = (175e9, 300e9, 1024, 140e12, False)
OTHERS = ((1e12, 450e9, 3072, 163e12, True), (124e6, 9e9, 8, 200e12, False))


def _words(parameters, tokens, gpus, flops, recompute):
    run = (
        f"{parameters / 1e9:,g} billion parameters, {tokens / 1e9:,g} billion tokens, {gpus:,} GPUs"
    )
    return f"{run} of {flops / 1e12:g} TFLOP/s, recompute={recompute}"


MEASURE, about = numbers(training_days, (GPT3, NOT_RECOMPUTED, *OTHERS), _words, "days")
EXERCISE = MEASURE.exercise(
    ("GPT-3 on 1024 A100", 2, "300 billion tokens, 140 TFLOP/s each: 34 days", about(GPT3)),
    ("without recomputation", 1, "25 days", about(NOT_RECOMPUTED)),
    ("other models and clusters", 1, "1 trillion parameters; GPT-2"),
    hints=hints("lab0", "training_days"), bonus=True, leaves_out=NO_RANKS,
)  # fmt: skip
