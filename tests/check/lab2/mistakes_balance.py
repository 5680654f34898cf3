"""Known mistakes of balance, each named after its cause."""

from itertools import combinations, pairwise

from mistakes import Mistake

from lib.check.lab2.balance import taken


def _refusing(rule):
    def cut(costs, p):
        if not 1 <= p <= len(costs):
            raise ValueError(f"{p} stages of {len(costs)} layers")
        return rule(costs, p)

    return cut


def _least(hint, score):
    """The cut with the least score(cost of stage 0, 1, ...); of several the first, or the last."""

    def cuts(costs, p):
        return [
            [range(first, end) for first, end in pairwise([0, *ends, len(costs)])]
            for ends in combinations(range(1, len(costs)), p - 1)
        ]

    best = lambda costs, p, step: min(
        cuts(costs, p)[::step], key=lambda cut: score(taken(cut, costs))
    )
    return [
        Mistake(hint, _refusing(lambda costs, p, step=step: best(costs, p, step)))
        for step in (1, -1)
    ]


def _filled(full):
    """One stage after another up to the average. full(cost so far, next layer's, average):
    is a stage full?"""

    def cut(costs, p):
        stages, average = [[]], sum(costs) / p
        for layer, cost in enumerate(costs):
            so_far, to_come = sum(costs[i] for i in stages[-1]), p - len(stages)
            # the layers left are just enough for the stages to come
            must = len(costs) - layer == to_come
            if stages[-1] and to_come and (must or full(so_far, cost, average)):
                stages.append([])
            stages[-1].append(layer)
        return stages

    return Mistake("filled up to the average", _refusing(cut))


MISTAKES = (
    _filled(lambda so_far, cost, average: so_far >= average),
    _filled(lambda so_far, cost, average: so_far + cost > average),
    _filled(lambda so_far, cost, average: abs(so_far - average) < abs(so_far + cost - average)),
    *_least("evenness", lambda times: max(times) - min(times)),
    *_least("evenness", lambda times: sum(time**2 for time in times)),
    *_least("fastest stage for slowest", lambda times: -min(times)),
)  # fmt: skip
