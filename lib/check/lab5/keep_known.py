"""Who gets a slot: GShard's priorities, and what is made of them by mistake.

A pair is (token, expert, slot, place): place 0 is the token's first choice. All functions take the choices as lists,
experts[token][place], beside the weights, E and C, and give the pairs that are kept, in the order of the routing.
"""

from typing import NamedTuple

import torch


class Pair(NamedTuple):
    token: int
    expert: int
    slot: int
    place: int


def by_priority(experts):
    """[(token, place), ...]: all first choices in token order, then all second ones, ..."""
    places = range(len(experts[0]) if experts else 0)
    return [(token, place) for place in places for token in range(len(experts))]


def by_token(experts):
    """[(token, place), ...]: all choices of token 0, then those of token 1, ..."""
    return [(token, place) for token, row in enumerate(experts) for place in range(len(row))]


def give_out(experts, weights, E, C, line=by_priority, room=None, skip=lambda row, place, kept: False, nobody=None):
    """The right pairs, but for what is given: line, who comes first; room(taken, expert, place): is there a slot?;
    nobody: the expert that -1 is taken for."""
    taken, pairs = {}, []
    for token, place in line(experts):
        expert = experts[token][place]
        if expert < 0 and nobody is not None:
            expert = nobody
        elif expert < 0 or skip(experts[token], place, {(p.token, p.place) for p in pairs if p.token == token}):
            continue
        if room(taken, expert, place) if room else taken.get((expert, None), 0) < C:
            slot = taken.get((expert, None), 0)
            pairs.append(Pair(token, expert, slot, place))
            for key in ((expert, None), (expert, place), None):
                taken[key] = taken.get(key, 0) + 1
    return sorted(pairs, key=lambda pair: (pair.expert, pair.slot))


def with_room(change):
    """The pairs if change(taken, expert, place, C) said whether there is a slot."""
    return lambda experts, weights, E, C: give_out(
        experts, weights, E, C, room=lambda taken, expert, place: change(taken, expert, place, C)
    )


def heaviest_first(experts, weights, E, C):
    """The pairs if a larger weight came before a smaller one."""
    line = lambda experts: sorted(by_token(experts), key=lambda at: -weights[at[0]][at[1]])
    return give_out(experts, weights, E, C, line)


def last_come(experts, weights, E, C):
    """The pairs if the line were served from its end."""
    return give_out(experts, weights, E, C, lambda experts: by_priority(experts)[::-1])


def last_tokens(experts, weights, E, C):
    """The pairs if, of each place, the last token came first."""
    return give_out(
        experts, weights, E, C, lambda experts: sorted(by_priority(experts), key=lambda at: (at[1], -at[0]))
    )


def minus_one_takes_slots(experts, weights, E, C, nobody=None):
    """The pairs if -1 took slots of the last expert, or of `nobody`, and then was left out."""
    kept = give_out(experts, weights, E, C, nobody=E - 1 if nobody is None else nobody)
    return [pair for pair in kept if experts[pair.token][pair.place] >= 0]


def minus_one_kept(experts, weights, E, C):
    """With -1 as an expert like any other, that comes before expert 0."""
    shifted = [[expert + 1 for expert in row] for row in experts]
    return [pair._replace(expert=pair.expert - 1) for pair in give_out(shifted, weights, E + 1, C)]


def skipping(skip):
    """The pairs without those of which skip(row, place, the token's kept) is true."""
    return lambda experts, weights, E, C: give_out(experts, weights, E, C, skip=skip)


