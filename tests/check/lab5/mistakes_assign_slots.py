"""Known mistakes of assign_slots: who gets a slot, and what is made of it.

Pairs are made of the choices as lists, experts[token][place], the weights, E and C, in the order of
the routing.
"""

from typing import NamedTuple

import torch
from mistakes import Mistake

from lib.moe import Routing


class Pair(NamedTuple):
    token: int
    expert: int
    slot: int
    place: int  # 0: it is the token's first choice


def by_priority(experts):
    """[(token, place), ...]: all first choices in token order, then all second ones, ..."""
    places = range(len(experts[0]) if experts else 0)
    return [(token, place) for place in places for token in range(len(experts))]


def by_token(experts):
    """[(token, place), ...]: all choices of token 0, then those of token 1, ..."""
    return [(token, place) for token, row in enumerate(experts) for place in range(len(row))]


def give_out(
    experts,
    weights,
    E,
    C,
    line=by_priority,
    room=None,
    skip=lambda row, place, kept: False,
    nobody=None,
):
    """The right pairs, but for what is given: line, who comes first; room(taken, expert, place): is
    there a slot?; nobody: the expert that -1 is taken for."""
    taken, pairs = {}, []
    for token, place in line(experts):
        expert = experts[token][place]
        if expert < 0 and nobody is not None:
            expert = nobody
        elif expert < 0 or skip(
            experts[token], place, {(p.token, p.place) for p in pairs if p.token == token}
        ):
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


def heaviest_of_each_place(experts, weights, E, C):
    """The pairs if, of each place, a larger weight came before a smaller one."""
    line = lambda experts: sorted(
        by_priority(experts), key=lambda at: (at[1], -weights[at[0]][at[1]])
    )
    return give_out(experts, weights, E, C, line)


def last_come(experts, weights, E, C):
    """The pairs if the line were served from its end."""
    return give_out(experts, weights, E, C, lambda experts: by_priority(experts)[::-1])


def last_tokens(experts, weights, E, C):
    """The pairs if, of each place, the last token came first."""
    return give_out(
        experts,
        weights,
        E,
        C,
        lambda experts: sorted(by_priority(experts), key=lambda at: (at[1], -at[0])),
    )


def minus_one_takes_slots(experts, weights, E, C, nobody=None):
    """The pairs if -1 took slots of the last expert, or of `nobody`, and then was left out."""
    kept = give_out(experts, weights, E, C, nobody=E - 1 if nobody is None else nobody)
    return [pair for pair in kept if experts[pair.token][pair.place] >= 0]


def minus_one_kept(experts, weights, E, C):
    """With -1 as an expert like any other, that comes before expert 0."""
    shifted = [[expert + 1 for expert in row] for row in experts]
    return [pair._replace(expert=pair.expert - 1) for pair in give_out(shifted, weights, E + 1, C)]


def minus_one_counts(experts, weights, E, C):
    """With -1 kept as it is, and counted with the last expert, as taken[-1] is."""
    pairs = give_out(experts, weights, E, C, nobody=E - 1)
    pairs = [pair._replace(expert=experts[pair.token][pair.place]) for pair in pairs]
    return sorted(pairs, key=lambda pair: (pair.expert, pair.slot))


def skipping(skip):
    """The pairs without those of which skip(row, place, the token's kept) is true."""
    return lambda experts, weights, E, C: give_out(experts, weights, E, C, skip=skip)


def _routing(pairs, choice, slots=None, weights=None):
    token, expert, slot, place = torch.tensor(pairs, dtype=torch.int64).view(-1, 4).unbind(1)
    slot = slot if slots is None else torch.tensor(slots, dtype=torch.int64)
    return Routing(
        token, expert, slot, choice.weights[token, place] if weights is None else weights
    )


def _kept(choice, E, C):
    return give_out(choice.experts.tolist(), choice.weights.tolist(), E, C)


def _pairs(hint, *changes):
    """change(experts, weights, E, C) in place of `give_out`; one mistake for each."""
    make = lambda change, choice, E, C: _routing(
        change(choice.experts.tolist(), choice.weights.tolist(), E, C), choice
    )
    return [Mistake(hint, lambda *args, change=change: make(change, *args)) for change in changes]


def _slots(hint, *changes):
    """change(the right pairs) -> their slots; one mistake for each."""
    make = lambda change, choice, E, C: _routing(
        _kept(choice, E, C), choice, change(_kept(choice, E, C))
    )
    return [Mistake(hint, lambda *args, change=change: make(change, *args)) for change in changes]


