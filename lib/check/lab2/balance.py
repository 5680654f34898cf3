"""Lab 2, section 1: balance(costs, p), which splits layers into p stages so that the slowest stage
is as fast as possible.

    costs 2 2 2 1 1 1 1 4, p = 3      [0, 1, 2] [3, 4, 5, 6] [7]       the slowest stage takes 6
                                      [0, 1] [2, 3, 4, 5] [6, 7]       5, and no split is faster

If several splits are best, any of them is right.
"""

from itertools import pairwise
from numbers import Integral, Real

from lib.check.causes import hints
from lib.check.claims import iterator
from lib.check.explain import cut
from lib.check.lab2.schedules import described
from lib.check.left_out import BUILT, NO_TENSORS
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.pipeline.balance import balance

JOBS = [
    ((2, 2, 2, 1, 1, 1, 1, 4), 3),
    ((6, 2, 1, 1, 4, 6, 5), 3),
    ((2, 6, 1, 3, 4), 3),
    ((1, 2, 3, 4, 5, 6), 3),
    ((6, 5, 4, 3, 2, 1), 3),
    ((1, 1, 1, 1, 1, 1), 3),
    ((3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5), 4),
    ((1, 1, 9, 1, 1, 1), 4),
    ((5, 1, 1, 1, 7, 1, 1, 4), 2),
    ((4, 1, 1, 1, 1, 4, 1, 1, 1, 1), 4),
    ((0.25, 0.1, 0.4, 0.15, 0.3, 0.3, 0.2, 0.35, 0.1), 3),
    ((0.00025, 0.0001, 0.0004, 0.00015, 0.0003, 0.0002), 4),  # seconds
    ((4, 6, 1, 1, 4, 4), 3),
    ((3, 1, 2), 1),
    ((3, 1, 2), 3),
    ((0, 0, 0, 0), 3),
    ((0, 5, 0, 0, 5, 0), 3),
]
REFUSED = [((1, 1, 1), 4), ((2,), 2), ((), 1), ((1, 2), 0)]
OF_NAME = {f"balance({[*costs]}, {p})": (costs, p) for costs, p in JOBS + REFUSED}
CASES = here(*OF_NAME)
FORM = (RETURNED, "iterator", "numbers", "lists")
LAYERS = ("bounds", "costs", "unknown", "lost", "out of order", "twice", "stages", "empty")


def script(make, case, show):
    costs, p = OF_NAME[case.what]
    if (costs, p) in REFUSED:
        show.refused(make, [*costs], p)
        return
    out = show.run(make, [*costs], p)
    name, text = _misread(out, p) or _misplaced(out, [*costs], p) or ("lists", "")
    show.said(dict.fromkeys(["lists", name]), {name: text})
    if not text:
        times = taken(out, costs)
        beside = f"got {[*map(list, out)]}: the stages take {[float(f'{t:.6g}') for t in times]}"
        show("the slowest stage", max(times), at_most=True, beside=beside)


def _misread(out, p):
    """(name, text) if the result is not a list of lists of layers, else None."""
    if out is None:
        return RETURNED, f"got None, expected {p} ranges of layers"
    if found := iterator(out, "stage {} is"):
        return "iterator", found.text
    listed = isinstance(out, (list, tuple))
    lists = listed and all(isinstance(stage, (list, tuple, range)) for stage in out)
    if lists and all(isinstance(layer, Integral) for stage in out for layer in stage):
        return None
    numbers = all(isinstance(x, Real) for x in (out if listed else [out]))
    got = cut(out, 60) if numbers else described(out)
    text = f"got {got}, expected a list of {p} ranges or lists of layers"
    return "numbers" if numbers else "lists", text


def _misplaced(out, costs, p):
    """(name, text) if the layers are not split into p stages, each layer once and in order; else
    None."""
    stages, n = [[*stage] for stage in out], len(costs)
    layers = [layer for stage in stages for layer in stage]
    if layers != [*range(n)]:
        lost = [layer for layer in range(n) if layer not in layers]
        name = (
            "bounds" if _are_bounds(stages, n)
            else "costs" if layers == costs
            else "unknown" if max(layers, default=0) >= n
            else "lost" if lost
            else "twice" if len({*layers}) < len(layers)
            else "out of order"
        )  # fmt: skip
        text = f"got {stages}\nexpected layers 0 to {n - 1}, each once and in order"
        return name, f"{text}; missing {lost}" if lost else text
    if len(stages) != p:
        return "stages", f"got {len(stages)} stages, expected {p}: {stages}"
    if [] in stages:
        return "empty", f"stage {stages.index([])} has no layer: {stages}"
    return None


def _are_bounds(stages, n):
    """True if the stages are pairs, (first, end) or (first, last), instead of lists of layers."""
    if any(len(stage) != 2 for stage in stages) or not stages:
        return False
    follow = all(b[0] - a[1] in (0, 1) for a, b in pairwise(stages))
    return follow and stages[0][0] == 0 and stages[-1][1] in (n - 1, n)


def taken(stages, costs):
    """[time of stage 0, 1, ...]"""
    return [sum(costs[layer] for layer in stage) for stage in stages]


MEASURE = SideBySide(script, balance, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("every layer in one stage", 4, "p stages, in order; 3 to 14 layers, 1 to 4 stages",
     *FORM, *LAYERS, "arguments", "changed later"),
    ("no cut has a faster pace", 9, "as fast as the best of all cuts", "the slowest stage"),
    ("more stages than layers", 3, "or fewer than one: a ValueError"),
    hints=hints("lab2", "balance"),
    leaves_out=BUILT
    | {"precise": "a cut is of whole layers",
       "empty rank": "there are no ranks; no layers are a case"},
)  # fmt: skip
