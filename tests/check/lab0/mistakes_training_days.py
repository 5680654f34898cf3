"""Known mistakes of training_days, each named after its cause."""

from mistakes import Mistake, as_a_students

from lib.cost import compute

training_days = as_a_students(compute.training_days)  # no call of lib's


def _times(hint, *factors):
    """The right number times a factor, a number or a function of the arguments; one
    mistake for each."""
    of = lambda factor, case: training_days(*case) * (factor(*case) if callable(factor) else factor)
    return [Mistake(hint, lambda *case, factor=factor: of(factor, case)) for factor in factors]


def _instead(hint, per_token, per_token_recomputed):
    """So many operations per parameter and token, in place of 6 and 8."""
    return _times(
        hint,
        lambda P, T, gpus, flops, again: per_token_recomputed / 8 if again else per_token / 6,
    )


MISTAKES = (
    *_instead("recomputation ignored", 6, 6),
    *_instead("always recomputed", 8, 8),
    *_instead("the other way round", 8, 6),
    *_instead("forward only", 2, 4),
    *_instead("everything twice", 6, 12),
    *_instead("backward as cheap as forward", 4, 6),
    *_instead("multiplications only", 3, 4),
    *_times("another unit of time", 86400, 24 * 60, 24, 60, 3600, 1 / 24, 1 / 30, 1 / 7),
    *_times("one GPU", lambda P, T, gpus, flops, again: gpus),
    *_times("multiplied by the GPUs", lambda P, T, gpus, flops, again: gpus**2),
    *_times("utilization once more", 1 / 0.45, 312 / 140, 1 / 0.34, 140 / 312),
    *_times("FLOP/s taken as TFLOP/s", 1e12, 1e-12, 1e9, 1e-9),
)  # fmt: skip
