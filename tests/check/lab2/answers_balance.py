"""Answers to Lab 2's balance: wrong ones, each with the hint that it must get, and right ones."""

from functools import cache
from itertools import accumulate, combinations, pairwise

import torch
from as_an_answer import as_an_answer

from lib import pipeline
from lib.pipeline import balance as libs_balance

balance = as_an_answer(libs_balance)


def refuse(costs, p):
    if not 0 < p <= len(costs):
        raise ValueError(f"{p} stages of {len(costs)} layers")


def cut(costs, ends):
    return [list(range(first, end)) for first, end in pairwise([0, *ends, len(costs)])]


def cuts(costs, p):
    refuse(costs, p)
    return [cut(costs, ends) for ends in combinations(range(1, len(costs)), p - 1)]


def sums(costs, stages):
    return [sum(costs[layer] for layer in stage) for stage in stages]


# wrong: not a cut


def calls_libs(costs, p):
    return pipeline.balance(costs, p)


def returns_nothing(costs, p):
    balance(costs, p)


def sizes(costs, p):
    return [len(stage) for stage in balance(costs, p)]


def only_the_pace(costs, p):
    return max(sums(costs, balance(costs, p)))


def firsts_and_ends(costs, p):
    return [(stage.start, stage.stop) for stage in balance(costs, p)]


def firsts_and_lasts(costs, p):
    return [(stage[0], stage[-1]) for stage in balance(costs, p)]


def the_costs_themselves(costs, p):
    return [[costs[layer] for layer in stage] for stage in balance(costs, p)]


def the_last_layer_lost(costs, p):
    return balance(costs[:-1], min(p, len(costs) - 1)) if len(costs) > 1 else balance(costs, p)


def dearest_first_to_the_least_loaded(costs, p):
    """Good where the order does not matter."""
    refuse(costs, p)
    stages = [[] for _ in range(p)]
    for layer in sorted(range(len(costs)), key=lambda layer: -costs[layer]):
        min(stages, key=lambda stage: sum(costs[i] for i in stage)).append(layer)
    return stages


def dealt_in_turn(costs, p):
    refuse(costs, p)
    return [list(range(i, len(costs), p)) for i in range(p)]


def ends_overlap(costs, p):
    return [[*stage, stage[-1] + 1] if stage[-1] + 1 < len(costs) else [*stage] for stage in balance(costs, p)]


def p_cuts(costs, p):
    return balance(costs, p + 1) if p < len(costs) else balance(costs, p)


def as_many_as_the_pace_needs(costs, p):
    """The least pace, and then as few stages as manage it."""
    pace = max(sums(costs, balance(costs, p)))
    return within(costs, pace)


def within(costs, pace):
    """Stages filled one after the other, none above `pace`."""
    stages = [[0]]
    for layer in range(1, len(costs)):
        if sum(costs[i] for i in stages[-1]) + costs[layer] > pace * (1 + 1e-12):
            stages.append([])
        stages[-1].append(layer)
    return stages


def padded_with_empty_stages(costs, p):
    stages = as_many_as_the_pace_needs(costs, p)
    return stages + [[] for _ in range(p - len(stages))]


# wrong: a cut by another rule


