"""Answers to Lab 5's gates, function by function: wrong ones, each with the hint that it must get,
and right ones."""

import numpy as np
import torch
import torch.nn.functional as F
from as_an_answer import as_an_answer, told

from lib import moe
from lib.moe import Choice, top_k_indices


def parts(g):
    return g / g.sum(-1, keepdim=True)


# right


def switch_as_in_the_notebook(logits):
    p = logits.softmax(-1)
    experts = top_k_indices(logits, 1)
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


def top_k_as_in_the_notebook(logits, k):
    p = logits.softmax(-1)
    experts = top_k_indices(logits, k)
    return Choice(experts, parts(p.gather(1, experts)), p)


def softmax_over_the_chosen(logits, k):
    experts = top_k_indices(logits, k)
    return Choice(experts, logits.gather(1, experts).softmax(-1), logits.softmax(-1))


def the_others_at_minus_infinity(logits, k):
    experts = torch.sort(-logits, dim=1, stable=True).indices[:, :k]
    masked = torch.full_like(logits, -torch.inf).scatter(1, experts, logits.gather(1, experts))
    return Choice(experts, F.softmax(masked, 1).gather(1, experts), F.softmax(logits, 1))


def gshard_as_in_the_notebook(logits, uniform):
    experts, weights, p = top_k_as_in_the_notebook(logits, 2)
    taken = uniform < 2 * weights[:, 1].detach()
    taken = torch.stack([torch.ones_like(taken), taken], dim=1)
    return Choice(experts.where(taken, -1), weights.where(taken, 0.0), p)


def on_libs_top_k(logits, uniform):
    experts, weights, p = moe.top_k_gate(logits, 2)
    left = F.pad((uniform >= 2 * weights[:, 1])[:, None], (1, 0))
    return Choice(experts.masked_fill(left, -1), weights.masked_fill(left, 0), p)


def in_two_columns(logits, uniform):
    p = logits.softmax(-1)
    first, second = top_k_indices(logits, 2).unbind(1)
    g1, g2 = (p.gather(1, e[:, None])[:, 0] for e in (first, second))
    taken = (2 * g2 / (g1 + g2) > uniform).to(p.dtype)
    second = second * taken.long() - (1 - taken.long())
    return Choice(
        torch.stack((first, second), 1), torch.stack((g1, g2 * taken), 1) / (g1 + g2)[:, None], p
    )


# wrong


def from_a_list(logits):
    p = logits.softmax(-1).tolist()
    experts = [max(range(len(row)), key=row.__getitem__) for row in p]
    weights = torch.tensor(
        [[row[e]] for row, e in zip(p, experts, strict=True)], dtype=logits.dtype
    )
    return Choice(
        torch.tensor(experts).view(-1, 1), weights.view(-1, 1), torch.tensor(p, dtype=logits.dtype)
    )


