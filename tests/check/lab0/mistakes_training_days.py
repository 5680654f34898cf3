"""Known mistakes of training_days, each named after its cause."""

from mistakes import Mistake, as_a_students

from lib.cost import compute

training_days = as_a_students(compute.training_days)  # no call of lib's


def _times(hint, text, *factors):
    """The right number times a factor, a number or a function of the arguments; one
    mistake for each."""
    of = lambda factor, case: training_days(*case) * (factor(*case) if callable(factor) else factor)
    return [
        Mistake(hint, lambda *case, factor=factor: of(factor, case), text) for factor in factors
    ]


def _instead(hint, text, per_token, per_token_recomputed):
    """So many operations per parameter and token, in place of 6 and 8."""
    return _times(
        hint,
        text,
        lambda P, T, gpus, flops, again: per_token_recomputed / 8 if again else per_token / 6,
    )


MISTAKES = (
    *_instead(
        "recomputation ignored",
        "recomputation runs the forward pass once more: 2 operations more per parameter and token, "
        "8 instead of 6.",
        6, 6,
    ),
    *_instead(
        "always recomputed",
        "without recomputation it is 6 operations per parameter and token: 2 forward, 4 backward.",
        8, 8,
    ),
    *_instead(
        "the other way round",
        "recomputation costs time: with it, it is 8 operations per parameter and token, without it "
        "6.",
        8, 6,
    ),
    *_instead(
        "forward only",
        "that counts the forward pass alone. Backward costs twice as much again: 2 + 4 = 6 "
        "operations per parameter and token, 8 with recomputation.",
        2, 4,
    ),
    *_instead(
        "everything twice",
        "recomputation repeats the forward pass only, not backward: 2 operations more, not 6.",
        6, 12,
    ),
    *_instead(
        "backward as cheap as forward",
        "backward makes two products for each of forward's, one for the inputs' gradient and one "
        "for the weights': 4 operations, not 2.",
        4, 6,
    ),
    *_instead(
        "multiplications only",
        "each weight is used in a multiplication and an addition: 2 operations.",
        3, 4,
    ),
    *_times("another unit of time",
            "operations divided by operations per second are seconds; a day has 24 * 60 * 60 of "
            "them.", 86400, 24 * 60,
            24, 60, 3600, 1 / 24, 1 / 30, 1 / 7),
    *_times("one GPU", "that is one GPU's time. All of them work at once.", lambda P, T, gpus,
    flops, again: gpus),
    *_times("multiplied by the GPUs",
            "you multiply by the number of GPUs: more of them would take longer. Divide.",
            lambda P, T, gpus, flops, again: gpus**2),
    *_times("utilization once more",
            "`flops_per_gpu` is what a GPU achieves, not its peak: no utilization comes on top.",
            1 / 0.45, 312 / 140,
            1 / 0.34, 140 / 312),
    *_times("FLOP/s taken as TFLOP/s",
            "`flops_per_gpu` is in operations per second, 140e12 for 140 TFLOP/s; no further "
            "factor is needed.", 1e12,
            1e-12, 1e9, 1e-9),
)  # fmt: skip
