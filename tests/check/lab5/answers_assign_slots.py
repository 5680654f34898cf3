"""Answers to Lab 5's assign_slots: wrong ones, each with the hint that it must get, and right
ones."""

from collections import Counter
from itertools import pairwise

import torch
from as_an_answer import as_an_answer

from lib import moe
from lib.moe import Routing


def by_places(experts):
    n, k = experts.shape
    return [(token, place) for place in range(k) for token in range(n)]


def routing(pairs, choice):
    """pairs: [(expert, slot, token, place), ...], in the order that is returned."""
    expert, slot, token, place = torch.tensor(pairs, dtype=torch.int64).view(-1, 4).unbind(1)
    return Routing(token, expert, slot, choice.weights[token, place])


def kept(choice, n_experts, C, line=by_places, fits=None, nobody=lambda expert: expert < 0):
    """The right pairs, but for what is given. fits(taken, expert, pairs, token, place)"""
    taken, pairs = [0] * (n_experts + 1), []
    for token, place in line(choice.experts):
        expert = choice.experts[token, place].item()
        if not nobody(expert) and (
            taken[expert] < C if fits is None else fits(taken, expert, pairs, token, place)
        ):
            pairs.append((expert, taken[expert], token, place))
            taken[expert] += 1
    return pairs


# right


def as_in_the_notebook(choice, n_experts, C):
    k = choice.experts.shape[1]
    taken, pairs = [0] * n_experts, []
    for place in range(k):
        for token, expert in enumerate(choice.experts[:, place].tolist()):
            if expert >= 0 and taken[expert] < C:
                pairs.append((expert, taken[expert], token, place))
                taken[expert] += 1
    return routing(sorted(pairs), choice)


def by_cumsum(choice, n_experts, C):
    n, k = choice.experts.shape
    expert, weight = choice.experts.T.reshape(-1), choice.weights.T.reshape(-1)
    token = torch.arange(n).repeat(k)
    mask = expert[:, None] == torch.arange(n_experts)
    slot = (mask.cumsum(0) - 1)[torch.arange(n * k), expert.clamp(min=0)]
    fits = (expert >= 0) & (slot < C)
    token, expert, slot, weight = (column[fits] for column in (token, expert, slot, weight))
    order = (expert * (n * k + 1) + slot).argsort()
    return Routing(token[order], expert[order], slot[order], weight[order])


def expert_by_expert(choice, n_experts, C):
    columns = [[], [], [], []]
    for e in range(n_experts):
        places, tokens = (choice.experts.t() == e).nonzero(as_tuple=True)
        places, tokens = places[:C], tokens[:C]
        parts = (
            tokens,
            torch.full_like(tokens, e),
            torch.arange(len(tokens)),
            choice.weights[tokens, places],
        )
        for column, part in zip(columns, parts, strict=True):
            column.append(part)
    return Routing(*map(torch.cat, columns))