def token_by_token(logits):
    rows = [switch_as_in_the_notebook(row[None]) for row in logits]
    return Choice(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


def larger_numbers_first(logits, k):
    """What topk may do: of equal ones the last comes first."""
    return logits.shape[1] - 1 - top_k_indices(logits.flip(1), k)


def one_by_one(logits, k):
    p = logits.softmax(-1)
    rows = [sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in logits.tolist()]
    weights = torch.stack([parts(p[n, row]) for n, row in enumerate(rows)])
    return Choice(torch.tensor(rows), weights, p)


def crosses_out_what_it_took(logits, k):
    p, experts = logits.softmax(-1), []
    for _ in range(k):
        experts.append(logits.argmax(-1))
        logits[torch.arange(len(logits)), experts[-1]] = -torch.inf
    experts = torch.stack(experts, 1)
    return Choice(experts, parts(p.gather(1, experts)), p)


def gshard_in_numpy(logits, uniform):
    experts, weights, p = (t.detach().numpy().copy() for t in top_k_as_in_the_notebook(logits, 2))
    left = uniform.numpy() >= 2 * weights[:, 1]
    experts[left, 1], weights[left, 1] = -1, 0
    return Choice(*map(torch.from_numpy, (experts, np.ascontiguousarray(weights), p)))


def gshard_row_by_row(logits, uniform):
    rows = [
        gshard_as_in_the_notebook(z[None], u[None]) for z, u in zip(logits, uniform, strict=True)
    ]
    return Choice(*(torch.cat(column) for column in zip(*rows, strict=True)))


def no_gate_yet(*args):
    raise NotImplementedError


CHOSEN = {}
P, WEIGHT, BEST = "p = logits.softmax(-1)", "p.gather(1, experts), p)", "top_k_indices(logits, 1)"
SWITCH = told(
    switch_as_in_the_notebook,
    ("no_gate_yet", "not written", no_gate_yet),
    ("calls_libs_switch", "called what it builds", lambda logits: moe.switch_gate(logits)),
    ("from_a_list", "no gradient", from_a_list),
    ("token_by_token", "a set of no tokens", token_by_token),
    ("always_float64", "of one dtype only", (P, "p = logits.double().softmax(-1)")),
    ("chosen_once_per_shape", "another choice", (BEST,
        f"CHOSEN.setdefault(tuple(logits.shape), {BEST})")),
    ("flat", "no dimension of choices", (BEST, "logits.argmax(-1)"),
    (WEIGHT, "p.max(-1).values, p)")),
    ("forgets_to_return", "no Choice", ("return ", "")),
    ("swapped", "experts are no numbers", (f"experts, {WEIGHT}",
        "p.gather(1, experts), experts, p)")),
    ("exp_of_the_logits", "exp of large logits", (P, "p = parts(logits.exp())")),
    ("the_last_of_equals", "equal logits", (BEST,
        "logits.shape[1] - 1 - logits.flip(1).argmax(-1, keepdim=True)")),
    ("detached_weights", "no gradient", (WEIGHT, "p.gather(1, experts).detach(), p)")),
    ("a_straight_1", "another gradient", (WEIGHT,
        "(w := p.gather(1, experts)).detach() + w / w.detach() - 1, p)")),
    ("logits_for_probabilities", "other probabilities", (WEIGHT, "p.gather(1, experts), logits)")),
    ("in_place", "in place", (P, f"logits -= logits.amax(-1, keepdim=True)\n    {P}")),
    ("counted_from_1", "another choice", ("Choice(experts", "Choice(experts + 1")),
)  # fmt: skip
BEST, PARTS = "top_k_indices(logits, k)", "parts(p.gather(1, experts))"
TOP_K = told(
    top_k_as_in_the_notebook,
    ("no_gate_yet", "not written", no_gate_yet),
    ("calls_libs_top_k", "called what it builds", lambda logits, k: moe.top_k_gate(logits, k)),
    ("one_by_one", "a set of no tokens", one_by_one),
    ("crosses_out_what_it_took", "in place", crosses_out_what_it_took),
    ("top_k_in_float64", "of one dtype only", (P, "p = logits.double().softmax(-1)")),
    ("at_most_two", "not k of them", (BEST, "top_k_indices(logits, min(k, 2))")),
    ("always_two", "not k of them", (BEST, "top_k_indices(logits, min(2, logits.shape[1]))")),
    ("returns_a_tuple", "no Choice", ("return Choice(", "return tuple(("), (", p)", ", p))")),
    ("numbers_as_floats", "experts are no numbers", ("Choice(experts", "Choice(experts.double()")),
    ("top_k_of_exp", "exp of large logits", (P, "p = parts(logits.exp())")),
    ("the_last_of_equals_first", "equal logits", (BEST, "larger_numbers_first(logits, k)")),
    ("weights_without_gradient", "no gradient", (P, "p = logits.detach().softmax(-1)")),
    ("logs_for_probabilities", "other probabilities", (", p)", ", p.log())")),
    ("half_a_gradient", "another gradient", (PARTS, f"((w := {PARTS}) + w.detach()) / 2")),
    ("squares", "another choice", (PARTS, "parts(p.gather(1, experts) ** 2)")),
)  # fmt: skip
TOP_2, TAKEN, WEIGHTS = (
    "top_k_as_in_the_notebook(logits, 2)",
    "uniform < 2 * weights[:, 1].detach()",
    "weights.where(taken, 0.0)",
)
SOFT = "(soft := (2 * weights[:, 1]).clamp(max=1)) - soft.detach()"
GSHARD = told(
    gshard_as_in_the_notebook,
    ("no_gate_yet", "not written", no_gate_yet),
    ("calls_libs_gshard", "called what it builds",
     lambda logits, uniform: moe.gshard_gate(logits, uniform)),
    ("gshard_in_numpy", "no gradient", gshard_in_numpy),
    ("gshard_row_by_row", "a set of no tokens", gshard_row_by_row),
    ("a_mask_of_float64", "of one dtype only", (WEIGHTS, "weights * taken.double()")),
    ("a_random_number", "numbers of its own", ("uniform <", "torch.rand(len(logits)) <")),
    ("bernoulli", "numbers of its own",
     (TAKEN, "torch.bernoulli((2 * weights[:, 1].detach()).clamp(max=1)).bool()")),
    ("no_return", "no Choice", ("return ", "")),
    ("minus_one_as_float", "experts are no numbers", ("(taken, -1)", "(taken, -1.0)")),
    ("gshard_exp", "exp of large logits",
     (TOP_2,
     "top_k_indices(logits, 2), None, parts(logits.exp())\n"
     "    weights = parts(p.gather(1, experts))")),
    ("gshard_last_of_equals", "equal logits",
     (TOP_2,
     "larger_numbers_first(logits, 2), None, logits.softmax(-1)\n    weights = parts(p.gather(1, "
     "experts))")),
    ("through_the_mask", "another gradient",
     (WEIGHTS, f"weights * torch.stack([taken[:, 0], taken[:, 1] + {SOFT}], 1)")),
    ("gshard_logits", "other probabilities", (", p)", ", logits)")),
    ("halves_uniform", "in place", (TAKEN, "uniform.div_(2) < weights[:, 1].detach()")),
    ("experts_in_place", "in place", (TAKEN, f"{TAKEN}\n    experts[~taken, 1] = -1")),
    ("the_whole_token", "another choice", ("torch.ones_like(taken), taken", "taken, taken")),
)  # fmt: skip
WRONG = {"switch_gate": SWITCH, "top_k_gate": TOP_K, "gshard_gate": GSHARD}
RIGHT = {
    "switch_gate": [switch_as_in_the_notebook, switch_by_argmax, switch_by_hand,
                    as_an_answer(moe.switch_gate)],
    "top_k_gate": [
        top_k_as_in_the_notebook,
        softmax_over_the_chosen,
        the_others_at_minus_infinity,
        as_an_answer(moe.top_k_gate),
    ],
    "gshard_gate": [gshard_as_in_the_notebook, on_libs_top_k, in_two_columns,
                    as_an_answer(moe.gshard_gate)],
}  # fmt: skip
