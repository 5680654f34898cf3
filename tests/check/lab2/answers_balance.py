"""Answers to Lab 2's balance, beside its MISTAKES: wrong ones, each with its hint,
and right ones."""

from functools import cache
from itertools import combinations, pairwise

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


def within(costs, pace):
    """Stages filled one after the other, none above `pace`."""
    stages = [[0]]
    for layer in range(1, len(costs)):
        if sum(costs[i] for i in stages[-1]) + costs[layer] > pace * (1 + 1e-12):
            stages.append([])
        stages[-1].append(layer)
    return stages


# wrong


def after(name, change):
    """change(stages, costs, p) of the right stages."""
    answer = lambda costs, p: change(balance(costs, p), costs, p)
    answer.__name__ = name
    return answer


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


def p_cuts(costs, p):
    return balance(costs, p + 1) if p < len(costs) else balance(costs, p)


def as_few_as_the_pace_needs(costs, p):
    return within(costs, max(sums(costs, balance(costs, p))))


def padded_with_empty_stages(costs, p):
    stages = as_few_as_the_pace_needs(costs, p)
    return stages + [[] for _ in range(p - len(stages))]


def as_many_layers_each(costs, p):
    refuse(costs, p)
    return cut(costs, [i * len(costs) // p for i in range(1, p)])


def halves_again_and_again(costs, p):
    """The best cut in two, then the slower part in two, and so on."""
    refuse(costs, p)
    stages = [list(range(len(costs)))]
    while len(stages) < p:
        slowest = max(
            (s for s in stages if len(s) > 1), key=lambda stage: sum(costs[i] for i in stage)
        )
        at = stages.index(slowest)
        parts = [(slowest[:i], slowest[i:]) for i in range(1, len(slowest))]
        stages[at : at + 1] = min(parts, key=lambda both: max(sums(costs, both)))
    return stages


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


def a_generator(costs, p):
    yield from balance(costs, p)


LATEST = []


def one_list_for_all_calls(costs, p):
    LATEST[:] = balance(costs, p)
    return LATEST


def right_once(costs, p, calls=[]):  # noqa: B006
    """What it has seen before it answers with the layers in two stages of one and the rest."""
    calls.append(costs)
    again = calls.count(costs) > 1 and 1 < p < len(costs)
    return cut(costs, range(1, p)) if again else balance(costs, p)


def a_table_for_all_calls(costs, p, known={}):  # noqa: B006
    """The split by the numbers of layers and stages alone."""
    refuse(costs, p)
    return known.setdefault((len(costs), p), balance(costs, p))


def paces_for_all_calls(costs, p, known={}):  # noqa: B006
    """The best stages from layer i on, by their number and i alone."""
    refuse(costs, p)
    n = len(costs)

    def best(k, i):
        if (k, i) not in known:
            options = [(sum(costs[i:]), [range(i, n)])]
            if k > 1:
                firsts = [(j, best(k - 1, j)) for j in range(i + 1, n - k + 2)]
                options = [(max(sum(costs[i:j]), t), [range(i, j), *s]) for j, (t, s) in firsts]
            known[k, i] = min(options, key=lambda option: option[0])
        return known[k, i]

    return best(p, 0)[1]


def to_a_thousandth(costs, p):
    """Bisects the pace until it is known to 1e-3."""
    refuse(costs, p)
    low, high = max(costs), sum(costs)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if len(within(costs, middle)) <= p else (middle, high)
    stages = within(costs, high)
    while len(stages) < p:
        at = next(i for i, stage in enumerate(stages) if len(stage) > 1)
        stages[at : at + 1] = [stages[at][:1], stages[at][1:]]
    return stages


def fewer_stages_than_layers(costs, p):
    if p >= len(costs):
        raise ValueError(f"{p} stages of {len(costs)} layers")
    return balance(costs, p)


def one_stage_for_none(costs, p):
    return balance(costs, max(p, 1))


def not_written(costs, p):
    raise NotImplementedError


WRONG = {
    pipeline.balance: "called what it builds",
    after("returns_nothing", lambda stages, *_: None): "nothing returned",
    after("sizes", lambda stages, *_: [len(stage) for stage in stages]): "sizes or ends",
    after("only_the_pace", lambda stages, costs, p: max(sums(costs, stages))): "sizes or ends",
    after("firsts_and_ends", lambda stages, *_: [(stage.start,
        stage.stop) for stage in stages]): "bounds",
    after("firsts_and_lasts", lambda stages, *_: [(stage[0],
        stage[-1]) for stage in stages]): "bounds",
    after("the_costs_themselves", lambda stages, costs,
        p: [[costs[i] for i in stage] for stage in stages]):
        "costs for layers",
    the_last_layer_lost: "layers lost",
    dearest_first_to_the_least_loaded: "out of order",
    dealt_in_turn: "out of order",
    after("ends_overlap", lambda stages, costs, p: [[*stage, *range(stage[-1] + 1,
        len(costs))][: len(stage) + 1]
                                                     for stage in stages]): "layers twice",
    p_cuts: "not p stages",
    as_few_as_the_pace_needs: "not p stages",
    padded_with_empty_stages: "an empty stage",
    as_many_layers_each: "equal numbers of layers",
    halves_again_and_again: "not the best",
    after("whole_costs", lambda stages, costs, p: balance([int(c) for c in costs],
        p)): "whole numbers only",
    as_many_as_there_are: "no error",
    empty_ones_at_the_end: "no error",
    min_of_nothing: "not a ValueError",
    asserts: "not a ValueError",
    a_table_for_all_calls: "kept from an earlier call",
    paces_for_all_calls: "layers that do not exist",
    to_a_thousandth: "an absolute tolerance",
    fewer_stages_than_layers: "as many stages as layers",
    a_generator: "an iterator",
    after("ranges_as_iterators", lambda stages,
        *_: [iter(stage) for stage in stages]): "an iterator",
    after("tensors_of_layers", lambda stages,
        *_: [torch.tensor(stage) for stage in stages]): "no lists of layers",
    after("uses_up_the_costs", lambda stages, costs,
        p: costs.clear() or stages): "arguments changed",
    one_list_for_all_calls: "used again by a later call",
    right_once: "used again by a later call",
    one_stage_for_none: "fewer than one stage",
    not_written: "not written",
}  # fmt: skip


# right


def every_cut(costs, p):
    return min(cuts(costs, p), key=lambda stages: max(sums(costs, stages)))


def by_trying_paces(costs, p):
    """The least of all sums of neighbours for which p stages are enough; then cut until
    there are p. In tuples."""
    refuse(costs, p)
    n = len(costs)
    paces = sorted(sum(costs[i:j]) for i in range(n) for j in range(i + 1, n + 1))
    stages = next(
        s for s in (within(costs, pace) for pace in paces if pace >= max(costs)) if len(s) <= p
    )
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
