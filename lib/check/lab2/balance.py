"""Lab 2, section 1: balance(costs, p), layers into stages so that the slowest stage is as fast as can be.

    costs 2 2 2 1 1 1 1 4, p = 3      [0, 1, 2] [3, 4, 5, 6] [7]       the slowest takes 6
                                      [0, 1] [2, 3, 4, 5] [6, 7]       5: no cut is faster

Right is what is as fast as the best of all cuts, whichever of several it is. Where it is not, some hints are wrong
rules: one fits if all cuts, in all cases, are what that rule gives.
"""

from itertools import pairwise
from math import isclose
from numbers import Integral

from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab2.asking import asked, each
from lib.check.lab2.balance_rules import FULL, SPREADS, as_many_layers, cuts, filled, in_all, least, taken
from lib.check.lab2.hints import is_kind
from lib.pipeline.balance import balance

CASES = [
    ((2, 2, 2, 1, 1, 1, 1, 4), 3),
    ((6, 2, 1, 1, 4, 6, 5), 3),
    ((2, 6, 1, 3, 4), 3),
    ((1, 1, 1, 1, 1, 1), 3),
    ((1, 2, 3, 4, 5, 6), 3),
    ((6, 5, 4, 3, 2, 1), 3),
    ((3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5), 4),
    ((1, 1, 9, 1, 1, 1), 4),
    ((5, 1, 1, 1, 7, 1, 1, 4), 2),
    ((4, 1, 1, 1, 1, 4, 1, 1, 1, 1), 4),
    ((0.25, 0.1, 0.4, 0.15, 0.3, 0.3, 0.2, 0.35, 0.1), 3),
    ((3, 1, 2), 1),
    ((3, 1, 2), 3),
]
CASES_SAY = "3 to 14 layers, 1 to 4 stages"
REFUSED = [((1, 1, 1), 4), ((2,), 2)]


def _measure(fn):
    return asked(fn, balance, {(costs, p): (list(costs), p) for costs, p in CASES + REFUSED}, _read)


def _read(out, costs, p):
    """[[layer, ...] of stage 0, ...]; else the Problem."""
    if out is None:
        return Problem("nothing", f"got None, expected {p} ranges of layers")
    lists = isinstance(out, (list, tuple)) and all(isinstance(stage, (list, tuple, range)) for stage in out)
    if not lists or not all(isinstance(layer, Integral) for stage in out for layer in stage):
        return Problem("lists", f"got {out!r:.60}, expected a list of {p} ranges or lists of layers")
    return [[*stage] for stage in out]


def _layers(stages, costs, p):
    numbers = [layer for stage in stages for layer in stage]
    facts = {"bounds": _are_bounds(stages, len(costs)), "costs": numbers == [*costs], "p": p, "stages": len(stages)}
    if facts["bounds"] or facts["costs"] or numbers != [*range(len(costs))]:
        lost = [layer for layer in range(len(costs)) if layer not in numbers]
        facts |= {"lost": lost, "twice": len({*numbers}) < len(numbers)}
        text = f"got {stages}\nexpected layers 0 to {len(costs) - 1}, each once and in order"
        return Problem("layers", f"{text}; missing {lost}" if lost else text, facts)
    if len(stages) != p:
        return Problem("stages", f"got {len(stages)} stages, expected {p}: {stages}", facts)
    if [] in stages:
        return Problem("empty", f"stage {stages.index([])} has no layer: {stages}", facts)
    return None


def _are_bounds(stages, n):
    """Are they (first, end) or (first, last) of each stage, where a stage has more layers than these?"""
    if any(len(stage) != 2 for stage in stages) or not stages:
        return False
    inclusive = n - 1 == stages[-1][1] and all(b[0] == a[1] + 1 for a, b in pairwise(stages))
    exclusive = n == stages[-1][1] and all(b[0] == a[1] for a, b in pairwise(stages))
    return stages[0][0] == 0 and (exclusive or (inclusive and 2 * len(stages) != n))


def _best_pace(stages, costs, p):
    times = taken(stages, costs)
    got, want = max(times), min(max(taken(cut, costs)) for cut in cuts(len(costs), p))
    if got > want and not isclose(got, want, rel_tol=1e-9):
        short = [round(time, 6) for time in (*times, got, want)]
        text = f"the stages take {short[:-2]}, the slowest {short[-2]}; there is a cut whose slowest takes {short[-1]}"
        return Problem("pace", f"got {stages}\n{text}")
    return None


