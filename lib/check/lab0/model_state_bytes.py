"""Lab 0, section 1: model_state_bytes(parameters, precision), what training keeps for every parameter."""

from numbers import Real

from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.cost.state import RECIPES, model_state_bytes

GPT3 = 175_000_000_000
CASES = [(parameters, precision) for precision in RECIPES for parameters in (GPT3, 1, 124_439_808)]


def _measure(fn):
    return {case: fn(*case) for case in CASES}


def _right(case, got):
    """As large as the right number; an int and an equal float are both fine."""
    return isinstance(got, Real) and not isinstance(got, bool) and got == model_state_bytes(*case)


def _problem(case, seen):
    (parameters, precision), got, expected = case, seen[case], model_state_bytes(*case)
    text = f'model_state_bytes({parameters}, "{precision}"): expected {expected:,}, got '
    if not isinstance(got, Real) or isinstance(got, bool):
        return Problem("form", f"{text}{got!r:.60}, a {type(got).__name__}", {"got": got})
    wrong = {c: value for c, value in seen.items() if not _right(c, value)}
    share = f" = {got / parameters:g} bytes per parameter" if 0.1 < got / parameters < 1000 else ""
    return Problem("value", f"{text}{got:,}{share}", {"wrong": wrong})


def _of(precisions, sizes=(GPT3,)):
    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        wrong = [case for case in CASES if case[1] in precisions and case[0] in sizes and not _right(case, seen[case])]
        return _problem(wrong[0], seen) if wrong else None

    return judge


def _as_if(mistake):
    """Fits if every wrong number is what `mistake`, a function of (parameters, the recipe's parts), gives.

    Hints that leave more of the table right stand first: forgetting the master copy is not forgetting one moment.
    """

    def fits(problem):
        if problem.kind != "value":
            return False
        guess = lambda parameters, precision: mistake(parameters, RECIPES[precision])
        return all(isinstance(got, Real) and got == guess(*case) for case, got in problem.facts["wrong"].items())

    return fits


def _divided(problem):
    """Are the wrong numbers the right ones in some other unit of bytes?"""
    units = (1e3, 1e6, 1e9, 1e12, 2**10, 2**20, 2**30, 2**40)
    wrong = problem.facts.get("wrong", {}).items()
    close = lambda got, case, unit: isinstance(got, Real) and abs(got * unit - model_state_bytes(*case)) <= unit
    return problem.kind == "value" and any(all(close(got, case, unit) for case, got in wrong) for unit in units)


EXERCISE = Exercise(
    name="model_state_bytes",
    reference=model_state_bytes,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("fp32 and mixed", 2, "GPT-3's 175 billion parameters: 2,800,000,000,000 bytes", _of(("fp32", "mixed"))),
        Claim("mixed with fp32 gradients", 1, "3,150,000,000,000 bytes", _of(("mixed, fp32 gradients",))),
        Claim("bf16 alone", 1, "1,400,000,000,000 bytes", _of(("bf16",))),
        Claim("any number of parameters", 2, "1; GPT-2's 124,439,808", _of(RECIPES, [n for n, _ in CASES])),
    ),
    hints=(
        Hint(
            "16-bit throughout",
            _as_if(lambda n, s: n * 8 if s.master else n * s.total),
            "in mixed precision only weights and gradients are 16-bit. The optimizer keeps three fp32 numbers: "
            "master copy, momentum and variance.",
        ),
        Hint(
            "weights alone",
            _as_if(lambda n, s: n * s.weight),
            "that is the weights alone, enough to run the model. Training also keeps gradients and Adam's state.",
        ),
        Hint(
            "no optimizer state",
            _as_if(lambda n, s: n * (s.weight + s.gradient)),
            "weights and gradients are there; what the optimizer keeps is missing: momentum, variance and, in mixed "
            "precision, the master copy.",
        ),
        Hint(
            "no moments",
            _as_if(lambda n, s: n * (s.weight + s.gradient + s.master)),
            "Adam's momentum and variance are missing, one number each per parameter.",
        ),
        Hint(
            "master copy forgotten",
            _as_if(lambda n, s: n * (s.total - s.master)),
            "in mixed precision the optimizer keeps its own fp32 copy of the weights, beside the 16-bit ones.",
        ),
        Hint(
            "gradients forgotten",
            _as_if(lambda n, s: n * (s.total - s.gradient)),
            "the gradients are missing: one number per parameter, kept until the optimizer has used them.",
        ),
        Hint(
            "16-bit moments",
            _as_if(lambda n, s: n * (s.weight + s.gradient + s.master + 2 + 2)),
            "only bf16 alone keeps 16-bit momentum and variance; everywhere else they are fp32, 4 bytes each.",
        ),
        Hint(
            "one moment",
            _as_if(lambda n, s: n * (s.total - s.variance)),
            "that counts one moment. Adam keeps two numbers per parameter: momentum and variance.",
        ),
        Hint(
            "master copy everywhere",
            _as_if(lambda n, s: n * (s.total if s.master else s.total + 4)),
            "only the two mixed recipes keep a master copy: fp32 weights need none, and bf16 alone does without.",
        ),
        Hint(
            "16 for all",
            _as_if(lambda n, s: n * 16),
            "fp32 and mixed come to the same 16, but the other two do not: add up their parts.",
        ),
        Hint(
            "bits for bytes",
            _as_if(lambda n, s: n * s.total * 8),
            "that is 8 times as much: bits. fp32 is 32 bits, 4 bytes.",
        ),
        Hint(
            "per parameter",
            _as_if(lambda n, s: s.total),
            "that is the number of bytes for one parameter; multiply by the number of parameters.",
        ),
        Hint(
            "another unit",
            _divided,
            "return plain bytes, and divide only to print: by 1e9 for GB, by 2**30 for GiB, which is 7 % larger.",
        ),
        Hint(
            "GPT-3 only",
            _as_if(lambda n, s: GPT3 * s.total),
            "your result does not depend on `parameters`.",
        ),
        Hint(
            "nothing returned",
            lambda p: p.kind == "form" and p.facts["got"] is None,
            "the function must end with `return ...`.",
        ),
    ),
)
