"""Known mistakes of plan_costs, edits of lib's code.

A term is its name, the hint's sentence, and the edits that make it. Of two mistakes at once in
plan_memory, in the model state and in the activations, the first is named.
"""

from mistakes import Edit, Mistake, edit

M = "that is for one micro-batch. A pipeline runs m = plan.micro_batches of them in a step."
B = "s h numbers are one sequence's. A micro-batch has b = plan.micro_batch of them."
RING = (
    "a ring sends (N-1)/N of the tensor twice, to add it up and to hand out the sum: 2 (N-1)/N of "
    "its bytes."
)


def term(name, says, *edits):
    return name, says, edits


def parameters(stages="plan.pp", embeddings="1", ranks="plan.tp"):
    """P, of the first stage on one GPU, otherwise."""
    of_all = (
        f"12 * model.hidden**2 * model.layers / {stages} + {embeddings} * model.vocab * "
        f"model.hidden"
    )
    return edit("_first_stage(model, plan)", f"(({of_all}) / {ranks})")


PARAMETERS = (
    term("embedding forgotten",
         "the embedding is missing from P: V h parameters, divided over the t tensor ranks.",
         parameters(embeddings="0")),
    term("embedding twice",
         "one embedding, V h: the first stage looks tokens up in it. The last stage's product with "
         "it is not there.",
         parameters(embeddings="2")),
    term("embedding divided by p",
         "the pipeline cuts the layers, not the embedding: all of it is on the first stage. P = "
         "(12 h^2 L/p + V h) / t.", parameters(embeddings="1 / plan.pp")),
    term("all the model's parameters",
         "model.parameters has norms and biases too, which are left out here; and p does not "
         "divide the embedding. P = (12 h^2 L/p + V h) / t.", edit("_first_stage(model, plan)",
             "model.parameters / (plan.pp * plan.tp)")),
    term("embedding not divided by t",
         "tensor parallelism cuts the vocabulary as well: the embedding is divided by t, as the "
         "layers are.",
         parameters(embeddings="plan.tp")),
    term("all layers in P", "P counts a stage's layers: L/p of them, not L.",
         parameters(stages="1")),
    term("P not divided by t", "a tensor rank holds 1/t of each matrix: P is divided by t.",
         parameters(ranks="1")),
)  # fmt: skip
BYTES, SIXTEEN = "(2 + 2 + 12 / (plan.dp if plan.zero == 1 else 1))", "2 + 2 + 12"
STATE = (
    *PARAMETERS,
    term("gradients forgotten", "gradients are missing: 2 bytes each.", edit(SIXTEEN, "2 + 12")),
    term("optimizer forgotten",
         "what Adam keeps is missing: 12 bytes, an fp32 copy and two moments.",
         edit(BYTES, "4")),
    term("no fp32 copy",
         "in mixed precision Adam keeps three fp32 numbers: a copy of the weight and two moments. "
         "12 bytes, not 8.",
         edit(SIXTEEN, "2 + 2 + 8")),
    term("fp32 gradients", "gradients are 16-bit here, 2 bytes: 2 + 2 + 12.",
         edit(SIXTEEN, "2 + 4 + 12")),
    term("ZeRO-1 ignored",
         "with plan.zero == 1 each of the d data ranks keeps 1/d of the optimizer's 12 bytes.",
         edit(BYTES, "16")),
    term("divided without ZeRO",
         "with plan.zero == 0 every data rank keeps the whole optimizer: divide the 12 by d only "
         "if plan.zero == 1.",
         edit(BYTES, "(2 + 2 + 12 / plan.dp)")),
    term("all of the state divided",
         "ZeRO-1 divides the optimizer's 12 bytes alone. Weights and gradients, 2 + 2, are whole "
         "on every data rank.",
         edit(SIXTEEN, "16"), edit(BYTES, "16 / plan.dp")),
)  # fmt: skip
FLYING, FACTOR = "min(plan.micro_batches, plan.pp)", "34 * model.seq"
ACTIVATIONS = (
    term("all m in flight",
         "1F1B's first stage begins p micro-batches before the first comes back: min(m, p) are in "
         "flight, not m.",
         edit(FLYING, "plan.micro_batches")),
    term("p in flight",
         "there may be fewer micro-batches than stages: min(m, p) are in flight, not p.",
         edit(FLYING, "plan.pp")),
    term("one in flight",
         "that is one micro-batch. The first stage has begun min(m, p) of them before the first "
         "comes back.",
         edit(FLYING, "1")),
    term("activations not divided by t",
         "tensor and sequence parallelism together cut all that a layer keeps: 34 s b h / t.",
         edit("* model.hidden / plan.tp", "* model.hidden")),
    term("10 + 24/t",
        "10 + 24/t is without sequence parallelism. With it the norms' 10 are divided by t too: 34 "
        "/ t.",
         edit(FACTOR, "(10 * plan.tp + 24) * model.seq")),
    term("all layers kept", "a stage keeps what its own layers need: L/p of them, not L.",
         edit("kept * model.layers / plan.pp", "kept * model.layers")),
    term("micro-batch forgotten",
         "34 s h / t is for one sequence. A micro-batch has b = plan.micro_batch of them.",
         edit("* plan.micro_batch *", "*")),
    term("the step's rows",
         "b is of one micro-batch, plan.micro_batch; no rank keeps the whole batch at once.",
         edit("* plan.micro_batch *", "* plan.global_batch *")),
    term("the scores as well",
         "the attention scores, 5 a s per token, are recomputed in backward: 34 s b h is what is "
         "kept.",
         edit(FACTOR, "(34 + 5 * model.heads * model.seq / model.hidden) * model.seq")),
    term("34 taken for numbers", "34 s b h are bytes already: do not multiply by 2 again.",
          edit(FACTOR, "68 * model.seq")),
    term("activations forgotten",
         "only the model state is there. Add what L/p layers keep of min(m, p) micro-batches, 34 s "
         "b h / t each.",
         edit("state + kept", "state + 0.0")),
)  # fmt: skip


