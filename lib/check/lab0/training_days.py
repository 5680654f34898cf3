"""Lab 0, section 1, bonus: training_days(parameters, tokens, gpus, flops_per_gpu, recompute)."""

from lib.check import symptoms as s
from lib.check.claims import claim, numbers
from lib.check.exercise import Exercise, Hint
from lib.check.left_out import NO_RANKS
from lib.cost.compute import training_days

GPT3 = (175e9, 300e9, 1024, 140e12, True)  # Narayanan et al. 2021, section 5.1
NOT_RECOMPUTED = (175e9, 300e9, 1024, 140e12, False)
OTHERS = ((1e12, 450e9, 3072, 163e12, True), (124e6, 9e9, 8, 200e12, False))
CASES = (GPT3, NOT_RECOMPUTED, *OTHERS)


def _measure(fn):
    return {case: fn(*case) for case in CASES}


def _words(parameters, tokens, gpus, flops, recompute):
    run = (
        f"{parameters / 1e9:,g} billion parameters, {tokens / 1e9:,g} billion tokens, {gpus:,} GPUs"
    )
    return f"{run} of {flops / 1e12:g} TFLOP/s, recompute={recompute}"


def _of(*cases):
    return numbers(training_days, cases, _words, unit_name=" days")


def _rounded(p):
    return p.kind == "value" and all(
        a == round(a, 2) and abs(a - b) <= 1 for a, b in p.facts["wrong"].values()
    )


EXERCISE = Exercise(
    name="training_days", reference=training_days, measure=_measure, worlds=(), bonus=True,
    leaves_out=NO_RANKS,
    claims=(
        claim("GPT-3 on 1024 A100", 2, "300 billion tokens, 140 TFLOP/s each: 34 days", _of(GPT3)),
        claim("without recomputation", 1, "25 days", _of(NOT_RECOMPUTED)),
        claim("other models and clusters", 1, "1 trillion parameters; GPT-2", _of(*OTHERS)),
    ),
    hints=(
        Hint("rounded", _rounded,
             "this looks rounded. Return the number as it is; round when you print it."),
        s.NO_NUMBER,
        Hint("not the operations of a step", s.kind("value"),
             "count: operations per parameter and token (2 forward, 4 backward, 2 more with "
             "recomputation), times parameters and tokens; divided by what all GPUs do in a "
             "second, and by the seconds of a day."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