def sorted_by_one_key(choice, n_experts, C):
    """Sorts all pairs by expert, a stable sort; the rank within an expert is the slot. In
    place, on copies."""
    n = len(choice.experts)
    expert, order = choice.experts.T.flatten().sort(stable=True)
    begins = torch.searchsorted(expert, torch.arange(n_experts + 1))
    keep = torch.cat([torch.arange(a, min(a + C, b)) for a, b in pairwise(begins.tolist())])
    at = order[keep]
    weight = (
        torch.stack([choice.weights[i % n, i // n] for i in at])
        if len(at)
        else choice.weights.flatten()[:0]
    )
    return Routing(at % n if n else at, expert[keep], keep - begins[expert[keep]], weight)


# wrong


def two_places_always(choice, n_experts, C):
    line = lambda experts: [(t, p) for p in range(2) for t in range(len(experts))]
    return routing(sorted(kept(choice, n_experts, C, line)), choice)


def k_at_most_E(choice, n_experts, C):
    if choice.experts.shape[1] > n_experts:
        raise ValueError("more choices than experts")
    return as_in_the_notebook(choice, n_experts, C)


def float64_weights(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    return right._replace(weight=right.weight.double())


def one_slot_at_least(choice, n_experts, C):
    return as_in_the_notebook(choice, n_experts, max(1, C))


def overflow_to_another_expert(choice, n_experts, C):
    taken, pairs = Counter(), []
    for token, place in by_places(choice.experts):
        expert = choice.experts[token, place].item()
        free = [e for e in (expert, *range(n_experts)) if taken[e] < C]
        if expert >= 0 and free:
            pairs.append((free[0], taken[free[0]], token, place))
            taken[free[0]] += 1
    return routing(sorted(pairs), choice)


def half_for_later_choices(choice, n_experts, C):
    fits = lambda taken, e, pairs, token, place: taken[e] < (C if place == 0 else C // 2)
    return routing(sorted(kept(choice, n_experts, C, fits=fits)), choice)


def slots_backwards(choice, n_experts, C):
    return routing(
        [(e, C - 1 - s, t, p) for e, s, t, p in sorted(kept(choice, n_experts, C))], choice
    )


def sorted_by_slot(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C), key=lambda pair: (pair[1], pair[0])), choice)


def sorted_by_expert_and_token(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C), key=lambda pair: (pair[0], pair[2])), choice)


def detached(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    return right._replace(weight=right.weight.detach())


def numbers_for_weights(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    return right._replace(weight=torch.tensor(right.weight.tolist(), dtype=choice.weights.dtype))


def probabilities(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    return right._replace(weight=choice.probabilities[right.token, right.expert])


def renormalised(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    total = torch.zeros(len(choice.experts), dtype=right.weight.dtype).index_add(
        0, right.token, right.weight
    )
    return right._replace(weight=right.weight / total[right.token])


def none_stacked(choice, n_experts, C):
    rows = [torch.tensor(pair) for pair in sorted(kept(choice, n_experts, C))]
    return routing(torch.stack(rows).tolist(), choice)


def floats_when_empty(choice, n_experts, C):
    expert, slot, token, place = (
        torch.tensor(sorted(kept(choice, n_experts, C))).view(-1, 4).unbind(1)
    )
    return Routing(token, expert, slot, choice.weights[token.long(), place.long()])


def lists(choice, n_experts, C):
    return Routing(*(column.tolist() for column in as_in_the_notebook(choice, n_experts, C)))


def a_tuple(choice, n_experts, C):
    return tuple(as_in_the_notebook(choice, n_experts, C))


def crosses_out_the_dropped(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    choice.experts.fill_(-1)
    choice.experts[right.token, 0] = right.expert
    return right


def calls_libs(choice, n_experts, C):
    return moe.assign_slots(choice, n_experts, C)


def not_yet(choice, n_experts, C):
    raise NotImplementedError


WRONG = {
    calls_libs: "called what it builds",
    a_tuple: "no Routing",
    none_stacked: "nobody to keep",
    lists: "another form",
    half_for_later_choices: "other pairs",
    overflow_to_another_expert: "not a choice",
    slots_backwards: "other slots",
    sorted_by_slot: "sorted by something else",
    detached: "weights detached",
    probabilities: "not the choice's weights",
    crosses_out_the_dropped: "arguments changed",
    sorted_by_expert_and_token: "sorted by something else",
    numbers_for_weights: "weights detached",
    renormalised: "not the choice's weights",
    floats_when_empty: "nobody to keep",
    two_places_always: "another k",
    k_at_most_E: "an error in one case",
    float64_weights: "another form",
    one_slot_at_least: "other pairs",
    not_yet: "not written",
}
RIGHT = [
    as_in_the_notebook,
    by_cumsum,
    expert_by_expert,
    sorted_by_one_key,
    as_an_answer(moe.assign_slots),
]