def as_many_layers_each(costs, p):
    refuse(costs, p)
    return cut(costs, [i * len(costs) // p for i in range(1, p)])


def as_many_layers_the_first_ones_more(costs, p):
    refuse(costs, p)
    return cut(costs, [*accumulate(len(costs) // p + (i < len(costs) % p) for i in range(p - 1))])


def filled_to_the_average(costs, p, full=lambda filled, cost, average: filled >= average):
    refuse(costs, p)
    stages, average = [[]], sum(costs) / p
    for layer, cost in enumerate(costs):
        must = len(costs) - layer == p - len(stages)
        if stages[-1] and len(stages) < p and (must or full(sum(costs[i] for i in stages[-1]), cost, average)):
            stages.append([])
        stages[-1].append(layer)
    return stages


def filled_below_the_average(costs, p):
    return filled_to_the_average(costs, p, lambda filled, cost, average: filled + cost > average)


def filled_to_the_nearest(costs, p):
    nearer = lambda filled, cost, average: abs(filled - average) < abs(filled + cost - average)
    return filled_to_the_average(costs, p, nearer)


def largest_minimum(costs, p):
    return max(cuts(costs, p), key=lambda stages: min(sums(costs, stages)))


def least_range(costs, p):
    return min(cuts(costs, p), key=lambda stages: max(sums(costs, stages)) - min(sums(costs, stages)))


def least_squares(costs, p):
    return min(cuts(costs, p), key=lambda stages: sum(time**2 for time in sums(costs, stages)))


def halves_again_and_again(costs, p):
    """The best cut in two, then the slower part in two, and so on."""
    refuse(costs, p)
    stages = [list(range(len(costs)))]
    while len(stages) < p:
        slowest = max((s for s in stages if len(s) > 1), key=lambda stage: sum(costs[i] for i in stage))
        at = stages.index(slowest)
        parts = [(slowest[:i], slowest[i:]) for i in range(1, len(slowest))]
        stages[at : at + 1] = min(parts, key=lambda both: max(sums(costs, both)))
    return stages


def the_slowest_of_all(costs, p):
    return max(cuts(costs, p), key=lambda stages: max(sums(costs, stages)))


# wrong: more stages than layers


def as_many_as_there_are(costs, p):
    return balance(costs, min(p, len(costs)))


def empty_ones_at_the_end(costs, p):
    return balance(costs, min(p, len(costs))) + [[]] * (p - len(costs))


def min_of_nothing(costs, p):
    ends = {e: max(sums(costs, cut(costs, e))) for e in combinations(range(1, len(costs)), p - 1)}
    return cut(costs, sorted(ends, key=ends.get)[0])


def asserts(costs, p):
    assert p <= len(costs), "too many stages"
    return balance(costs, p)


# wrong: at the edges


def a_generator(costs, p):
    yield from balance(costs, p)


def ranges_as_iterators(costs, p):
    return [iter(stage) for stage in balance(costs, p)]


def tensors_of_layers(costs, p):
    return [torch.tensor(stage) for stage in balance(costs, p)]


def uses_up_the_costs(costs, p):
    stages = balance(costs, p)
    costs.clear()
    return stages


LATEST = []


def one_list_for_all_calls(costs, p):
    LATEST[:] = balance(costs, p)
    return LATEST


def one_stage_for_none(costs, p):
    return balance(costs, max(p, 1))


def not_written(costs, p):
    raise NotImplementedError


WRONG = {
    calls_libs: "called lib's",
    returns_nothing: "nothing returned",
    sizes: "sizes or ends",
    only_the_pace: "sizes or ends",
    firsts_and_ends: "bounds",
    firsts_and_lasts: "bounds",
    the_costs_themselves: "costs for layers",
    the_last_layer_lost: "layers lost",
    dearest_first_to_the_least_loaded: "out of order",
    dealt_in_turn: "out of order",
    ends_overlap: "layers twice",
    p_cuts: "one cut too many",
    as_many_as_the_pace_needs: "not p stages",
    padded_with_empty_stages: "an empty stage",
    as_many_layers_each: "equal numbers of layers",
    as_many_layers_the_first_ones_more: "equal numbers of layers",
    filled_to_the_average: "filled up to the average",
    filled_below_the_average: "filled up to the average",
    filled_to_the_nearest: "filled up to the average",
    largest_minimum: "fastest stage for slowest",
    least_range: "evenness",
    least_squares: "evenness",
    halves_again_and_again: "not the best",
    the_slowest_of_all: "not the best",
    as_many_as_there_are: "no error",
    empty_ones_at_the_end: "no error",
    min_of_nothing: "not a ValueError",
    asserts: "not a ValueError",
    a_generator: "an iterator",
    ranges_as_iterators: "an iterator",
    tensors_of_layers: "no lists of layers",
    uses_up_the_costs: "the input overwritten",
    one_list_for_all_calls: "one buffer for all calls",
    one_stage_for_none: "fewer than one stage",
    not_written: "not written",
}


# right


def every_cut(costs, p):
    return min(cuts(costs, p), key=lambda stages: max(sums(costs, stages)))


def by_trying_paces(costs, p):
    """The least of all sums of neighbours for which p stages are enough; then cut until there are p. In tuples."""
    refuse(costs, p)
    n = len(costs)
    paces = sorted(sum(costs[i:j]) for i in range(n) for j in range(i + 1, n + 1))
    stages = next(s for s in (within(costs, pace) for pace in paces if pace >= max(costs)) if len(s) <= p)
    while len(stages) < p:
        at = next(i for i, stage in enumerate(stages) if len(stage) > 1)
        stages[at : at + 1] = [stages[at][:1], stages[at][1:]]
    return tuple(map(tuple, stages))


def from_the_end(costs, p):
    """Recursion on the last stage, which takes as many layers as it can among the best cuts."""
    refuse(costs, p)

    @cache
    def best(end, stages):
        if stages == 1:
            return sum(costs[:end]), (0,)
        options = []
        for first in range(stages - 1, end):
            pace, firsts = best(first, stages - 1)
            options.append((max(pace, sum(costs[first:end])), (*firsts, first)))
        return min(options)

    firsts = best(len(costs), p)[1]
    return [range(first, end) for first, end in pairwise([*firsts, len(costs)])]


RIGHT = [balance, every_cut, by_trying_paces, from_the_end]
