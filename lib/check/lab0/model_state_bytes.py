"""Lab 0, section 1: model_state_bytes(parameters, precision), what training keeps
for every parameter."""

from lib.check import symptoms as s
from lib.check.claims import claim, numbers
from lib.check.exercise import Exercise, Hint
from lib.check.left_out import NO_RANKS
from lib.cost.state import RECIPES, model_state_bytes

GPT3 = 175_000_000_000
CASES = [(parameters, precision) for precision in RECIPES for parameters in (GPT3, 1, 124_439_808)]


def _measure(fn):
    return {case: fn(*case) for case in CASES}


def _of(precisions, sizes=(GPT3,)):
    cases = [case for case in CASES if case[1] in precisions and case[0] in sizes]
    return numbers(
        model_state_bytes, cases, lambda n, precision: f'model_state_bytes({n}, "{precision}")'
    )


EXERCISE = Exercise(
    name="model_state_bytes", reference=model_state_bytes, measure=_measure, worlds=(),
    leaves_out=NO_RANKS,
    claims=(
        claim("fp32 and mixed", 2, "GPT-3's 175 billion parameters: 2,800,000,000,000 bytes",
              _of(("fp32", "mixed"))),
        claim("mixed with fp32 gradients", 1, "3,150,000,000,000 bytes",
              _of(("mixed, fp32 gradients",))),
        claim("bf16 alone", 1, "1,400,000,000,000 bytes", _of(("bf16",))),
        claim("any number of parameters", 2, "1; GPT-2's 124,439,808",
              _of(RECIPES, [n for n, _ in CASES])),
    ),
    hints=(
        s.NO_NUMBER,
        Hint("a part is wrong", s.kind("value"),
             "write down for this precision how many bytes weight, gradient, master copy, momentum "
             "and variance take, and add them up."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
