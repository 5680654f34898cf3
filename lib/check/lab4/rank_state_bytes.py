"""Lab 4, section 1: rank_state_bytes(parameters, stage, N, precision), what one of N ranks keeps at each stage."""

from numbers import Real

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab4.zero_state_hints import HINTS, as_large
from lib.cost import zero

PAPERS = 7_500_000_000  # the model of ZeRO's first figure, on 64 ranks
STAGES = (0, 1, 2, 3)
FIGURE = [(PAPERS, stage, 64) for stage in STAGES]
RANKS = [(parameters, stage, N) for parameters, N in ((PAPERS, 4), (1000, 1), (124_439_808, 7)) for stage in STAGES]
PRECISIONS = [
    (PAPERS, stage, 64, precision) for precision in ("fp32", "mixed, fp32 gradients", "bf16") for stage in STAGES
]
CASES = [*FIGURE, *RANKS, *PRECISIONS]
REFUSED = [(PAPERS, 4, 64), (PAPERS, -1, 64), (PAPERS, 1, 0)]


def _measure(fn):
    return {case: fn(*case) for case in CASES} | {case: _raised(fn, case) for case in REFUSED}


def _raised(fn, case):
    """The name of what it raises, or None."""
    try:
        fn(*case)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    return None


def _is_number(got):
    return isinstance(got, Real) and not isinstance(got, bool)


def _call(case):
    return f"rank_state_bytes({', '.join(map(repr, case))})"


def _of(cases):
    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        got_of = {case: seen[case] for case in CASES}
        wrong = {case: got for case, got in got_of.items() if not _is_number(got) or not as_large(got, case)}
        case = next((case for case in cases if case in wrong), None)
        if case is None:
            return None
        got, parts = wrong[case], zero.rank_state(*case)
        text = f"{_call(case)}: expected {sum(parts):,.15g}, got "
        if not _is_number(got):
            return Problem("form", f"{text}{got!r:.60}, a {type(got).__name__}", {"got": got})
        per_parameter = [part / case[0] for part in parts]
        text += f"{got:,.15g}\nExpected per parameter, in bytes: "
        text += f"weight {per_parameter[0]:.4g} + gradient {per_parameter[1]:.4g} + optimizer "
        text += f"{sum(per_parameter[2:]):.4g} = {sum(per_parameter):.4g}; got {got / case[0]:.4g}."
        return Problem("value", text, {"wrong": wrong})

    return judge


def _refuses(runs):
    ((seen,),) = (run.results for run in runs)
    for case in REFUSED:
        if seen[case] != "ValueError":
            what = "returned a number" if seen[case] is None else f"raised {seen[case]}"
            return Problem("no error", f"{_call(case)} {what}, expected a ValueError", {"raised": seen[case]})
    return None


EXERCISE = Exercise(
    name="rank_state_bytes",
    reference=zero.rank_state_bytes,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("ZeRO's figure", 4, "7.5 billion parameters, 64 ranks: 120, 31.4, 16.6, 1.9 GB", _of(FIGURE)),
        Claim("other models and ranks", 2, "4 ranks, 7, and 1", _of(RANKS)),
        Claim("other precisions", 2, "fp32; fp32 gradients; bf16 alone", _of(PRECISIONS)),
        Claim("no such stage", 2, "a ValueError for stage 4 and -1, and for 0 ranks", _refuses),
    ),
    hints=HINTS,
)