PAIRS = [
    ("token by token, each with all its choices", lambda e, w, E, C: give_out(e, w, E, C, by_token)),
    ("the heaviest first", heaviest_first),
    ("the last first", last_come),
    ("the last first", last_tokens),
    ("C slots for each place of choice", with_room(lambda t, e, place, C: t.get((e, place), 0) < C)),
    ("C + 1 slots", with_room(lambda t, e, place, C: t.get((e, None), 0) <= C)),
    ("C - 1 slots", with_room(lambda t, e, place, C: t.get((e, None), 0) < C - 1)),
    ("C slots for all experts together", with_room(lambda t, e, place, C: t.get(None, 0) < C)),
    ("nobody dropped", with_room(lambda t, e, place, C: True)),
    ("the first choices alone", skipping(lambda row, place, kept: place > 0)),
    ("a later choice only after a dropped one", skipping(lambda row, place, kept: len(kept) > 0)),
    ("no later choice after a dropped one", skipping(lambda row, place, kept: len(kept) < place)),
    ("-1 counted as the last expert", lambda e, w, E, C: give_out(e, w, E, C, nobody=E - 1)),
    ("-1 counted as the last expert", minus_one_takes_slots),
    ("-1 counted as expert 0", lambda e, w, E, C: give_out(e, w, E, C, nobody=0)),
    ("-1 counted as expert 0", lambda e, w, E, C: minus_one_takes_slots(e, w, E, C, 0)),
    ("-1 kept as an expert", minus_one_kept),
]


def slots(kept):
    """What the slots of the right pairs may be instead, in the order of the routing."""
    in_token_order = {}
    for expert in {pair.expert for pair in kept}:
        own = sorted((pair for pair in kept if pair.expert == expert), key=lambda pair: (pair.token, pair.place))
        in_token_order |= {pair: slot for slot, pair in enumerate(own)}
    own_place = [sum(o.expert == p.expert and o.place == p.place and o.slot < p.slot for o in kept) for p in kept]
    return [
        ("numbered from 1", [pair.slot + 1 for pair in kept]),
        ("numbered in token order", [in_token_order[pair] for pair in kept]),
        ("numbered over all experts", list(range(len(kept)))),
        ("numbered anew for each place of choice", own_place),
        ("numbered as they come, over all experts", _ranks(kept, lambda pair: (pair.place, pair.token))),
        ("the token", [pair.token for pair in kept]),
        ("the place of choice", [pair.place for pair in kept]),
    ]


def orders(kept):
    """What the order of the right pairs may be instead."""
    return [
        ("as they come: by priority", sorted(kept, key=lambda pair: (pair.place, pair.token))),
        ("in token order", sorted(kept, key=lambda pair: (pair.token, pair.place))),
        ("by expert, then by token", sorted(kept, key=lambda pair: (pair.expert, pair.token))),
        ("by slot, then by expert", sorted(kept, key=lambda pair: (pair.slot, pair.expert))),
        ("backwards", kept[::-1]),
    ]


def _ranks(kept, key):
    order = sorted(kept, key=key)
    return [order.index(pair) for pair in kept]


def weights_of(pairs, weights):
    """The pairs' weights, in their order."""
    return torch.tensor([weights[pair.token, pair.place] for pair in pairs], dtype=weights.dtype)


def known_weights(kept, choice):
    """What the weights of the right pairs may be instead; asked only if they are wrong."""
    weights = choice.weights
    once = torch.zeros(len(weights), dtype=weights.dtype)
    for pair in kept:
        once[pair.token] += weights[pair.token, pair.place]
    right, m = weights_of(kept, weights), len(kept)
    arrived = sorted(kept, key=lambda pair: (pair.place, pair.token))
    return lambda: [
        ("in the order in which they come", weights_of(arrived, weights)),
        ("in the order of the tokens", weights_of(sorted(kept, key=lambda pair: (pair.token, pair.place)), weights)),
        ("those of the first pairs, kept or not", weights.flatten()[:m]),
        ("those of the first pairs, kept or not", weights.t().flatten()[:m]),
        ("the first choice's", weights[[pair.token for pair in kept], 0]),
        ("the probability", choice.probabilities[[p.token for p in kept], [p.expert for p in kept]]),
        ("1", torch.ones_like(right)),
        ("renormalised over what is kept", right / once[[pair.token for pair in kept]]),
    ]
