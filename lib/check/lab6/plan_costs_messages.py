"""What goes wrong in plan_messages, axis by axis. See plan_costs_mistakes.py.

    tp   m L/p  x  4 all-reduces of  2 s b h        an all-reduce over N ranks: 2 (N-1)/N  of its bytes
    pp   m v    x  2 messages of  2 s b h / t
    dp   an all-reduce of  2 P

Many things come in twos, so half of what is right has many causes. Which, the other axes tell: `halved`.
"""

from lib.check.lab6.plan_costs_mistakes import WRONG_PARAMETERS, mistake, parameters


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
HALVED = {  # which axes are half of what they should be
    ("tp", "pp", "dp"): mistake("elements for bytes", "that counts numbers. One of 16 bits takes 2 bytes."),
    ("tp", "dp"): mistake("one pass of the ring", RING),
    ("tp", "pp"): mistake("activations' bytes", "activations have 16 bits: 2 s b h bytes."),
    ("tp",): mistake(
        "two all-reduces",
        "a layer has two all-reduces forward, behind attention and behind the MLP, and two backward: 4.",
    ),
    ("pp",): mistake("one way", "a stage in the middle sends activations on and gradients back: 2 messages."),
    ("dp",): mistake("half of dp", "a gradient has 2 bytes, and an all-reduce sends 2 (N-1)/N of them."),
}

TP = (
    mistake("half", "", lambda model, plan: tp(model, plan) / 2),
    mistake("m forgotten", M, lambda model, plan: tp(model, plan, m=1)),
    mistake("micro-batch forgotten", B, lambda model, plan: tp(model, plan, b=1)),
    mistake(
        "no ring",
        RING,
        lambda model, plan: tp(model, plan, way=lambda N: 2 * (N - 1)),
        lambda model, plan: tp(model, plan, way=lambda N: N - 1),
        lambda model, plan: tp(model, plan, way=lambda N: 1),
        lambda model, plan: tp(model, plan, way=lambda N: 2),
    ),
    mistake(
        "all layers",
        "a GPU has the layers of its stage: L/p of them, not L.",
        lambda model, plan: tp(model, plan, stages=1),
    ),
    mistake(
        "all-reduce of a part",
        "an all-reduce adds whole activations, 2 s b h bytes: every tensor rank has a partial sum of all of them.",
        lambda model, plan: tp(model, plan) / plan.tp,
    ),
    mistake(
        "v in tp",
        "v says into how many stages a rank's L/p layers are cut. They send the same.",
        lambda model, plan: tp(model, plan) * plan.v,
        lambda model, plan: tp(model, plan) / plan.v,
    ),
)
PP = (
    mistake("half", "", lambda model, plan: pp(model, plan) / 2),
    mistake("m forgotten", M, lambda model, plan: pp(model, plan, m=1)),
    mistake("micro-batch forgotten", B, lambda model, plan: pp(model, plan, b=1)),
    mistake(
        "messages not divided by t",
        "each of the t tensor ranks sends its own part of the activations: 2 s b h / t.",
        lambda model, plan: pp(model, plan, ranks=1),
    ),
    mistake(
        "v forgotten",
        "a rank with v stages sends v times: each of its stages hands on what it has made.",
        lambda model, plan: pp(model, plan, v=1),
    ),
    mistake(
        "a pipeline of one",
        "where pp is 1 there is no other stage, and nothing to send: 0.",
        lambda model, plan: plan.micro_batches * plan.v * 4 * model.seq * plan.micro_batch * model.hidden / plan.tp,
    ),
    mistake(
        "the whole pipeline's",
        "that is what all p stages send. The function tells of one GPU.",
        lambda model, plan: pp(model, plan) * (plan.pp - 1),
        lambda model, plan: pp(model, plan) * plan.pp,
    ),
)
DP = (
    mistake("half", "", lambda model, plan: dp(model, plan) / 2),
    mistake(
        "fp32 gradients",
        "gradients have 16 bits here: 2 P bytes, not 4 P.",
        lambda model, plan: 2 * dp(model, plan),
    ),
    mistake(
        "no ring",
        RING,
        lambda model, plan: dp(model, plan, way=lambda N: 2 * (N - 1)),
        lambda model, plan: dp(model, plan, way=lambda N: N - 1),
        lambda model, plan: dp(model, plan, way=lambda N: 1),
        lambda model, plan: dp(model, plan, way=lambda N: 2),
    ),
    mistake(
        "m times",
        "gradients of the m micro-batches are summed on the GPU first: one all-reduce per step.",
        lambda model, plan: dp(model, plan) * plan.micro_batches,
    ),
    *(m._replace(terms=tuple(lambda model, plan, P=P: dp(model, plan, P) for P in m.terms)) for m in WRONG_PARAMETERS),
)
AXES = {"tp": (tp, TP), "pp": (pp, PP), "dp": (dp, DP)}
