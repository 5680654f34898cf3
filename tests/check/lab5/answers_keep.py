"""Answers to Lab 5's keep: wrong ones, each with the hint that it must get, and right ones."""

from itertools import pairwise

import torch
import torch.nn.functional as F
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
        if not nobody(expert) and (taken[expert] < C if fits is None else fits(taken, expert, pairs, token, place)):
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
        parts = tokens, torch.full_like(tokens, e), torch.arange(len(tokens)), choice.weights[tokens, places]
        for column, part in zip(columns, parts, strict=True):
            column.append(part)
    return Routing(*map(torch.cat, columns))


def sorted_by_one_key(choice, n_experts, C):
    """Sorts all pairs by expert, a stable sort; the rank within an expert is the slot. In place, on copies."""
    n = len(choice.experts)
    expert, order = choice.experts.T.flatten().sort(stable=True)
    begins = torch.searchsorted(expert, torch.arange(n_experts + 1))
    keep = torch.cat([torch.arange(a, min(a + C, b)) for a, b in pairwise(begins.tolist())])
    at = order[keep]
    weight = torch.stack([choice.weights[i % n, i // n] for i in at]) if len(at) else choice.weights.flatten()[:0]
    return Routing(at % n if n else at, expert[keep], keep - begins[expert[keep]], weight)


# wrong


def two_places_at_most(choice, n_experts, C):
    line = lambda experts: [(t, p) for p in range(min(2, experts.shape[1])) for t in range(len(experts))]
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


def token_by_token(choice, n_experts, C):
    line = lambda experts: [(t, p) for t in range(len(experts)) for p in range(experts.shape[1])]
    return routing(sorted(kept(choice, n_experts, C, line)), choice)


def heaviest_first(choice, n_experts, C):
    line = lambda experts: sorted(by_places(experts), key=lambda at: -choice.weights[at].item())
    return routing(sorted(kept(choice, n_experts, C, line)), choice)


def last_tokens_first(choice, n_experts, C):
    line = lambda experts: [(t, p) for p in range(experts.shape[1]) for t in reversed(range(len(experts)))]
    return routing(sorted(kept(choice, n_experts, C, line)), choice)


def each_place_its_own_capacity(choice, n_experts, C):
    pairs = []
    for place in range(choice.experts.shape[1]):
        column = choice._replace(experts=choice.experts[:, place : place + 1])
        pairs += [(e, slot, token, place) for e, slot, token, _ in kept(column, n_experts, C)]
    return routing(sorted(pairs), choice)


def one_too_many(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C, fits=lambda taken, e, *_: taken[e] <= C)), choice)


def one_too_few(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C, fits=lambda taken, e, *_: taken[e] + 1 < C)), choice)


def over_all_experts(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C, fits=lambda taken, e, pairs, *_: len(pairs) < C)), choice)


def drops_nobody(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C, fits=lambda *_: True)), choice)


def best_only(choice, n_experts, C):
    line = lambda experts: [(token, 0) for token in range(len(experts))]
    return routing(sorted(kept(choice, n_experts, C, line)), choice)


def second_if_the_first_is_dropped(choice, n_experts, C):
    fits = lambda taken, e, pairs, token, place: taken[e] < C and all(pair[2] != token for pair in pairs)
    return routing(sorted(kept(choice, n_experts, C, fits=fits)), choice)


def second_if_the_first_is_kept(choice, n_experts, C):
    fits = lambda taken, e, pairs, token, place: taken[e] < C and sum(p[2] == token for p in pairs) == place
    return routing(sorted(kept(choice, n_experts, C, fits=fits)), choice)


def minus_one_as_an_index(choice, n_experts, C):
    taken, pairs = [0] * n_experts, []
    for token, place in by_places(choice.experts):
        expert = choice.experts[token, place].item()
        if taken[expert] < C:
            pairs.append((expert % n_experts, taken[expert], token, place))
            taken[expert] += 1
    return routing(sorted(pairs), choice)


def minus_one_takes_a_slot(choice, n_experts, C):
    taken, pairs = [0] * n_experts, []
    for token, place in by_places(choice.experts):
        expert = choice.experts[token, place].item()
        if taken[expert] < C:
            taken[expert] += 1
            if expert >= 0:
                pairs.append((expert, taken[expert] - 1, token, place))
    return routing(sorted(pairs), choice)


def keeps_minus_one(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C, nobody=lambda expert: False)), choice)


