"""Answers to Lab 5's gates, function by function: wrong ones, each with the hint that it must get, and right ones."""

import numpy as np
import torch
import torch.nn.functional as F
from as_an_answer import as_an_answer

from lib import moe
from lib.moe import Choice, best


def parts(g):
    return g / g.sum(-1, keepdim=True)


# switch_gate: right


def switch_as_in_the_notebook(logits):
    p = logits.softmax(-1)
    experts = best(logits, 1)
    return Choice(experts, p.gather(1, experts), p)


def switch_by_argmax(logits):
    log_p = F.log_softmax(logits, dim=1)
    experts = log_p.argmax(-1)
    one_hot = F.one_hot(experts, logits.shape[1])
    return Choice(experts[:, None], (log_p * one_hot).sum(-1, keepdim=True).exp(), log_p.exp())


def switch_by_hand(logits):
    e = (logits - logits.amax(-1, keepdim=True)).exp()
    p = e / e.sum(-1, keepdim=True)
    weights, experts = p.max(-1, keepdim=True)
    return Choice(experts, weights, p)


# switch_gate: wrong


def switch_changed(logits, weights=None, p=None, experts=None):
    right = switch_as_in_the_notebook(logits)
    return Choice(*(given if given is not None else r for given, r in zip((experts, weights, p), right, strict=True)))


def flat(logits):
    p = logits.softmax(-1)
    weights, experts = p.max(-1)
    return Choice(experts, weights, p)


def forgets_to_return(logits):
    switch_as_in_the_notebook(logits)


def swapped(logits):
    weights, experts = logits.softmax(-1).max(-1, keepdim=True)
    return Choice(weights, experts, logits.softmax(-1))


def exp_of_the_logits(logits):
    p = parts(logits.exp())
    experts = best(logits, 1)
    return Choice(experts, p.gather(1, experts), p)


def counted_from_1(logits):
    return switch_changed(logits, experts=best(logits, 1) + 1)


def the_last_of_equals(logits):
    p = logits.softmax(-1)
    experts = logits.shape[1] - 1 - logits.flip(1).argmax(-1, keepdim=True)
    return Choice(experts, p.gather(1, experts), p)


def logits_for_probabilities(logits):
    return switch_changed(logits, p=logits)


def detached_weights(logits):
    return switch_changed(logits, switch_as_in_the_notebook(logits).weights.detach())


def from_a_list(logits):
    p = logits.softmax(-1).tolist()
    experts = [max(range(len(row)), key=row.__getitem__) for row in p]
    weights = torch.tensor([[row[e]] for row, e in zip(p, experts, strict=True)], dtype=logits.dtype)
    return Choice(torch.tensor(experts).view(-1, 1), weights.view(-1, 1), torch.tensor(p, dtype=logits.dtype))


def a_straight_1(logits):
    w = switch_as_in_the_notebook(logits).weights
    return switch_changed(logits, w.detach() + w / w.detach() - 1)


