"""The known mistakes of plan_costs; like every *_wrong.py, no release has this file.

tp   m L/p  x  4 all-reduces of  2 s b h        an all-reduce over N ranks: 2 (N-1)/N  of its bytes
pp   m v    x  2 messages of  2 s b h / t
dp   an all-reduce of  2 P
"""

from lib.check.lab6.plan_memory_wrong import WRONG_PARAMETERS, memory, parameters, term
from lib.check.mistakes import Mistake


def bubble(plan, m=None, v=None):
    """The idle part of a step. m, v: instead of the plan's."""
    return (plan.pp - 1) / ((v or plan.v) * (m or plan.micro_batches) + plan.pp - 1)


BUBBLE = (
    term(
        "over the busy time",
        "(p-1)/m compares the bubble with the time at work. The step is both together: v m + p - 1.",
        lambda plan: (plan.pp - 1) / plan.micro_batches,
        lambda plan: (plan.pp - 1) / (plan.v * plan.micro_batches),
    ),
    term(
        "m + p",
        "the last of m micro-batches leaves the last stage after m + p - 1 turns: the first is in it after p - 1.",
        lambda plan: (plan.pp - 1) / (plan.micro_batches + plan.pp),
        lambda plan: (plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp),
    ),
    term(
        "p for p - 1",
        "a rank waits p - 1 turns: its own is no waiting. A pipeline of one stage has no bubble.",
        lambda plan: plan.pp / (plan.micro_batches + plan.pp - 1),
        lambda plan: plan.pp / (plan.v * plan.micro_batches + plan.pp - 1),
        lambda plan: plan.pp / (plan.v * plan.micro_batches + plan.pp),
    ),
    term(
        "v forgotten",
        "with v stages per rank a turn is 1/v as long: the rank works v m turns and still waits p - 1.",
        lambda plan: bubble(plan, v=1),
    ),
    term(
        "v in the wrong place",
        "v makes m larger, and nothing else: v m + p - 1 turns, of which p - 1 are idle.",
        lambda plan: bubble(plan, v=1) / plan.v,
        lambda plan: bubble(plan, v=1 / plan.v),
        lambda plan: (plan.v * plan.pp - 1) / (plan.micro_batches + plan.v * plan.pp - 1),
        lambda plan: (plan.v * plan.pp - 1) / (plan.v * plan.micro_batches + plan.v * plan.pp - 1),
    ),
    term(
        "another m",
        "m counts one pipeline's micro-batches: plan.micro_batches = global batch / (d b).",
        lambda plan: bubble(plan, m=plan.global_batch),
        lambda plan: bubble(plan, m=plan.global_batch // plan.dp),
        lambda plan: bubble(plan, m=plan.global_batch // plan.micro_batch),
    ),
    term(
        "the busy part",
        "that is the part in which a GPU works; the bubble is the rest.",
        lambda plan: 1 - bubble(plan),
    ),
    term(
        "percent",
        "return a part of 1, and make percent of it when you print.",
        lambda plan: 100 * bubble(plan),
    ),
)


def ring(N):
    """What an all-reduce costs each of N ranks, in tensors."""
    return 2 * (N - 1) / N


def tp(model, plan, m=None, stages=None, b=None, way=ring):
    """Bytes along tp. m, stages, b: instead of the plan's; way: instead of a ring."""
    activations = 2 * model.seq * (b or plan.micro_batch) * model.hidden
    return (m or plan.micro_batches) * model.layers / (stages or plan.pp) * 4 * way(plan.tp) * activations


def pp(model, plan, m=None, v=None, b=None, ranks=None):
    """Bytes along pp. m, v, b: instead of the plan's; ranks: instead of tp."""
    message = 2 * model.seq * (b or plan.micro_batch) * model.hidden / (ranks or plan.tp)
    return (m or plan.micro_batches) * (v or plan.v) * 2 * message if plan.pp > 1 else 0.0


def dp(model, plan, P=parameters, way=ring):
    """Bytes along dp. P, way: instead of P and a ring."""
    return way(plan.dp) * 2 * P(model, plan)


M = "that is for one micro-batch. A pipeline runs m = plan.micro_batches of them in a step."
B = "s h numbers are one sequence's. A micro-batch has b = plan.micro_batch of them."
RING = "a ring sends (N-1)/N of the tensor twice, to add it up and to hand out the sum: 2 (N-1)/N of its bytes."

TP = (
    term("m forgotten", M, lambda model, plan: tp(model, plan, m=1)),
    term("micro-batch forgotten", B, lambda model, plan: tp(model, plan, b=1)),
    term(
        "no ring",
        RING,
        lambda model, plan: tp(model, plan, way=lambda N: 2 * (N - 1)),
        lambda model, plan: tp(model, plan, way=lambda N: N - 1),
        lambda model, plan: tp(model, plan, way=lambda N: 1),
        lambda model, plan: tp(model, plan, way=lambda N: 2),
    ),
    term(
        "all layers",
        "a GPU has the layers of its stage: L/p of them, not L.",
        lambda model, plan: tp(model, plan, stages=1),
    ),
    term(
        "all-reduce of a part",
        "an all-reduce adds whole activations, 2 s b h bytes: every tensor rank has a partial sum of all of them.",
        lambda model, plan: tp(model, plan) / plan.tp,
    ),
    term(
        "v in tp",
        "v says into how many stages a rank's L/p layers are cut. They send the same.",
        lambda model, plan: tp(model, plan) * plan.v,
        lambda model, plan: tp(model, plan) / plan.v,
    ),
)
PP = (
    term("m forgotten", M, lambda model, plan: pp(model, plan, m=1)),
    term("micro-batch forgotten", B, lambda model, plan: pp(model, plan, b=1)),
    term(
        "messages not divided by t",
        "each of the t tensor ranks sends its own part of the activations: 2 s b h / t.",
        lambda model, plan: pp(model, plan, ranks=1),
    ),
    term(
        "v forgotten",
        "a rank with v stages sends v times: each of its stages hands on what it has made.",
        lambda model, plan: pp(model, plan, v=1),
    ),
    term(
        "a pipeline of one",
        "where pp is 1 there is no other stage, and nothing to send: 0.",
        lambda model, plan: plan.micro_batches * plan.v * 4 * model.seq * plan.micro_batch * model.hidden / plan.tp,
    ),
    term(
        "the whole pipeline's",
        "that is what all p stages send. The function tells of one GPU.",
        lambda model, plan: pp(model, plan) * (plan.pp - 1),
        lambda model, plan: pp(model, plan) * plan.pp,
    ),
)
DP = (
    term(
        "fp32 gradients",
        "gradients have 16 bits here: 2 P bytes, not 4 P.",
        lambda model, plan: 2 * dp(model, plan),
    ),
    term(
        "no ring",
        RING,
        lambda model, plan: dp(model, plan, way=lambda N: 2 * (N - 1)),
        lambda model, plan: dp(model, plan, way=lambda N: N - 1),
        lambda model, plan: dp(model, plan, way=lambda N: 1),
        lambda model, plan: dp(model, plan, way=lambda N: 2),
    ),
    term(
        "m times",
        "gradients of the m micro-batches are summed on the GPU first: one all-reduce per step.",
        lambda model, plan: dp(model, plan) * plan.micro_batches,
    ),
    *(m._replace(ways=tuple(lambda model, plan, P=P: dp(model, plan, P) for P in m.ways)) for m in WRONG_PARAMETERS),
)


def _messages(axis, terms):
    for m in terms:
        for way in m.ways:
            give = lambda *case, way=way: {"tp": tp(*case), "pp": pp(*case), "dp": dp(*case), axis: way(*case)}
            yield Mistake(m.name, give, m.says)


MISTAKES = {
    "plan_memory": tuple(memory()),
    "plan_bubble": tuple(Mistake(m.name, way, m.says) for m in BUBBLE for way in m.ways),
    "plan_messages": (*_messages("tp", TP), *_messages("pp", PP), *_messages("dp", DP)),
}
