"""Known mistakes of plan_costs, edits of lib's code.

A term is the name of its hint, and the edits that make it. Of two mistakes at once in
plan_memory, in the model state and in the activations, the first is named.
"""

from mistakes import Edit, Mistake, edit


def term(name, *edits):
    return name, edits


def parameters(stages="plan.pp", embeddings="1", ranks="plan.tp"):
    """P, of the first stage on one GPU, otherwise."""
    of_all = (
        f"12 * model.hidden**2 * model.layers / {stages} + {embeddings} * model.vocab * "
        f"model.hidden"
    )
    return edit("_first_stage(model, plan)", f"(({of_all}) / {ranks})")


PARAMETERS = (
    term("embedding forgotten", parameters(embeddings="0")),
    term("embedding twice", parameters(embeddings="2")),
    term("embedding divided by p", parameters(embeddings="1 / plan.pp")),
    term(
        "all the model's parameters",
        edit("_first_stage(model, plan)", "model.parameters / (plan.pp * plan.tp)"),
    ),
    term("embedding not divided by t", parameters(embeddings="plan.tp")),
    term("all layers in P", parameters(stages="1")),
    term("P not divided by t", parameters(ranks="1")),
)
BYTES, SIXTEEN = "(2 + 2 + 12 / (plan.dp if plan.zero == 1 else 1))", "2 + 2 + 12"
STATE = (
    *PARAMETERS,
    term("gradients forgotten", edit(SIXTEEN, "2 + 12")),
    term("optimizer forgotten", edit(BYTES, "4")),
    term("no fp32 copy", edit(SIXTEEN, "2 + 2 + 8")),
    term("fp32 gradients", edit(SIXTEEN, "2 + 4 + 12")),
    term("ZeRO-1 ignored", edit(BYTES, "16")),
    term("divided without ZeRO", edit(BYTES, "(2 + 2 + 12 / plan.dp)")),
    term("all of the state divided", edit(SIXTEEN, "16"), edit(BYTES, "16 / plan.dp")),
)
FLYING, FACTOR = "min(plan.micro_batches, plan.pp)", "34 * model.seq"
ACTIVATIONS = (
    term("all m in flight", edit(FLYING, "plan.micro_batches")),
    term("p in flight", edit(FLYING, "plan.pp")),
    term("one in flight", edit(FLYING, "1")),
    term("activations not divided by t", edit("* model.hidden / plan.tp", "* model.hidden")),
    term("10 + 24/t", edit(FACTOR, "(10 * plan.tp + 24) * model.seq")),
    term("all layers kept", edit("kept * model.layers / plan.pp", "kept * model.layers")),
    term("micro-batch forgotten", edit("* plan.micro_batch *", "*")),
    term("the step's rows", edit("* plan.micro_batch *", "* plan.global_batch *")),
    term(
        "the scores as well",
        edit(FACTOR, "(34 + 5 * model.heads * model.seq / model.hidden) * model.seq"),
    ),
    term("34 taken for numbers", edit(FACTOR, "68 * model.seq")),
    term("activations forgotten", edit("state + kept", "state + 0.0")),
)


def mistakes(terms):
    return [Mistake(name, one) for name, edits in terms for one in edits]


def both(first, second):
    """Two mistakes at once, by the first one's name."""
    pairs = [(a, b) for a in mistakes(first) for b in mistakes(second)]
    return [Mistake(a.hint, Edit((*b.answer.changes, *a.answer.changes))) for a, b in pairs]


def idle(part):
    return edit(
        "(plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp - 1)",
        f"(lambda p, v, m: {part})(plan.pp, plan.v, plan.micro_batches)",
    )


BUBBLE = (
    term("over the busy time", idle("(p - 1) / m"), idle("(p - 1) / (v * m)")),
    term("m + p", idle("(p - 1) / (m + p)"), idle("(p - 1) / (v * m + p)")),
    term(
        "p for p - 1", idle("p / (m + p - 1)"), idle("p / (v * m + p - 1)"), idle("p / (v * m + p)")
    ),
    term("v forgotten", idle("(p - 1) / (m + p - 1)")),
    term(
        "v in the wrong place",
        idle("(p - 1) / (m + p - 1) / v"),
        idle("(p - 1) / (m / v + p - 1)"),
        idle("(v * p - 1) / (m + v * p - 1)"),
        idle("(v * p - 1) / (v * m + v * p - 1)"),
        idle("v * (p - 1) / (m + p - 1)"),
    ),
    term("whole numbers", idle("(p - 1) // (v * m + p - 1)")),
    term(
        "another m",
        idle("(p - 1) / (v * plan.global_batch + p - 1)"),
        idle("(p - 1) / (v * (plan.global_batch // plan.dp) + p - 1)"),
        idle("(p - 1) / (v * (plan.global_batch // plan.micro_batch) + p - 1)"),
    ),
    term("the busy part", idle("1 - (p - 1) / (v * m + p - 1)")),
    term("percent", idle("100 * (p - 1) / (v * m + p - 1)")),
)


def no_ring(N):
    ring = f"2 * ({N} - 1) / {N} *"
    return term(
        "no ring",
        *(edit(ring, f"{ways} *") for ways in (f"2 * ({N} - 1)", f"({N} - 1)", "1", "2")),
    )


ALONG_TP = "/ plan.tp * activations,"
MESSAGES = (
    term("m forgotten", edit('"tp": m *', '"tp":')),
    term(
        "another m",
        edit("m, layers = plan.micro_batches", "m, layers = plan.micro_batches // plan.dp"),
        edit("m, layers = plan.micro_batches", "m, layers = plan.micro_batches / plan.dp"),
        edit("m, layers = plan.micro_batches", "m, layers = plan.micro_batches * plan.dp"),
    ),
    term("micro-batch forgotten", edit(ALONG_TP, "/ plan.tp * activations / plan.micro_batch,")),
    no_ring("plan.tp"),
    term("all layers", edit("m * layers", "m * model.layers")),
    term("all-reduce of a part", edit(ALONG_TP, "/ plan.tp * activations / plan.tp,")),
    term(
        "v in tp",
        edit("m * layers", "m * layers * plan.v"),
        edit("m * layers", "m * layers / plan.v"),
    ),
    term("m forgotten", edit('"pp": m *', '"pp":')),
    term("micro-batch forgotten", edit('"pp": m', '"pp": m / plan.micro_batch')),
    term("messages not divided by t", edit("activations / plan.tp if", "activations if")),
    term("v forgotten", edit("m * plan.v", "m")),
    term("a pipeline of one", edit(" if plan.pp > 1 else 0.0", "")),
    term(
        "the whole pipeline's",
        edit('"pp": m', '"pp": (plan.pp - 1) * m'),
        edit('"pp": m', '"pp": plan.pp * m'),
    ),
    term("fp32 gradients", edit('"dp": 2', '"dp": 4')),
    no_ring("plan.dp"),
    term("m times", edit('"dp": 2', '"dp": m * 2')),
    *PARAMETERS,
)
MISTAKES = {
    "plan_memory": (*mistakes(STATE), *mistakes(ACTIVATIONS), *both(STATE, ACTIVATIONS)),
    "plan_bubble": tuple(mistakes(BUBBLE)),
    "plan_messages": tuple(mistakes(MESSAGES)),
}
