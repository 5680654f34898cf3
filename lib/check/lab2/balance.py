"""Lab 2, section 1: balance(costs, p), layers into stages so that the slowest stage is as fast as
can be.

    costs 2 2 2 1 1 1 1 4, p = 3      [0, 1, 2] [3, 4, 5, 6] [7]       the slowest takes 6
                                      [0, 1] [2, 3, 4, 5] [6, 7]       5: no cut is faster

Right is what is as fast as the best of all cuts, whichever of several it is.
"""

from itertools import pairwise
from math import isclose
from numbers import Integral, Real

from lib.check import pure
from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab2.schedules import described
from lib.check.left_out import BUILT
from lib.check.pure import all_seen, each, iterator, refused
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
    ((4, 6, 1, 1, 4, 4), 3),
    ((3, 1, 2), 1),
    ((3, 1, 2), 3),
    ((0, 0, 0, 0), 3),
    ((0, 5, 0, 0, 5, 0), 3),
]
CASES_SAY = "3 to 14 layers, 1 to 4 stages"
REFUSED = [((1, 1, 1), 4), ((2,), 2), ((), 1), ((1, 2), 0)]


def _measure(fn):
    return pure.asked(fn, balance, CASES + REFUSED, lambda costs, p: ([*costs], p), _read)


def _read(out, costs, p):
    """[[layer, ...] of stage 0, ...]; else the Problem."""
    if out is None:
        return Problem("nothing", f"got None, expected {p} ranges of layers")
    if found := iterator(out, "stage {} is"):
        return found
    lists = isinstance(out, (list, tuple)) and all(
        isinstance(stage, (list, tuple, range)) for stage in out
    )
    if not lists or not all(isinstance(layer, Integral) for stage in out for layer in stage):
        numbers = isinstance(out, Real) or (
            isinstance(out, (list, tuple)) and all(isinstance(x, Real) for x in out)
        )
        got = f"{out!r:.60}" if numbers else described(out)
        return Problem(
            "lists",
            f"got {got}, expected a list of {p} ranges or lists of layers",
            {"numbers": numbers},
        )
    return [[*stage] for stage in out]


def _layers(stages, costs, p):
    numbers = [layer for stage in stages for layer in stage]
    facts = {
        "bounds": _are_bounds(stages, len(costs)),
        "costs": numbers == [*costs],
        "p": p,
        "stages": len(stages),
    }
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
    """Are they (first, end) or (first, last) of each stage, where a stage has more
    layers than these?"""
    if any(len(stage) != 2 for stage in stages) or not stages:
        return False
    inclusive = n - 1 == stages[-1][1] and all(b[0] == a[1] + 1 for a, b in pairwise(stages))
    exclusive = n == stages[-1][1] and all(b[0] == a[1] for a, b in pairwise(stages))
    return stages[0][0] == 0 and (exclusive or (inclusive and 2 * len(stages) != n))


def _slower(stages, costs, p):
    times = taken(stages, costs)
    got, want = max(times), max(taken(balance(costs, p), costs))
    if got > want and not isclose(got, want, rel_tol=1e-9):
        short = [round(time, 6) for time in (*times, got, want)]
        text = (
            f"the stages take {short[:-2]}, the slowest {short[-2]}; there is a cut whose slowest "
            f"takes {short[-1]}"
        )
        return Problem("pace", f"got {stages}\n{text}")
    return None


def _best_pace(runs):
    found = each(CASES, _slower, _words)(runs)
    if found and found.kind == "pace":  # a wrong rule is told by the times of all its cuts
        found.trace = [
            [float(time) for time in taken(cut, costs)]
            for (costs, _), cut in found.facts["seen"].items()
        ]
    return found


def taken(stages, costs):
    """[cost of stage 0, 1, ...]"""
    return [sum(costs[layer] for layer in stage) for stage in stages]


def _as_many_layers(stages, costs, p):
    sizes = [len(stage) for stage in stages]
    return max(sizes) - min(sizes) <= 1 or len({*sizes[:-1]}) == 1