def token_by_token(logits):
    rows = [switch_as_in_the_notebook(row[None]) for row in logits]
    return Choice(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


def in_place(logits):
    logits -= logits.amax(-1, keepdim=True)
    return switch_as_in_the_notebook(logits)


def calls_libs_switch(logits):
    return moe.switch_gate(logits)


def no_gate_yet(*args):
    raise NotImplementedError


def always_float64(logits):
    return switch_as_in_the_notebook(logits.double())


CHOSEN = {}


def chosen_once_per_shape(logits):
    """The experts of the first set of a shape are those of all later ones."""
    experts = CHOSEN.setdefault(tuple(logits.shape), best(logits, 1))
    p = logits.softmax(-1)
    return Choice(experts, p.gather(1, experts), p)


# top_k_gate: right


def top_k_as_in_the_notebook(logits, k):
    p = logits.softmax(-1)
    experts = best(logits, k)
    return Choice(experts, parts(p.gather(1, experts)), p)


def softmax_over_the_chosen(logits, k):
    experts = best(logits, k)
    return Choice(experts, logits.gather(1, experts).softmax(-1), logits.softmax(-1))


def the_others_at_minus_infinity(logits, k):
    experts = torch.sort(-logits, dim=1, stable=True).indices[:, :k]
    masked = torch.full_like(logits, -torch.inf).scatter(1, experts, logits.gather(1, experts))
    return Choice(experts, F.softmax(masked, 1).gather(1, experts), F.softmax(logits, 1))


# top_k_gate: wrong


def top_k(logits, k, weight=parts, p=F.softmax, experts=None):
    p = p(logits, -1)
    experts = best(logits, k) if experts is None else experts
    return Choice(experts, weight(p.gather(1, experts)), p)


def top_k_of_exp(logits, k):
    return top_k(logits, k, p=lambda z, dim: parts(z.exp()))


def always_two(logits, k):
    return top_k(logits, min(2, logits.shape[1]))


def larger_numbers_first(logits, k):
    """What topk may do: of equal ones the last comes first."""
    return logits.shape[1] - 1 - best(logits.flip(1), k)


def the_last_of_equals_first(logits, k):
    return top_k(logits, k, experts=larger_numbers_first(logits, k))


def logs_for_probabilities(logits, k):
    return top_k(logits, k)._replace(probabilities=logits.log_softmax(-1))


def squares(logits, k):
    return top_k(logits, k, lambda g: parts(g**2))


def weights_without_gradient(logits, k):
    with torch.no_grad():
        return top_k(logits, k)


def half_a_gradient(logits, k):
    w = top_k(logits, k).weights
    return top_k(logits, k)._replace(weights=(w + w.detach()) / 2)


def one_by_one(logits, k):
    p = logits.softmax(-1)
    rows = [sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in logits.tolist()]
    weights = torch.stack([parts(p[n, row]) for n, row in enumerate(rows)])
    return Choice(torch.tensor(rows), weights, p)


def numbers_as_floats(logits, k):
    experts, weights, p = top_k(logits, k)
    return Choice(experts.double(), weights, p)


def crosses_out_what_it_took(logits, k):
    p, experts = logits.softmax(-1), []
    for _ in range(k):
        experts.append(logits.argmax(-1))
        logits[torch.arange(len(logits)), experts[-1]] = -torch.inf
    experts = torch.stack(experts, 1)
    return Choice(experts, parts(p.gather(1, experts)), p)


def returns_a_tuple(logits, k):
    return tuple(top_k(logits, k))


def calls_libs_top_k(logits, k):
    return moe.top_k_gate(logits, k)


def top_k_in_float64(logits, k):
    return top_k_as_in_the_notebook(logits.double(), k)


def at_most_two(logits, k):
    return top_k_as_in_the_notebook(logits, min(k, 2))


# gshard_gate: right


def gshard_as_in_the_notebook(logits, uniform):
    experts, weights, p = top_k(logits, 2)
    taken = uniform < 2 * weights[:, 1].detach()
    taken = torch.stack([torch.ones_like(taken), taken], dim=1)
    return Choice(experts.where(taken, -1), weights.where(taken, 0.0), p)


def on_libs_top_k(logits, uniform):
    experts, weights, p = moe.top_k_gate(logits, 2)
    left = F.pad((uniform >= 2 * weights[:, 1])[:, None], (1, 0))
    return Choice(experts.masked_fill(left, -1), weights.masked_fill(left, 0), p)


def in_two_columns(logits, uniform):
    p = logits.softmax(-1)
    first, second = best(logits, 2).unbind(1)
    g1, g2 = (p.gather(1, e[:, None])[:, 0] for e in (first, second))
    taken = (2 * g2 / (g1 + g2) > uniform).to(p.dtype)
    second = second * taken.long() - (1 - taken.long())
    return Choice(torch.stack((first, second), 1), torch.stack((g1, g2 * taken), 1) / (g1 + g2)[:, None], p)


# gshard_gate: wrong


def gshard(logits, taken, change=None, weight=parts):
    """The right answer, but for what is given. taken(weights, g); change(experts, weights, mask) -> both."""
    experts, g, p = top_k(logits, 2, lambda g: g)
    weights = weight(g)
    mask = taken(parts(g), g)
    mask = torch.stack([torch.ones_like(mask), mask], 1)
    experts, weights = (change or masked)(experts, weights, mask)
    return Choice(experts, weights, p)


def masked(experts, weights, mask):
    return experts.where(mask, -1), weights.where(mask, 0.0)


def a_random_number(logits, uniform):
    return gshard(logits, lambda w, g: torch.rand(len(w)) < 2 * w[:, 1])


def bernoulli(logits, uniform):
    return gshard(logits, lambda w, g: torch.bernoulli((2 * w[:, 1]).clamp(max=1)).bool())


def experts_in_place(logits, uniform):
    experts, weights, p = top_k(logits, 2)
    left = uniform >= 2 * weights[:, 1]
    experts[left, 1] = -1  # backward of gather needs them as they were
    return Choice(experts, torch.stack([weights[:, 0], weights[:, 1].masked_fill(left, 0)], 1), p)


def the_whole_token(logits, uniform):
    change = lambda e, w, mask: masked(e, w, mask[:, 1:].expand(-1, 2))
    return gshard(logits, lambda w, g: uniform < 2 * w[:, 1], change)


def through_the_mask(logits, uniform):
    def change(experts, w, mask):
        soft = (2 * w[:, 1:]).clamp(max=1)
        straight = mask[:, 1:] + soft - soft.detach()
        return experts.where(mask, -1), torch.cat([w[:, :1], w[:, 1:] * straight], 1)

    return gshard(logits, lambda w, g: uniform < 2 * w[:, 1], change)


def gshard_in_numpy(logits, uniform):
    experts, weights, p = (t.detach().numpy().copy() for t in top_k(logits, 2))
    left = uniform.numpy() >= 2 * weights[:, 1]
    experts[left, 1], weights[left, 1] = -1, 0
    return Choice(*map(torch.from_numpy, (experts, np.ascontiguousarray(weights), p)))


def gshard_last_of_equals(logits, uniform):
    experts = larger_numbers_first(logits, 2)
    weights = parts(logits.softmax(-1).gather(1, experts))
    return Choice(
        *masked(experts, weights, torch.stack([uniform < 2, uniform < 2 * weights[:, 1]], 1)), logits.softmax(-1)
    )


def gshard_exp(logits, uniform):
    p = parts(logits.exp())
    experts = best(logits, 2)
    weights = parts(p.gather(1, experts))
    return Choice(*masked(experts, weights, torch.stack([uniform < 2, uniform < 2 * weights[:, 1]], 1)), p)


def minus_one_as_float(logits, uniform):
    change = lambda e, w, mask: (e.where(mask, -1.0), w.where(mask, 0.0))
    return gshard(logits, lambda w, g: uniform < 2 * w[:, 1], change)


def gshard_logits(logits, uniform):
    return gshard_as_in_the_notebook(logits, uniform)._replace(probabilities=logits)


def gshard_row_by_row(logits, uniform):
    rows = [gshard_as_in_the_notebook(z[None], u[None]) for z, u in zip(logits, uniform, strict=True)]
    return Choice(*(torch.cat(column) for column in zip(*rows, strict=True)))


def halves_uniform(logits, uniform):
    uniform /= 2
    return gshard(logits, lambda w, g: uniform < w[:, 1])


def no_return(logits, uniform):
    gshard_as_in_the_notebook(logits, uniform)


def calls_libs_gshard(logits, uniform):
    return moe.gshard_gate(logits, uniform)


def a_mask_of_float64(logits, uniform):
    right = gshard_as_in_the_notebook(logits, uniform)
    return right._replace(weights=right.weights * (right.experts >= 0).double())


WRONG = {
    "switch_gate": {
        always_float64: "another dtype",
        chosen_once_per_shape: "another choice",
        flat: "no dimension of choices",
        calls_libs_switch: "called lib's",
        forgets_to_return: "no Choice",
        swapped: "experts are no numbers",
        exp_of_the_logits: "exp of large logits",
        token_by_token: "a set of no tokens",
        the_last_of_equals: "equal logits",
        detached_weights: "no gradient",
        a_straight_1: "another gradient",
        logits_for_probabilities: "other probabilities",
        in_place: "in place",
        counted_from_1: "another choice",
        from_a_list: "no gradient",
        no_gate_yet: "not written",
    },
    "top_k_gate": {
        top_k_in_float64: "another dtype",
        at_most_two: "not k of them",
        calls_libs_top_k: "called lib's",
        returns_a_tuple: "no Choice",
        numbers_as_floats: "experts are no numbers",
        top_k_of_exp: "exp of large logits",
        one_by_one: "a set of no tokens",
        the_last_of_equals_first: "equal logits",
        weights_without_gradient: "no gradient",
        logs_for_probabilities: "other probabilities",
        half_a_gradient: "another gradient",
        crosses_out_what_it_took: "in place",
        always_two: "not k of them",
        squares: "another choice",
        no_gate_yet: "not written",
    },
    "gshard_gate": {
        a_mask_of_float64: "another dtype",
        a_random_number: "numbers of its own",
        calls_libs_gshard: "called lib's",
        no_return: "no Choice",
        minus_one_as_float: "experts are no numbers",
        gshard_exp: "exp of large logits",
        gshard_row_by_row: "a set of no tokens",
        gshard_last_of_equals: "equal logits",
        gshard_in_numpy: "no gradient",
        through_the_mask: "another gradient",
        gshard_logits: "other probabilities",
        halves_uniform: "in place",
        the_whole_token: "another choice",
        bernoulli: "numbers of its own",
        experts_in_place: "in place",
        no_gate_yet: "not written",
    },
}
RIGHT = {
    "switch_gate": [switch_as_in_the_notebook, switch_by_argmax, switch_by_hand, as_an_answer(moe.switch_gate)],
    "top_k_gate": [
        top_k_as_in_the_notebook,
        softmax_over_the_chosen,
        the_others_at_minus_infinity,
        as_an_answer(moe.top_k_gate),
    ],
    "gshard_gate": [gshard_as_in_the_notebook, on_libs_top_k, in_two_columns, as_an_answer(moe.gshard_gate)],
}  # fmt: skip