def _orders(hint, *changes):
    """change(the right pairs) -> the same in another order; one mistake for each."""
    make = lambda change, choice, E, C: _routing(change(_kept(choice, E, C)), choice)
    return [Mistake(hint, lambda *args, change=change: make(change, *args)) for change in changes]


def _weights(hint, *changes):
    """change(choice, the right pairs) -> their weights; one mistake for each."""
    make = lambda change, choice, E, C: _routing(
        _kept(choice, E, C), choice, weights=change(choice, _kept(choice, E, C))
    )
    return [Mistake(hint, lambda *args, change=change: make(change, *args)) for change in changes]


def _swapped(choice, E, C):
    right = _routing(_kept(choice, E, C), choice)
    return right._replace(token=right.expert, expert=right.token)


def _of(choice, pairs, key):
    return _routing(sorted(pairs, key=key), choice).weight


def _in_token_order(kept):
    """Slots of the right pairs, numbered by token."""
    slots = {}
    for expert in {pair.expert for pair in kept}:
        own = sorted(
            (pair for pair in kept if pair.expert == expert),
            key=lambda pair: (pair.token, pair.place),
        )
        slots |= {pair: slot for slot, pair in enumerate(own)}
    return [slots[pair] for pair in kept]


def _rows_and_slots_by_token(choice, E, C):
    right = sorted(_kept(choice, E, C), key=lambda pair: (pair.expert, pair.token))
    return _routing(
        right, choice, [sum(o.expert == p.expert for o in right[:i]) for i, p in enumerate(right)]
    )


def _each_place(kept):
    return [
        sum(o.expert == p.expert and o.place == p.place and o.slot < p.slot for o in kept)
        for p in kept
    ]


def _as_they_come(kept):
    order = sorted(kept, key=_arrived)
    return [order.index(pair) for pair in kept]


def _arrived(pair):
    return pair.place, pair.token


def _by_token(pair):
    return pair.token, pair.place


MISTAKES = (
    *_pairs("token by token", lambda e, w, E, C: give_out(e, w, E, C, by_token)),
    *_pairs("another priority", heaviest_first, last_come, last_tokens, heaviest_of_each_place),
    *_pairs("the last choices first",
            lambda e, w, E, C: give_out(e, w, E, C, lambda e: sorted(by_priority(e),
                key=lambda at: -at[1]))),
    *_pairs("counted anew for each place",
            with_room(lambda t, e, place, C: t.get((e, place), 0) < C)),
    *_pairs("one too many, or too few",
            with_room(lambda t, e, place, C: t.get((e, None), 0) <= C),
            with_room(lambda t, e, place, C: t.get((e, None), 0) < C - 1)),
    *_pairs("all experts together", with_room(lambda t, e, place, C: t.get(None, 0) < C)),
    *_pairs("nobody dropped", with_room(lambda t, e, place, C: True)),
    *_pairs("first choices alone",
            skipping(lambda row, place, kept: place > 0),
            skipping(lambda row, place, kept: place > 1)),
    *_pairs("one choice hangs on another",
            skipping(lambda row, place, kept: len(kept) > 0),
            skipping(lambda row, place, kept: len(kept) < place),
            skipping(lambda row, place, kept: place > 0 and not kept)),
    *_pairs("by weight",
            lambda e, w, E, C: give_out(
                [[x if v > 0 else -1 for x, v in zip(*of, strict=True)] for of in zip(e, w,
                    strict=True)], w, E, C)),
    *_pairs("-1 is an expert",
            lambda e, w, E, C: give_out(e, w, E, C, nobody=E - 1), minus_one_takes_slots,
            lambda e, w, E, C: give_out(e, w, E, C, nobody=0),
            lambda e, w, E, C: minus_one_takes_slots(e, w, E, C, 0), minus_one_kept,
            minus_one_counts),
    Mistake("token and expert swapped", _swapped),
    *_slots("slots from 1", lambda kept: [pair.slot + 1 for pair in kept]),
    Mistake("slots in token order", _rows_and_slots_by_token),
    *_slots("slots in token order", _in_token_order),
    *_slots("slots over all experts", lambda kept: list(range(len(kept))), _as_they_come),
    *_slots("slots anew for each place", _each_place),
    *_orders("not sorted",
             lambda kept: sorted(kept, key=_arrived), lambda kept: sorted(kept, key=_by_token)),
    *_weights("weights of other pairs",
              lambda choice, kept: _of(choice, kept, _arrived),
              lambda choice, kept: _of(choice, kept, _by_token),
              lambda choice, kept: choice.weights.flatten()[: len(kept)],
              lambda choice, kept: choice.weights.t().flatten()[: len(kept)],
              lambda choice, kept: choice.weights[[pair.token for pair in kept], 0]),
)  # fmt: skip