def minus_one_clamped(choice, n_experts, C):
    expert = choice.experts.t().flatten()
    slot = (F.one_hot(expert.clamp(min=0), n_experts).cumsum(0) - 1).gather(1, expert.clamp(min=0)[:, None])[:, 0]
    keep = ((expert >= 0) & (slot < C)).nonzero()[:, 0].tolist()
    n = len(choice.experts)
    return routing(sorted((expert[i].item(), slot[i].item(), i % n, i // n) for i in keep), choice)


def half_for_later_choices(choice, n_experts, C):
    fits = lambda taken, e, pairs, token, place: taken[e] < (C if place == 0 else C // 2)
    return routing(sorted(kept(choice, n_experts, C, fits=fits)), choice)


def swapped(choice, n_experts, C):
    token, expert, slot, weight = as_in_the_notebook(choice, n_experts, C)
    return Routing(expert, token, slot, weight)


def slots_per_place(choice, n_experts, C):
    pairs = sorted(kept(choice, n_experts, C))
    new = [(e, sum(o[0] == e and o[3] == place and o[1] < slot for o in pairs), token, place)
           for e, slot, token, place in pairs]  # fmt: skip
    return routing(new, choice)


def from_one(choice, n_experts, C):
    return routing([(e, s + 1, t, p) for e, s, t, p in sorted(kept(choice, n_experts, C))], choice)


def slots_by_token(choice, n_experts, C):
    pairs, new, seen = sorted(kept(choice, n_experts, C), key=lambda pair: (pair[0], pair[2])), [], {}
    for e, _, token, place in pairs:
        new.append((e, seen.get(e, 0), token, place))
        seen[e] = seen.get(e, 0) + 1
    return routing(new, choice)


def row_numbers(choice, n_experts, C):
    return routing([(e, i, t, p) for i, (e, _, t, p) in enumerate(sorted(kept(choice, n_experts, C)))], choice)


def slots_backwards(choice, n_experts, C):
    return routing([(e, C - 1 - s, t, p) for e, s, t, p in sorted(kept(choice, n_experts, C))], choice)


def not_sorted(choice, n_experts, C):
    return routing(kept(choice, n_experts, C), choice)


def sorted_by_token(choice, n_experts, C):
    return routing(sorted(kept(choice, n_experts, C), key=lambda pair: (pair[2], pair[3])), choice)


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


def weights_as_they_come(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    pairs = kept(choice, n_experts, C)
    return right._replace(weight=routing(pairs, choice).weight)


def the_first_weights(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    return right._replace(weight=choice.weights.t().flatten()[: len(right.token)])


def place_forgotten(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    return right._replace(weight=choice.weights[right.token, 0])


def probabilities(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    return right._replace(weight=choice.probabilities[right.token, right.expert])


def renormalised(choice, n_experts, C):
    right = as_in_the_notebook(choice, n_experts, C)
    total = torch.zeros(len(choice.experts), dtype=right.weight.dtype).index_add(0, right.token, right.weight)
    return right._replace(weight=right.weight / total[right.token])


def none_stacked(choice, n_experts, C):
    rows = [torch.tensor(pair) for pair in sorted(kept(choice, n_experts, C))]
    return routing(torch.stack(rows).tolist(), choice)


def floats_when_empty(choice, n_experts, C):
    expert, slot, token, place = torch.tensor(sorted(kept(choice, n_experts, C))).view(-1, 4).unbind(1)
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
    return moe.keep(choice, n_experts, C)


def not_yet(choice, n_experts, C):
    raise NotImplementedError


WRONG = {
    calls_libs: "called lib's",
    a_tuple: "no Routing",
    none_stacked: "nobody to keep",
    lists: "another form",
    token_by_token: "token by token",
    heaviest_first: "another priority",
    each_place_its_own_capacity: "counted anew for each place",
    one_too_many: "one too many, or too few",
    over_all_experts: "all experts together",
    drops_nobody: "nobody dropped",
    best_only: "first choices alone",
    second_if_the_first_is_dropped: "one choice hangs on another",
    minus_one_as_an_index: "-1 is an expert",
    swapped: "token and expert swapped",
    half_for_later_choices: "other pairs",
    slots_per_place: "slots anew for each place",
    from_one: "slots from 1",
    slots_by_token: "slots in token order",
    row_numbers: "slots over all experts",
    slots_backwards: "other slots",
    not_sorted: "not sorted",
    sorted_by_slot: "sorted by something else",
    detached: "weights detached",
    weights_as_they_come: "weights of other pairs",
    probabilities: "not the choice's weights",
    crosses_out_the_dropped: "the choice changed",
    last_tokens_first: "another priority",
    one_too_few: "one too many, or too few",
    second_if_the_first_is_kept: "one choice hangs on another",
    minus_one_takes_a_slot: "-1 is an expert",
    minus_one_clamped: "-1 is an expert",
    keeps_minus_one: "-1 is an expert",
    sorted_by_token: "not sorted",
    sorted_by_expert_and_token: "sorted by something else",
    numbers_for_weights: "weights detached",
    the_first_weights: "weights of other pairs",
    place_forgotten: "weights of other pairs",
    renormalised: "not the choice's weights",
    floats_when_empty: "nobody to keep",
    two_places_at_most: "other pairs",
    k_at_most_E: None,
    float64_weights: "another form",
    one_slot_at_least: "other pairs",
    not_yet: "not written",
}
RIGHT = [as_in_the_notebook, by_cumsum, expert_by_expert, sorted_by_one_key, as_an_answer(moe.keep)]
