"""Known mistakes in the capstone's estimate, edits of lib's code."""

from mistakes import Mistake, edit

_FLIGHT = " * (\n        1 + (plan.pp - 1) / (plan.pp * plan.v) * (plan.v > 1)\n    )"
_SLOWER, _DOMAINS = '"expert messages": max(inside, across)', "max(1, plan.ep / gpu.per_node)"
_ONCE = "(domains - 1) * (1 - (1 - 1 / domains) ** model.topk)"
_BUBBLE = ' | {"pipeline bubble": sum(busy.values()) * bubble / (1 - bubble)}'
_MFU = "_operations(model, plan) / (plan.gpus * gpu.bf16 * seconds)"
_COMPUTING = "_operations(model, plan) * (4 / 3 if full else 1) / (plan.gpus * gpu.bf16 * reached)"
ONE_MESSAGE = "that is one micro-batch's tokens: messages come with each of m of them."
NO_INTERLEAVING = Mistake(
    "no interleaving",
    edit(
        "bubble = plan_bubble(plan)", "bubble = (plan.pp - 1) / (plan.micro_batches + plan.pp - 1)"
    ),
    "v stages per rank make the bubble smaller: (p-1) / (v m + p-1).",
)
MISTAKES = {
    "estimate": (
        Mistake("every rank has all experts", edit("in_experts / plan.ep", "in_experts")),
        Mistake("every rank has all experts", edit("in_experts / plan.ep",
            "in_experts / plan.tp")),
        Mistake("inputs of all layers", edit("min(plan.micro_batches, plan.pp)", "plan.pp")),
        Mistake("recomputation keeps inputs",
                edit("2 * h * layers * in_flight + layer if full else ", "")),
        Mistake("what experts keep", edit("15 * h + k * (4 * h + 6 * model.ffn) if k else 34 * h",
            "34 * h")),
        Mistake("interleaved stages keep more", edit(_FLIGHT, "")),
        Mistake("too much memory", edit("12 * model.parameters / plan.gpus", "12 * weights")),
        Mistake("too much memory", edit("min(plan.micro_batches, plan.pp)", "plan.micro_batches")),
        Mistake("too little memory", edit("(2 + 4) * weights", "(2 + 2) * weights")),
        Mistake("not interleaved", edit(" * (plan.v > 1)", ""),
                "where v is 1 no more than min(m, p) micro-batches are in flight: the factor is "
                "for v > 1."),
        Mistake("no bytes", edit("state + kept * tokens",
            "(state + kept * tokens) / 2**30")),
        Mistake("all parameters compute", edit("6 * model.active_parameters",
            "6 * model.parameters")),
        Mistake("forward runs twice", edit(_COMPUTING, _COMPUTING.replace("(4 / 3 if full else 1)",
            "1"))),
        Mistake("the exchange of experts", edit(_SLOWER, '"expert messages": inside / 2')),
        Mistake("the exchange of experts", edit(_SLOWER, '"expert messages": 0')),
        Mistake("a row for every expert between domains",
                edit(_ONCE, "(1 - 1 / domains) * model.topk")),
        Mistake("an NVLink domain is no node of 8", edit(_DOMAINS, "max(1, plan.ep / 8)")),
        Mistake("the size of another job",
                edit("plan.global_batch * model.seq", "512 * 2048")),
        Mistake("the bubble", edit(_BUBBLE, "")),
        Mistake("a part of the whole", edit(_BUBBLE, _BUBBLE.replace("bubble / (1 - bubble)",
            "bubble")),
                "the bubble is a part of the whole step, its own time included: divide by 1 - "
                "bubble."),
        NO_INTERLEAVING,
        Mistake("one message for the whole step", edit("sums = passed",
            "sums = passed / plan.micro_batches"),
                ONE_MESSAGE),
        Mistake("too long a step", edit(" * reached)", " * reached**2)")),
        Mistake("too short a step", edit(" * reached)", ")")),
        Mistake("percent", edit(_MFU, f"100 * {_MFU}")),
        Mistake("operations twice", edit(_MFU, f"(4 / 3 if full else 1) * {_MFU}")),
        Mistake("another MFU", edit(_MFU, "reached")),
    ),
    "main_costs": (
        Mistake("no bubble", edit(_BUBBLE, "")),
        Mistake("no rows", edit(_SLOWER, '"expert messages": 0')),
        Mistake("no sums", edit("sums / gpu.link", "0")),
        Mistake("the two smallest", edit("[-2:]", "[:2]"),
                "sorted begins with the smallest: the two largest are the last two."),
        Mistake("one message for the whole step", edit("passed = plan.micro_batches * ",
            "passed = "), ONE_MESSAGE),
        NO_INTERLEAVING,
        Mistake("all inside the NVLink domain", edit(_SLOWER, '"expert messages": inside'),
                "where ep spans several NVLink domains, rows also leave theirs, over gpu.nic, a "
                "much slower link."),
    ),
}  # fmt: skip
