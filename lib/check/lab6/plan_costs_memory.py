"""What goes wrong in plan_memory: the model state, and the activations. See plan_costs_mistakes.py.

P (2 + 2 + 12)  +  34 s b h / t  for each of L/p layers and min(m, p) micro-batches
"""

from lib.check.lab6.plan_costs_mistakes import WRONG_PARAMETERS, mistake, parameters


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
        m._replace(terms=tuple(lambda model, plan, P=P: P(model, plan) * each(plan) for P in m.terms))
        for m in WRONG_PARAMETERS
    ),
    mistake("gradients forgotten", "gradients are missing: 2 bytes each.", _of(lambda plan: each(plan, gradient=0))),
    mistake(
        "optimizer forgotten",
        "what Adam keeps is missing: 12 bytes, an fp32 copy and two moments.",
        _of(lambda plan: 2 + 2),
    ),
    mistake(
        "no fp32 copy",
        "in mixed precision Adam keeps three fp32 numbers: a copy of the weight and two moments. 12 bytes, not 8.",
        _of(lambda plan: each(plan, master=8)),
    ),
    mistake(
        "fp32 gradients",
        "gradients are 16-bit here, 2 bytes: 2 + 2 + 12.",
        _of(lambda plan: each(plan, gradient=4)),
    ),
    mistake(
        "ZeRO-1 ignored",
        "with plan.zero == 1 each of the d data ranks keeps 1/d of the optimizer's 12 bytes.",
        _of(lambda plan: 16),
    ),
    mistake(
        "divided without ZeRO",
        "with plan.zero == 0 every data rank keeps the whole optimizer: divide the 12 by d only if plan.zero == 1.",
        _of(lambda plan: 2 + 2 + 12 / plan.dp),
    ),
    mistake(
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
    mistake(
        "all m in flight",
        "1F1B's first stage begins p micro-batches before the first comes back: min(m, p) are in flight, not m.",
        lambda model, plan: kept(model, plan, flying=plan.micro_batches),
    ),
    mistake(
        "p in flight",
        "there may be fewer micro-batches than stages: min(m, p) are in flight, not p.",
        lambda model, plan: kept(model, plan, flying=plan.pp),
    ),
    mistake(
        "one in flight",
        "that is one micro-batch. The first stage has begun min(m, p) of them before the first comes back.",
        lambda model, plan: kept(model, plan, flying=1),
    ),
    mistake(
        "activations not divided by t",
        "tensor and sequence parallelism together cut all that a layer keeps: 34 s b h / t.",
        lambda model, plan: kept(model, plan, ranks=1),
    ),
    mistake(
        "10 + 24/t",
        "10 + 24/t is without sequence parallelism. With it the norms' 10 are divided by t too: 34 / t.",
        lambda model, plan: kept(model, plan, factor=10 * plan.tp + 24),
    ),
    mistake(
        "all layers kept",
        "a stage keeps what its own layers need: L/p of them, not L.",
        lambda model, plan: kept(model, plan, stages=1),
    ),
    mistake(
        "micro-batch forgotten",
        "34 s h / t is for one sequence. A micro-batch has b = plan.micro_batch of them.",
        lambda model, plan: kept(model, plan, b=1),
    ),
    mistake(
        "the scores as well",
        "the attention scores, 5 a s per token, are recomputed in backward: 34 s b h is what is kept.",
        lambda model, plan: kept(model, plan, factor=34 + 5 * model.heads * model.seq / model.hidden),
    ),
    mistake(
        "34 taken for numbers",
        "34 s b h are bytes already: do not multiply by 2 again.",
        lambda model, plan: kept(model, plan, factor=68),
    ),
    mistake(
        "activations forgotten",
        "only the model state is there. Add what L/p layers keep of min(m, p) micro-batches, 34 s b h / t each.",
        lambda model, plan: 0.0,
    ),
)
