"""Wrong rules for balance(costs, p): hints recognise a cut by the rule that made it.

    equal numbers   2 2 2 | 1 1 1 | 1 4      slowest 6
    filled          2 2 2 | 1 1 1 1 | 4              6     as soon as a stage has the average of 14/3 it is full
    max of min      2 2 | 2 1 1 | 1 1 4              6     its fastest stage is as slow as can be
    right           2 2 | 2 1 1 1 | 1 4              5

A rule is a function of (stages, costs, p): could the rule have made these stages?
"""

from itertools import combinations, pairwise
from math import isclose

from lib.check.lab2.hints import all_seen


def taken(stages, costs):
    """[cost of stage 0, 1, ...]"""
    return [sum(costs[layer] for layer in stage) for stage in stages]


def cuts(n, p):
    """Every cut of n layers into p stages."""
    for ends in combinations(range(1, n), p - 1):
        yield [range(first, end) for first, end in pairwise([0, *ends, n])]


def in_all(fits):
    """Fits if fits(stages, costs, p) in all cases that could be read."""
    everywhere = all_seen(fits)
    return lambda problem: problem.kind == "pace" and everywhere(problem)


def as_many_layers(stages, costs, p):
    sizes = [len(stage) for stage in stages]
    return max(sizes) - min(sizes) <= 1 or len({*sizes[:-1]}) == 1


def least(score):
    """Is this the cut with the least score(cost of stage 0, 1, ...), or one of them?"""

    def fits(stages, costs, p):
        least = min(score(taken(cut, costs)) for cut in cuts(len(costs), p))
        return isclose(score(taken(stages, costs)), least, rel_tol=1e-9, abs_tol=1e-9)

    return fits


def filled(full):
    """Is one stage after another filled to the average? full(cost so far, next layer's, average): is a stage full?"""

    def fits(stages, costs, p):
        expected, average = [[]], sum(costs) / p
        for layer, cost in enumerate(costs):
            so_far, to_come = sum(costs[i] for i in expected[-1]), p - len(expected)
            must = len(costs) - layer == to_come  # the layers left are just enough for the stages to come
            if expected[-1] and to_come and (must or full(so_far, cost, average)):
                expected.append([])
            expected[-1].append(layer)
        return stages == expected

    return fits


SPREADS = (lambda sums: max(sums) - min(sums), lambda sums: sum(time**2 for time in sums))
FULL = (
    lambda so_far, cost, average: so_far >= average,
    lambda so_far, cost, average: so_far + cost > average,
    lambda so_far, cost, average: abs(so_far - average) < abs(so_far + cost - average),
)
