"""Known mistakes in the capstone's estimate, edits of lib's code."""

from mistakes import Mistake, edit

_FLIGHT = " * (\n        1 + (plan.pp - 1) / (plan.pp * plan.v) * (plan.v > 1)\n    )"
_SLOWER, _DOMAINS = '"expert messages": max(inside, across)', "max(1, plan.ep / gpu.per_node)"
_ONCE = "(domains - 1) * (1 - (1 - 1 / domains) ** model.topk)"
_BUBBLE = ' | {"pipeline bubble": sum(busy.values()) * bubble / (1 - bubble)}'
_MFU = "_operations(model, plan) / (plan.gpus * gpu.bf16 * seconds)"
_COMPUTING = "_operations(model, plan) * (4 / 3 if full else 1) / (plan.gpus * gpu.bf16 * reached)"
NO_INTERLEAVING = Mistake(
    "no interleaving",
    edit(
        "bubble = plan_bubble(plan)", "bubble = (plan.pp - 1) / (plan.micro_batches + plan.pp - 1)"
    ),
)
_M = "plan.global_batch // plan.micro_batch"
ANOTHER_M = Mistake(
    "another m",
    edit("passed = plan.micro_batches *", f"passed = {_M} *").then(
        "(plan.v * plan.micro_batches + plan.pp - 1)", f"(plan.v * ({_M}) + plan.pp - 1)"
    ),
)
_IN_EXPERTS = "model.experts * model.expert_parameters * model.layers"
MISTAKES = {
    "estimate": (
        ANOTHER_M,
        Mistake("not all experts", edit(_IN_EXPERTS, "model.experts * model.expert_parameters")),
        Mistake("not all experts",
                edit(_IN_EXPERTS, _IN_EXPERTS.replace("model.experts", "model.topk"))
                .then("((model.parameters", "((model.active_parameters")
                .then("12 * model.parameters", "12 * model.active_parameters")),
        Mistake("every rank has all experts", edit("in_experts / plan.ep", "in_experts")),
        Mistake("every rank has all experts", edit("in_experts / plan.ep",
            "in_experts / plan.tp")),
        Mistake("micro-batches in flight", edit("min(plan.micro_batches, plan.pp)", "plan.pp")),
        Mistake("micro-batches in flight", edit("min(plan.micro_batches, plan.pp)",
            "plan.micro_batches")),
        Mistake("tokens of every tensor rank",
                edit("tokens, layers = plan.micro_batch * model.seq / plan.tp",
                     "tokens, layers = plan.micro_batch * model.seq")),
        Mistake("recomputation keeps inputs",
                edit("2 * h * layers * in_flight + layer if full else ", "")),
        Mistake("what experts keep", edit("15 * h + k * (4 * h + 6 * model.ffn) if k else 34 * h",
            "34 * h")),
        Mistake("interleaved stages keep more", edit(_FLIGHT, "")),
        Mistake("not interleaved", edit(" * (plan.v > 1)", "")),
        Mistake("an optimizer on every data rank",
                edit("12 * model.parameters / plan.gpus", "12 * weights")),
        Mistake("gradients in 16 bits", edit("(2 + 4) * weights", "(2 + 2) * weights")),
        Mistake("no bytes", edit("state + kept * tokens",
            "(state + kept * tokens) / 2**30")),
        Mistake("all parameters compute", edit("6 * model.active_parameters",
            "6 * model.parameters")),
        Mistake("forward runs twice", edit(_COMPUTING, _COMPUTING.replace("(4 / 3 if full else 1)",
            "1"))),
        Mistake("the peak is not reached", edit(" * reached)", " * reached**2)")),
        Mistake("the peak is not reached", edit(" * reached)", ")")),
        Mistake("the exchange of experts", edit(_SLOWER, '"expert messages": inside / 2')),
        Mistake("the exchange of experts", edit(_SLOWER, '"expert messages": 0')),
        Mistake("a row for every expert between domains",
                edit(_ONCE, "(1 - 1 / domains) * model.topk")),
        Mistake("an NVLink domain is no node of 8", edit(_DOMAINS, "max(1, plan.ep / 8)")),
        Mistake("no messages along tp", edit("sums / gpu.link", "0")),
        Mistake("messages along tp over the network", edit("sums / gpu.link", "sums / gpu.nic")),
        Mistake("one message for the whole step", edit("sums = passed",
            "sums = passed / plan.micro_batches")),
        Mistake("the bubble", edit(_BUBBLE, "")),
        Mistake("a part of the whole", edit(_BUBBLE, _BUBBLE.replace("bubble / (1 - bubble)",
            "bubble"))),
        NO_INTERLEAVING,
        Mistake("the size of another job",
                edit("plan.global_batch * model.seq", "512 * 2048")),
        Mistake("percent", edit(_MFU, f"100 * {_MFU}")),
        Mistake("operations twice", edit(_MFU, f"(4 / 3 if full else 1) * {_MFU}")),
        Mistake("another MFU", edit(_MFU, "reached")),
    ),
    "main_costs": (
        ANOTHER_M,
        Mistake("no bubble", edit(_BUBBLE, "")),
        Mistake("no rows", edit(_SLOWER, '"expert messages": 0')),
        Mistake("no sums", edit("sums / gpu.link", "0")),
        Mistake("the two smallest", edit("[-2:]", "[:2]")),
        Mistake("one message for the whole step", edit("passed = plan.micro_batches * ",
            "passed = ")),
        NO_INTERLEAVING,
        Mistake("all inside the NVLink domain", edit(_SLOWER, '"expert messages": inside')),
    ),
}  # fmt: skip