def _refused(runs):
    ((answers,),) = (run.results for run in runs)
    for costs, p in REFUSED:
        got = answers[costs, p]
        error = got.facts.get("error") if isinstance(got, Problem) else None
        case, expected = _words(costs, p), f"{len(costs)} layer{'s'[: len(costs) > 1]}, so expected a ValueError"
        if error is None:
            return Problem("not refused", f"{case}: no error; there {'are' if len(costs) > 1 else 'is'} {expected}")
        if not isinstance(error, ValueError):
            return Problem("another error", f"{case}: {got.text}\n{expected}")
    return None


def _words(costs, p):
    return f"balance({[*costs]}, {p})"


EXERCISE = Exercise(
    name="balance",
    reference=balance,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("every layer in one stage", 4, f"p stages, in order; {CASES_SAY}", each(CASES, _layers, _words)),
        Claim("no cut has a faster pace", 6, "compared with every cut there is", each(CASES, _best_pace, _words)),
        Claim("more stages than layers", 2, "a ValueError", _refused),
    ),
    hints=(
        Hint("called lib's", is_kind("built-in"), "try every cut, or see how few layers a given pace lets you take."),
        Hint("nothing returned", is_kind("nothing"), "the function must end with `return stages`."),
        Hint(
            "sizes or ends",
            is_kind("lists"),
            "return the layers of each stage, [range(0, 2), range(2, 6), range(6, 8)], not their number or their ends.",
        ),
        Hint(
            "bounds",
            lambda p: p.kind == "layers" and p.facts["bounds"],
            "a pair is read as two layers. Return range(first, end), which stands for all from first to end-1.",
        ),
        Hint(
            "costs for layers",
            lambda p: p.kind == "layers" and p.facts["costs"],
            "return the layers' numbers, 0, 1, 2, ..., not their costs.",
        ),
        Hint(
            "layers lost",
            lambda p: p.kind == "layers" and p.facts["lost"],
            "the last stage ends with the last layer: the cuts are 0, ..., len(costs).",
        ),
        Hint(
            "out of order",
            lambda p: p.kind == "layers" and not p.facts["twice"],
            "a stage is a piece of the row: layer 5 needs what layer 4 gives, so neighbours stay together.",
        ),
        Hint("layers twice", is_kind("layers"), "a layer is in one stage: each begins where the one before it ended."),
        Hint(
            "one cut too many",
            lambda p: p.kind == "stages" and p.facts["stages"] == p.facts["p"] + 1,
            "p stages are made by p-1 cuts.",
        ),
        Hint("not p stages", is_kind("stages"), "there are p ranks, and each has a stage: never more or fewer than p."),
        Hint(
            "an empty stage",
            is_kind("empty"),
            "every stage has a layer at least: leave enough of them for the stages still to come.",
        ),
        Hint(
            "equal numbers of layers",
            in_all(as_many_layers),
            "you give every stage as many layers. They do not cost the same: compare the stages' sums.",
        ),
        Hint(
            "filled up to the average",
            lambda p: any(in_all(filled(full))(p) for full in FULL),
            "you fill one stage after another up to sum(costs) / p. What does not fit is left to the last. Look for "
            "the pace itself: the least for which p stages are enough.",
        ),
        Hint(
            "evenness",
            lambda p: any(in_all(least(spread))(p) for spread in SPREADS),
            "you make the stages alike. That is not the same: only the slowest counts, others may be as fast as they "
            "like.",
        ),
        Hint(
            "fastest stage for slowest",
            in_all(least(lambda sums: -min(sums))),
            "you make the fastest stage slow, max of min. The pipeline's pace is its slowest stage: min of max.",
        ),
        Hint(
            "not the best",
            is_kind("pace"),
            "try every place for the first cut, with the best of the rest behind it: pace(k, i) = min over j of "
            "max(cost of layers i to j-1, pace(k-1, j)).",
        ),
        Hint("no error", is_kind("not refused"), "a stage without a layer has nothing to do: raise ValueError."),
        Hint(
            "not a ValueError",
            is_kind("another error"),
            'look at once: if p > len(costs): raise ValueError(f"{len(costs)} layers, {p} stages").',
        ),
    ),
)