def mistakes(terms):
    return [Mistake(name, one, says) for name, says, edits in terms for one in edits]


def both(first, second):
    """Two mistakes at once, by the first one's name."""
    pairs = [(a, b) for a in mistakes(first) for b in mistakes(second)]
    return [Mistake(a.hint, Edit((*b.answer.changes, *a.answer.changes)), a.text) for a, b in pairs]


def idle(part):
    return edit(
        "(plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp - 1)",
        f"(lambda p, v, m: {part})(plan.pp, plan.v, plan.micro_batches)",
    )


BUBBLE = (
    term("over the busy time",
         "(p-1)/m compares the bubble with the time at work. The step is both together: v m + p - "
         "1.",
         idle("(p - 1) / m"), idle("(p - 1) / (v * m)")),
    term("m + p",
         "the last of m micro-batches leaves the last stage after m + p - 1 turns: the first is in "
         "it after p - 1.",
         idle("(p - 1) / (m + p)"), idle("(p - 1) / (v * m + p)")),
    term("p for p - 1",
         "a rank waits p - 1 turns: its own is no waiting. A pipeline of one stage has no bubble.",
         idle("p / (m + p - 1)"), idle("p / (v * m + p - 1)"), idle("p / (v * m + p)")),
    term("v forgotten",
         "with v stages per rank a turn is 1/v as long: the rank works v m turns and still waits p "
         "- 1.",
         idle("(p - 1) / (m + p - 1)")),
    term("v in the wrong place",
         "v makes m larger, and nothing else: v m + p - 1 turns, of which p - 1 are idle.",
         idle("(p - 1) / (m + p - 1) / v"), idle("(p - 1) / (m / v + p - 1)"),
         idle("(v * p - 1) / (m + v * p - 1)"),
         idle("(v * p - 1) / (v * m + v * p - 1)"), idle("v * (p - 1) / (m + p - 1)")),
    term("whole numbers", "a part of 1 is no whole number: / and not //.",
         idle("(p - 1) // (v * m + p - 1)")),
    term("another m",
         "m counts one pipeline's micro-batches: plan.micro_batches = global batch / (d b).",
         idle("(p - 1) / (v * plan.global_batch + p - 1)"),
         idle("(p - 1) / (v * (plan.global_batch // plan.dp) + p - 1)"),
         idle("(p - 1) / (v * (plan.global_batch // plan.micro_batch) + p - 1)")),
    term("the busy part", "that is the part in which a GPU works; the bubble is the rest.",
         idle("1 - (p - 1) / (v * m + p - 1)")),
    term("percent", "return a part of 1, and make percent of it when you print.",
         idle("100 * (p - 1) / (v * m + p - 1)")),
)  # fmt: skip


def no_ring(N):
    ring = f"2 * ({N} - 1) / {N} *"
    return term(
        "no ring",
        RING,
        *(edit(ring, f"{ways} *") for ways in (f"2 * ({N} - 1)", f"({N} - 1)", "1", "2")),
    )


ALONG_TP = "/ plan.tp * activations,"
MESSAGES = (
    term("m forgotten", M, edit('"tp": m *', '"tp":')),
    term("micro-batch forgotten", B, edit(ALONG_TP, "/ plan.tp * activations / plan.micro_batch,")),
    no_ring("plan.tp"),
    term("all layers", "a GPU has the layers of its stage: L/p of them, not L.",
         edit("m * layers", "m * model.layers")),
    term("all-reduce of a part",
         "an all-reduce adds whole activations, 2 s b h bytes: every tensor rank has a partial sum "
         "of all of them.",
         edit(ALONG_TP, "/ plan.tp * activations / plan.tp,")),
    term("v in tp", "v says into how many stages a rank's L/p layers are cut. They send the same.",
         edit("m * layers", "m * layers * plan.v"), edit("m * layers", "m * layers / plan.v")),
    term("m forgotten", M, edit('"pp": m *', '"pp":')),
    term("micro-batch forgotten", B, edit('"pp": m', '"pp": m / plan.micro_batch')),
    term("messages not divided by t",
         "each of the t tensor ranks sends its own part of the activations: 2 s b h / t.",
         edit("activations / plan.tp if", "activations if")),
    term("v forgotten",
         "a rank with v stages sends v times: each of its stages hands on what it has made.",
         edit("m * plan.v", "m")),
    term("a pipeline of one", "where pp is 1 there is no other stage, and nothing to send: 0.",
         edit(" if plan.pp > 1 else 0.0", "")),
    term("the whole pipeline's", "that is what all p stages send. The function tells of one GPU.",
         edit('"pp": m', '"pp": (plan.pp - 1) * m'), edit('"pp": m', '"pp": plan.pp * m')),
    term("fp32 gradients", "gradients have 16 bits here: 2 P bytes, not 4 P.",
         edit('"dp": 2', '"dp": 4')),
    no_ring("plan.dp"),
    term("m times",
         "gradients of the m micro-batches are summed on the GPU first: one all-reduce per step.",
         edit('"dp": 2', '"dp": m * 2')),
    *PARAMETERS,
)  # fmt: skip
MISTAKES = {
    "plan_memory": (*mistakes(STATE), *mistakes(ACTIVATIONS), *both(STATE, ACTIVATIONS)),
    "plan_bubble": tuple(mistakes(BUBBLE)),
    "plan_messages": tuple(mistakes(MESSAGES)),
}
