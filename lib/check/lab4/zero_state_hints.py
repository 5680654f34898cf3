"""The mistakes that are made in rank_state_bytes, told by the numbers that come of them, and the hint for each."""

from math import ceil, floor, isclose
from numbers import Real

from lib.check.framework import Hint
from lib.cost.state import RECIPES
from lib.cost.zero import SHARDED, rank_state, rank_state_bytes

PARTS = ("weight", "gradient", "master", "momentum", "variance")
OPTIMIZER = PARTS[2:]


def as_large(got, case):
    """The right number for these arguments, up to rounding?"""
    return isclose(got, rank_state_bytes(*case), rel_tol=1e-12)


def _as_if(*mistakes):
    """Fits if every wrong number is what one of `mistakes`, functions of the arguments, gives. All wrong ones count:
    so a mistake in one precision is not taken for one in all."""

    def fits(problem):
        if problem.kind != "value":
            return False
        wrong = problem.facts["wrong"].items()
        guess = lambda mistake, parameters, stage, N, precision="mixed": mistake(parameters, stage, N, precision)
        same = lambda got, mistake, case: isinstance(got, Real) and isclose(got, guess(mistake, *case), rel_tol=1e-12)
        return any(all(same(got, mistake, case) for case, got in wrong) for mistake in mistakes)

    return fits


def _cutting(sharded):
    """The bytes if stage s cuts the parts sharded(s)."""

    def bytes_of(parameters, stage, N, precision):
        each, cut = RECIPES[precision]._asdict(), sharded(stage)
        return parameters * sum(each[part] / (N if part in cut else 1) for part in PARTS)

    return bytes_of


def _of_recipe(change):
    """The bytes if a recipe were change(recipe)."""

    def bytes_of(parameters, stage, N, precision):
        each = change(RECIPES[precision])._asdict()
        return parameters * sum(each[part] / (N if part in SHARDED[stage] else 1) for part in PARTS)

    return bytes_of


def _each_alone(stage):
    return {0: (), 1: OPTIMIZER, 2: ("gradient",), 3: ("weight",)}[stage]


def _limit(parameters, stage, N, precision):
    """4 x, 8 x, N x less, whatever N is."""
    return parameters * RECIPES[precision].total / {0: 1, 1: 4, 2: 8, 3: N}[stage]


def _without(*parts):
    return _of_recipe(lambda each: each._replace(**dict.fromkeys(parts, 0)))


def _times(factor):
    return lambda parameters, stage, N, precision: rank_state_bytes(parameters, stage, N, precision) * factor(N)


def _rounded(problem):
    """Whole numbers, of the sum or of each part, not far from the right ones?"""
    if problem.kind != "value":
        return False
    near = lambda case, got: got == floor(got) and abs(got - rank_state_bytes(*case)) <= 32
    wrong = problem.facts["wrong"].items()
    whole = lambda case, way: sum(way(part) for part in rank_state(*case))
    return all(near(case, got) or got in (whole(case, floor), whole(case, ceil)) for case, got in wrong)


HINTS = (
    Hint(
        "everything is cut",
        _as_if(_cutting(lambda stage: PARTS), _cutting(lambda stage: PARTS if stage else ())),
        "only stage 3 cuts everything. Stage 0 cuts nothing, stage 1 the optimizer's three parts, stage 2 the gradient "
        "as well.",
    ),
    Hint(
        "each stage by itself",
        _as_if(_cutting(_each_alone)),
        "stages add up: stage 2 cuts the gradient *and* what stage 1 cuts, stage 3 the weight and all of that.",
    ),
    Hint(
        "the master copy is not cut",
        _as_if(_cutting(lambda stage: [part for part in SHARDED[stage] if part != "master"])),
        "the master copy is the optimizer's, as momentum and variance are: from stage 1 on a rank keeps 1/N of all "
        "three.",
    ),
    Hint(
        "gradient before optimizer",
        _as_if(_cutting(lambda stage: {**SHARDED, 1: ("gradient",)}[stage])),
        "stage 1 cuts the optimizer's parts, which are the largest. The gradient follows at stage 2.",
    ),
    Hint(
        "a stage too late",
        _as_if(_cutting(lambda stage: SHARDED[max(stage - 1, 0)])),
        "the optimizer is cut from stage 1 on, `stage >= 1`; the gradient from 2 on, the weight at 3.",
    ),
    Hint(
        "a stage too early",
        _as_if(_cutting(lambda stage: SHARDED[min(stage + 1, 3)])),
        "stage 0 is plain data parallelism: everything is whole on every rank. The first part is cut at stage 1.",
    ),
    Hint(
        "4x, 8x, Nx",
        _as_if(_limit),
        "4 x and 8 x are limits, for many ranks: the parts that are not cut stay, and on 4 ranks they are most of it. "
        "Add up the parts.",
    ),
    Hint(
        "the precision is not used",
        _as_if(lambda parameters, stage, N, precision: rank_state_bytes(parameters, stage, N)),
        "take the bytes of each part from RECIPES[precision].",
    ),
    Hint(
        "no master copy",
        _as_if(_without("master")),
        "in mixed precision the optimizer keeps three numbers of each parameter: master, momentum and variance.",
    ),
    Hint(
        "one moment",
        _as_if(_without("variance"), _without("momentum")),
        "Adam keeps two moments of each parameter: momentum and variance.",
    ),
    Hint(
        "gradients forgotten",
        _as_if(_without("gradient")),
        "the gradient is missing: whole up to stage 1, 1/N of it from stage 2 on.",
    ),
    Hint(
        "of all ranks",
        _as_if(_times(lambda N: N)),
        "that is what N ranks keep together. The function tells of one of them.",
    ),
    Hint(
        "cut twice",
        _as_if(_times(lambda N: 1 / N)),
        "what is not cut is whole on every rank, and the rest is divided by N once.",
    ),
    Hint(
        "rounded",
        _rounded,
        "this looks rounded. Padding is left out: divide with /, and return the number as it is.",
    ),
    Hint(
        "per parameter",
        _as_if(lambda parameters, *rest: rank_state_bytes(1, *rest)),
        "that is the number of bytes for one parameter; multiply by the number of parameters.",
    ),
    Hint(
        "another unit",
        _as_if(*(_times(lambda N, unit=unit: 1 / unit) for unit in (1e3, 1e6, 1e9, 2**10, 2**20, 2**30))),
        "return plain bytes, and divide only to print: by 1e9 for GB.",
    ),
    Hint(
        "nothing returned",
        lambda p: p.kind == "form" and p.facts["got"] is None,
        "the function must end with `return ...`.",
    ),
    Hint(
        "not refused",
        lambda p: p.kind == "no error",
        "look at the arguments first: `raise ValueError(...)` unless the stage is 0, 1, 2 or 3, and N 1 or more. Name "
        "the values in its message.",
    ),
)