def _words(costs, p):
    return f"balance({[*costs]}, {p})"


EXERCISE = Exercise(
    name="balance", reference=balance, measure=_measure, worlds=(),
    leaves_out=BUILT
    | {"precise": "a cut is of whole layers",
       "empty rank": "there are no ranks; no layers are a case"},
    claims=(
        claim("every layer in one stage", 4, f"p stages, in order; {CASES_SAY}",
              each(CASES, _layers, _words),
              pure.left_alone(_words), pure.kept(_words)),
        claim("no cut has a faster pace", 9, "as fast as the best of all cuts", _best_pace),
        claim("more stages than layers", 3, "or fewer than one: a ValueError",
              refused(REFUSED, _words, lambda costs, p: f"{p} stages of {len(costs)} layers")),
    ),
    hints=(
        s.CALLED_LIB.saying("try every cut, or see how few layers a given pace lets you take."),
        pure.ONCE,
        s.NOT_KEPT,
        s.OVERWRITTEN,
        Hint("nothing returned", s.kind("nothing"), "the function must end with `return stages`."),
        Hint("an iterator", s.kind("iterator"),
             "a generator, a map or a zip is used up once it has been read. Return lists or "
             "ranges."),
        Hint("sizes or ends", s.kind("lists", numbers=True),
             "return the layers of each stage, [range(0, 2), range(2, 6), range(6, 8)], not their "
             "number or their ends."),
        Hint("no lists of layers", s.kind("lists"),
             "a stage is a range, or a list of the numbers of its layers."),
        Hint("bounds", lambda p: p.kind == "layers" and p.facts["bounds"],
             "a pair is read as two layers. Return range(first, end), which stands for all from "
             "first to end-1."),
        Hint("costs for layers", lambda p: p.kind == "layers" and p.facts["costs"],
             "return the layers' numbers, 0, 1, 2, ..., not their costs."),
        Hint("layers lost", lambda p: p.kind == "layers" and p.facts["lost"],
             "the last stage ends with the last layer: the cuts are 0, ..., len(costs)."),
        Hint("out of order", lambda p: p.kind == "layers" and not p.facts["twice"],
             "a stage is a piece of the row: layer 5 needs what layer 4 gives, so neighbours stay "
             "together."),
        Hint("layers twice", s.kind("layers"),
             "a layer is in one stage: each begins where the one before it ended."),
        Hint("one cut too many",
             lambda p: p.kind == "stages" and p.facts["stages"] == p.facts["p"] + 1,
             "p stages are made by p-1 cuts."),
        Hint("not p stages", s.kind("stages"),
             "there are p ranks, and each has a stage: never more or fewer than p."),
        Hint("an empty stage", s.kind("empty"),
             "every stage has a layer at least: leave enough of them for the stages still to "
             "come."),
        Hint("equal numbers of layers", s.both(s.kind("pace"), all_seen(_as_many_layers)),
             "you give every stage as many layers. They do not cost the same: compare the stages' "
             "sums."),
        Hint("whole numbers only",
             lambda p: p.kind == "pace" and any(c % 1 for c in p.facts["case"][0]),
             "right as long as all costs are whole numbers. A pace is a sum of neighbours' costs: "
             "a search that goes up by 1 passes over the best."),
        Hint("not the best", s.kind("pace"),
             "try every place for the first cut, with the best of the rest behind it: pace(k, i) = "
             "min over j of max(cost of layers i to j-1, pace(k-1, j))."),
        Hint("fewer than one stage", lambda p: p.kind in ("not refused",
            "another error") and p.facts["case"][1] < 1,
             "too few stages are refused too, not only too many: 1 to len(costs) are right."),
        Hint("no error", s.kind("not refused"),
             "a stage without a layer has nothing to do: raise ValueError."),
        Hint("not a ValueError", s.kind("another error"),
             'look at once: if p > len(costs): raise ValueError(f"{len(costs)} layers, {p} '
             'stages").'),
        *s.ANYWHERE,
    ),
)  # fmt: skip
