"""The known mistakes of plan_memory, term by term; like every *_wrong.py, no release has this file.

    P (2 + 2 + 12)  +  34 s b h / t  for each of L/p layers and min(m, p) micro-batches

Of two mistakes at once, in the model state and in the activations, the first is named.
"""

from typing import NamedTuple

from lib.check.mistakes import Mistake


class Term(NamedTuple):
    """One wrong term: its name, the hint, and what it makes of the term, functions of (model, plan)."""

    name: str
    says: str
    ways: tuple


def term(name, says, *ways):
    """A Term that may be written in any of these ways."""
    return Term(name, says, ways)


def parameters(model, plan, stages=None, embeddings=1, ranks=None):
    """P, of the first stage on one GPU. stages: instead of pp; ranks: instead of tp; embeddings: times V h."""
    layers = 12 * model.hidden**2 * model.layers / (stages or plan.pp)
    return (layers + embeddings * model.vocab * model.hidden) / (ranks or plan.tp)


WRONG_PARAMETERS = (
    term(
        "embedding forgotten",
        "the embedding is missing from P: V h parameters, divided over the t tensor ranks.",
        lambda model, plan: parameters(model, plan, embeddings=0),
    ),
    term(
        "embedding twice",
        "one embedding, V h: the first stage looks tokens up in it. The last stage's product with it is not there.",
        lambda model, plan: parameters(model, plan, embeddings=2),
    ),
    term(
        "embedding divided by p",
        "the pipeline cuts the layers, not the embedding: all of it is on the first stage. P = (12 h^2 L/p + V h) / t.",
        lambda model, plan: parameters(model, plan, embeddings=1 / plan.pp),
    ),
    term(
        "all the model's parameters",
        "model.parameters has norms and biases too, which are left out here; and p does not divide the embedding. "
        "P = (12 h^2 L/p + V h) / t.",
        lambda model, plan: model.parameters / (plan.pp * plan.tp),
    ),
    term(
        "embedding not divided by t",
        "tensor parallelism cuts the vocabulary as well: the embedding is divided by t, as the layers are.",
        lambda model, plan: parameters(model, plan, embeddings=plan.tp),
    ),
    term(
        "all layers in P",
        "P counts a stage's layers: L/p of them, not L.",
        lambda model, plan: parameters(model, plan, stages=1),
    ),
    term(
        "P not divided by t",
        "a tensor rank holds 1/t of each matrix: P is divided by t.",
        lambda model, plan: parameters(model, plan, ranks=1),
    ),
)


def each(plan, master=12, weight=2, gradient=2):
    """Bytes of state per parameter."""
    return weight + gradient + master / (plan.dp if plan.zero == 1 else 1)


def state(model, plan):
    """Bytes of model state."""
    return parameters(model, plan) * each(plan)


def _of(bytes_of):
    return lambda model, plan: parameters(model, plan) * bytes_of(plan)


STATE = (
    *(
        m._replace(ways=tuple(lambda model, plan, P=P: P(model, plan) * each(plan) for P in m.ways))
        for m in WRONG_PARAMETERS
    ),
    term("gradients forgotten", "gradients are missing: 2 bytes each.", _of(lambda plan: each(plan, gradient=0))),
    term(
        "optimizer forgotten",
        "what Adam keeps is missing: 12 bytes, an fp32 copy and two moments.",
        _of(lambda plan: 2 + 2),
    ),
    term(
        "no fp32 copy",
        "in mixed precision Adam keeps three fp32 numbers: a copy of the weight and two moments. 12 bytes, not 8.",
        _of(lambda plan: each(plan, master=8)),
    ),
    term(
        "fp32 gradients",
        "gradients are 16-bit here, 2 bytes: 2 + 2 + 12.",
        _of(lambda plan: each(plan, gradient=4)),
    ),
    term(
        "ZeRO-1 ignored",
        "with plan.zero == 1 each of the d data ranks keeps 1/d of the optimizer's 12 bytes.",
        _of(lambda plan: 16),
    ),
    term(
        "divided without ZeRO",
        "with plan.zero == 0 every data rank keeps the whole optimizer: divide the 12 by d only if plan.zero == 1.",
        _of(lambda plan: 2 + 2 + 12 / plan.dp),
    ),
    term(
        "all of the state divided",
        "ZeRO-1 divides the optimizer's 12 bytes alone. Weights and gradients, 2 + 2, are whole on every data rank.",
        _of(lambda plan: 16 / (plan.dp if plan.zero == 1 else 1)),
        _of(lambda plan: 16 / plan.dp),
    ),
)


