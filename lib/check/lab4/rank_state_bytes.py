"""Lab 4, section 1: rank_state_bytes(parameters, stage, N, precision), what one of N ranks
keeps at each stage."""

from dataclasses import replace

from lib.check import symptoms as s
from lib.check.claims import claim, numbers, refuses
from lib.check.exercise import Exercise, Hint
from lib.check.left_out import NO_RANKS
from lib.cost import zero
from lib.cost.state import RECIPES

PAPERS = 7_500_000_000  # the model of ZeRO's first figure, on 64 ranks
STAGES = (0, 1, 2, 3)
FIGURE = [(PAPERS, stage, 64) for stage in STAGES]
RANKS = [
    (n, stage, N)
    for n, N in ((PAPERS, 4), (1000, 1), (124_439_808, 7), (1.5e9, 2))
    for stage in STAGES
]
PRECISIONS = [(PAPERS, stage, 64, p) for p in RECIPES if p != "mixed" for stage in STAGES]
REFUSED = [(PAPERS, 4, 64), (PAPERS, -1, 64), (PAPERS, 1, 0)]


def _measure(fn):
    """({case: number}, {call in words: what it raised or returned})"""
    numbers_of = {case: fn(*case) for case in (*FIGURE, *RANKS, *PRECISIONS)}
    return numbers_of, {_call(*case): _error_or_result(fn, case) for case in REFUSED}


def _error_or_result(fn, case):
    try:
        return fn(*case)
    except NotImplementedError:
        raise
    except Exception as error:
        return error


def _call(*case):
    return f"rank_state_bytes({', '.join(map(repr, case))})"


def _of(cases):
    judge = numbers(zero.rank_state_bytes, cases, _call, tolerance=1e-12)
    return lambda runs: judge([replace(run, results=[run.results[0][0]]) for run in runs])


def _rounded(p):
    whole = lambda got, want: got == int(got) and abs(got - want) <= 32
    return p.kind == "value" and all(whole(got, want) for got, want in p.facts["wrong"].values())


EXERCISE = Exercise(
    name="rank_state_bytes", reference=zero.rank_state_bytes, measure=_measure, worlds=(),
    leaves_out=NO_RANKS,
    claims=(
        claim("ZeRO's figure", 4, "7.5 billion parameters, 64 ranks: 120, 31.4, 16.6, 1.9 GB",
              _of(FIGURE)),
        claim("other models and ranks", 2, "4 ranks, 7, and 1", _of(RANKS)),
        claim("other precisions", 2, "fp32; fp32 gradients; bf16 alone", _of(PRECISIONS)),
        claim("no such stage", 2, "a ValueError for stage 4 and -1, and for 0 ranks",
            refuses(lambda runs: runs[0].results[0][1], (ValueError,))),
    ),
    hints=(
        s.NO_NUMBER,
        Hint("rounded", _rounded,
             "this looks rounded. Padding is left out: divide with /, and return the number as it "
             "is."),
        Hint("not refused", s.kind("accepted"),
             "look at the arguments first: `raise ValueError(...)` unless the stage is 0, 1, 2 or "
             "3, and N 1 or more. Name the values in its message."),
        Hint("a part is wrong", s.kind("value"),
            "write down for this stage and precision how many bytes of weight, gradient, master, "
            "momentum and variance a rank keeps for one parameter, which of them are divided by N, "
            "and add them up."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
