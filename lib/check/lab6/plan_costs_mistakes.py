"""What goes wrong in a plan's costs, term by term: a mistake is a wrong term, and told by the numbers that come of it.

    got  =  state + activations          of each term the right one or a mistaken one: which pair gives what was got,
                                         in every case that is wrong?

The mistakes in P, which plan_memory and plan_messages share, are here; so are those of plan_bubble.
"""

from collections.abc import Callable
from itertools import product
from math import isclose
from typing import NamedTuple

from lib.check.framework import Hint


class Mistake(NamedTuple):
    """One wrong term: its name, the hint, and what it makes of the term, functions of (model, plan)."""

    name: str
    says: str
    terms: tuple[Callable, ...]


def mistake(name, says, *terms):
    """A Mistake that may be written in any of these ways."""
    return Mistake(name, says, terms)


def equal(a, b):
    """Up to rounding?"""
    return isclose(a, b, rel_tol=1e-9)


def explained(wrong, terms):
    """([the Mistake in each term, or None], [the term's function]) that give all of `wrong`; None if none do.

    wrong: {(model, plan): got}; terms: [(the right function, its Mistakes), ...], whose sum is the cost.
    """
    ways = [[(None, right), *((m, term) for m in mistakes for term in m.terms)] for right, mistakes in terms]
    for way in sorted(product(*ways), key=lambda way: sum(m is not None for m, _ in way)):
        if all(equal(got, sum(term(*case) for _, term in way)) for case, got in wrong.items()):
            return [m for m, _ in way], [term for _, term in way]
    return None


def hints_of(*mistakes):
    """A Hint for each: it fits a Problem whose first mistake it is. The same name twice: one hint."""
    named = {m.name: m.says for m in mistakes}
    return tuple(
        Hint(name, lambda p, name=name: p.facts.get("mistakes", [""])[0] == name, named[name]) for name in named
    )


def parameters(model, plan, stages=None, embeddings=1, ranks=None):
    """P, of the first stage on one GPU. stages: instead of pp; ranks: instead of tp; embeddings: times V h."""
    layers = 12 * model.hidden**2 * model.layers / (stages or plan.pp)
    return (layers + embeddings * model.vocab * model.hidden) / (ranks or plan.tp)


WRONG_PARAMETERS = (
    mistake(
        "embedding forgotten",
        "the embedding is missing from P: V h parameters, divided over the t tensor ranks.",
        lambda model, plan: parameters(model, plan, embeddings=0),
    ),
    mistake(
        "embedding twice",
        "one embedding, V h: the first stage looks tokens up in it. The last stage's product with it is not there.",
        lambda model, plan: parameters(model, plan, embeddings=2),
    ),
    mistake(
        "embedding divided by p",
        "the pipeline cuts the layers, not the embedding: all of it is on the first stage. P = (12 h^2 L/p + V h) / t.",
        lambda model, plan: parameters(model, plan, embeddings=1 / plan.pp),
    ),
    mistake(
        "all the model's parameters",
        "model.parameters has norms and biases too, which are left out here; and p does not divide the embedding. "
        "P = (12 h^2 L/p + V h) / t.",
        lambda model, plan: model.parameters / (plan.pp * plan.tp),
    ),
    mistake(
        "embedding not divided by t",
        "tensor parallelism cuts the vocabulary as well: the embedding is divided by t, as the layers are.",
        lambda model, plan: parameters(model, plan, embeddings=plan.tp),
    ),
    mistake(
        "all layers in P",
        "P counts a stage's layers: L/p of them, not L.",
        lambda model, plan: parameters(model, plan, stages=1),
    ),
    mistake(
        "P not divided by t",
        "a tensor rank holds 1/t of each matrix: P is divided by t.",
        lambda model, plan: parameters(model, plan, ranks=1),
    ),
)


def bubble(model, plan, m=None, v=None):
    """The idle part of a step. m, v: instead of the plan's."""
    return (plan.pp - 1) / ((v or plan.v) * (m or plan.micro_batches) + plan.pp - 1)


BUBBLE = (
    mistake(
        "over the busy time",
        "(p-1)/m compares the bubble with the time at work. The step is both together: v m + p - 1.",
        lambda model, plan: (plan.pp - 1) / plan.micro_batches,
        lambda model, plan: (plan.pp - 1) / (plan.v * plan.micro_batches),
    ),
    mistake(
        "m + p",
        "the last of m micro-batches leaves the last stage after m + p - 1 turns: the first is in it after p - 1.",
        lambda model, plan: (plan.pp - 1) / (plan.micro_batches + plan.pp),
        lambda model, plan: (plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp),
    ),
    mistake(
        "p for p - 1",
        "a rank waits p - 1 turns: its own is no waiting. A pipeline of one stage has no bubble.",
        lambda model, plan: plan.pp / (plan.micro_batches + plan.pp - 1),
        lambda model, plan: plan.pp / (plan.v * plan.micro_batches + plan.pp - 1),
        lambda model, plan: plan.pp / (plan.v * plan.micro_batches + plan.pp),
    ),
    mistake(
        "v forgotten",
        "with v stages per rank a turn is 1/v as long: the rank works v m turns and still waits p - 1.",
        lambda model, plan: bubble(model, plan, v=1),
    ),
    mistake(
        "v in the wrong place",
        "v makes m larger, and nothing else: v m + p - 1 turns, of which p - 1 are idle.",
        lambda model, plan: bubble(model, plan, v=1) / plan.v,
        lambda model, plan: bubble(model, plan, v=1 / plan.v),
        lambda model, plan: (plan.v * plan.pp - 1) / (plan.micro_batches + plan.v * plan.pp - 1),
        lambda model, plan: (plan.v * plan.pp - 1) / (plan.v * plan.micro_batches + plan.v * plan.pp - 1),
    ),
    mistake(
        "another m",
        "m counts one pipeline's micro-batches: plan.micro_batches = global batch / (d b).",
        lambda model, plan: bubble(model, plan, m=plan.global_batch),
        lambda model, plan: bubble(model, plan, m=plan.global_batch // plan.dp),
        lambda model, plan: bubble(model, plan, m=plan.global_batch // plan.micro_batch),
    ),
    mistake(
        "the busy part",
        "that is the part in which a GPU works; the bubble is the rest.",
        lambda model, plan: 1 - bubble(model, plan),
    ),
    mistake(
        "percent",
        "return a part of 1, and make percent of it when you print.",
        lambda model, plan: 100 * bubble(model, plan),
    ),
)