def kept(model, plan, factor=34, b=None, ranks=None, stages=None, flying=None):
    """Bytes of activations. b, stages, flying: instead of the micro-batch, pp, min(m, p); ranks: instead of tp."""
    flying = flying or min(plan.micro_batches, plan.pp)
    one = factor * model.seq * (b or plan.micro_batch) * model.hidden / (ranks or plan.tp)
    return one * model.layers / (stages or plan.pp) * flying


ACTIVATIONS = (
    term(
        "all m in flight",
        "1F1B's first stage begins p micro-batches before the first comes back: min(m, p) are in flight, not m.",
        lambda model, plan: kept(model, plan, flying=plan.micro_batches),
    ),
    term(
        "p in flight",
        "there may be fewer micro-batches than stages: min(m, p) are in flight, not p.",
        lambda model, plan: kept(model, plan, flying=plan.pp),
    ),
    term(
        "one in flight",
        "that is one micro-batch. The first stage has begun min(m, p) of them before the first comes back.",
        lambda model, plan: kept(model, plan, flying=1),
    ),
    term(
        "activations not divided by t",
        "tensor and sequence parallelism together cut all that a layer keeps: 34 s b h / t.",
        lambda model, plan: kept(model, plan, ranks=1),
    ),
    term(
        "10 + 24/t",
        "10 + 24/t is without sequence parallelism. With it the norms' 10 are divided by t too: 34 / t.",
        lambda model, plan: kept(model, plan, factor=10 * plan.tp + 24),
    ),
    term(
        "all layers kept",
        "a stage keeps what its own layers need: L/p of them, not L.",
        lambda model, plan: kept(model, plan, stages=1),
    ),
    term(
        "micro-batch forgotten",
        "34 s h / t is for one sequence. A micro-batch has b = plan.micro_batch of them.",
        lambda model, plan: kept(model, plan, b=1),
    ),
    term(
        "the scores as well",
        "the attention scores, 5 a s per token, are recomputed in backward: 34 s b h is what is kept.",
        lambda model, plan: kept(model, plan, factor=34 + 5 * model.heads * model.seq / model.hidden),
    ),
    term(
        "34 taken for numbers",
        "34 s b h are bytes already: do not multiply by 2 again.",
        lambda model, plan: kept(model, plan, factor=68),
    ),
    term(
        "activations forgotten",
        "only the model state is there. Add what L/p layers keep of min(m, p) micro-batches, 34 s b h / t each.",
        lambda model, plan: 0.0,
    ),
)


def memory():
    """The Mistakes: of one term, and of both."""
    for m in STATE:
        for way in m.ways:
            yield Mistake(m.name, lambda model, plan, way=way: way(model, plan) + kept(model, plan), m.says)
    for m in ACTIVATIONS:
        for way in m.ways:
            yield Mistake(m.name, lambda model, plan, way=way: state(model, plan) + way(model, plan), m.says)
    pairs = [(m, way, other) for m in STATE for way in m.ways for a in ACTIVATIONS for other in a.ways]
    for m, way, other in pairs:
        yield Mistake(m.name, lambda model, plan, way=way, other=other: way(model, plan) + other(model, plan), m.says)
