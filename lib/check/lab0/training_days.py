"""Lab 0, section 1, bonus: training_days(parameters, tokens, gpus, flops_per_gpu, recompute)."""

from math import isclose
from numbers import Real

from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.cost.compute import SECONDS_PER_DAY, training_days

GPT3 = (175e9, 300e9, 1024, 140e12, True)  # Narayanan et al. 2021, section 5.1
NOT_RECOMPUTED = (175e9, 300e9, 1024, 140e12, False)
OTHERS = ((1e12, 450e9, 3072, 163e12, True), (124e6, 9e9, 8, 200e12, False))
CASES = (GPT3, NOT_RECOMPUTED, *OTHERS)


def _measure(fn):
    return {case: fn(*case) for case in CASES}


def _is_number(got):
    return isinstance(got, Real) and not isinstance(got, bool)


def _wrong(seen):
    """{case: the wrong number that came out}"""
    numbers = {case: got for case, got in seen.items() if _is_number(got)}
    return {case: got for case, got in numbers.items() if not isclose(got, training_days(*case), rel_tol=1e-9)}


def _of(*cases):
    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        for case in cases:
            parameters, tokens, gpus, flops, recompute = case
            got, expected = seen[case], training_days(*case)
            text = (
                f"{parameters / 1e9:,g} billion parameters, {tokens / 1e9:,g} billion tokens, {gpus:,} GPUs of "
                f"{flops / 1e12:g} TFLOP/s, recompute={recompute}: expected {expected:,.6g} days, got "
            )
            if not _is_number(got):
                return Problem("form", f"{text}{got!r:.60}, a {type(got).__name__}", {"got": got})
            if case in _wrong(seen):
                return Problem("value", f"{text}{got:,.6g}", {"wrong": _wrong(seen)})
        return None

    return judge


def _off_by(*factors):
    """Fits if each wrong number is the right one times one of `factors`, numbers or functions of the case."""

    def fits(problem):
        if problem.kind != "value":
            return False
        times = lambda f, case: training_days(*case) * (f(*case) if callable(f) else f)
        wrong = problem.facts["wrong"].items()
        return any(all(isclose(got, times(f, case), rel_tol=1e-6) for case, got in wrong) for f in factors)

    return fits


def _rounded(problem):
    rounded = lambda case, got: got == round(got, 2) and abs(got - training_days(*case)) <= 1
    return problem.kind == "value" and all(rounded(case, got) for case, got in problem.facts["wrong"].items())


def _instead(per_token, per_token_recomputed):
    """Fits if so many operations were counted per parameter and token, in place of 6 and 8."""
    return _off_by(lambda P, T, gpus, flops, again: per_token_recomputed / 8 if again else per_token / 6)


EXERCISE = Exercise(
    name="training_days",
    reference=training_days,
    measure=_measure,
    worlds=(),
    bonus=True,
    claims=(
        Claim("GPT-3 on 1024 A100", 2, "300 billion tokens, 140 TFLOP/s each: 34 days", _of(GPT3)),
        Claim("without recomputation", 1, "25 days", _of(NOT_RECOMPUTED)),
        Claim("other models and clusters", 1, "1 trillion parameters; GPT-2", _of(*OTHERS)),
    ),
    hints=(
        Hint(
            "recomputation ignored",
            _instead(6, 6),
            "recomputation runs the forward pass once more: 2 operations more per parameter and token, 8 instead of 6.",
        ),
        Hint(
            "always recomputed",
            _instead(8, 8),
            "without recomputation it is 6 operations per parameter and token: 2 forward, 4 backward.",
        ),
        Hint(
            "forward only",
            _instead(2, 4),
            "that counts the forward pass alone. Backward costs twice as much again: 2 + 4 = 6 operations per "
            "parameter and token, 8 with recomputation.",
        ),
        Hint(
            "everything twice",
            _instead(6, 12),
            "recomputation repeats the forward pass only, not backward: 2 operations more, not 6.",
        ),
        Hint(
            "backward as cheap as forward",
            _instead(4, 6),
            "backward makes two products for each of forward's, one for the inputs' gradient and one for the weights': "
            "4 operations, not 2.",
        ),
        Hint(
            "multiplications only",
            _instead(3, 4),
            "each weight is used in a multiplication and an addition: 2 operations.",
        ),
        Hint(
            "another unit of time",
            _off_by(SECONDS_PER_DAY, 24 * 60, 24, 1 / 30, 1 / 7),
            "operations divided by operations per second are seconds; a day has 24 * 60 * 60 of them.",
        ),
        Hint(
            "one GPU",
            _off_by(lambda P, T, gpus, flops, again: gpus),
            "that is one GPU's time. All of them work at once.",
        ),
        Hint(
            "multiplied by the GPUs",
            _off_by(lambda P, T, gpus, flops, again: gpus**2),
            "you multiply by the number of GPUs: more of them would take longer. Divide.",
        ),
        Hint(
            "rounded",
            _rounded,
            "this looks rounded. Return the number as it is; round when you print it.",
        ),
        Hint(
            "FLOP/s taken as TFLOP/s",
            _off_by(1e12, 1e-12, 1e9, 1e-9),
            "`flops_per_gpu` is in operations per second, 140e12 for 140 TFLOP/s; no further factor is needed.",
        ),
        Hint(
            "nothing returned",
            lambda p: p.kind == "form" and p.facts["got"] is None,
            "the function must end with `return ...`.",
        ),
    ),
)
