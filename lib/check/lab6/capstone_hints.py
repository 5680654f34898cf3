"""What to do about a capstone that does not pass: what is in the way, and which degree moves it."""

from lib.check.framework import Hint
from lib.check.lab5.here import is_kind


def _word(kind, what):
    return lambda p: p.kind == kind and p.facts.get("what") == what


def _slow(component, plan_is):
    """Does it lose most on this component, with such a plan?"""
    return lambda p: p.kind == "seconds" and p.facts["is"] == component and plan_is(p.facts["plan"])


HINTS = (
    Hint("not three things", is_kind("form"), 'end with return Plan(...), "one component", "another".'),
    Hint("no Plan", is_kind("no plan"), "Plan(512, micro_batch, tp=..., pp=..., dp=..., zero=...), of lib.cost.plan."),
    Hint("a field of the Plan", is_kind("value"), "degrees are whole numbers; the job runs in bf16."),
    Hint("other GPUs", is_kind("gpus"), "tp x pp x dp is all the GPUs there are: choose tp and pp, and dp follows."),
    Hint("another batch", is_kind("batch"), "the job says how many sequences a step has. b is yours to choose."),
    Hint(
        "unequal stages",
        is_kind("stages"),
        "pp v stages of 96 / (pp v) layers each, a whole number; and pp divides the 256 GPUs.",
    ),
    Hint("cannot be laid out", is_kind("layout"), "m = batch / (dp b) is whole; where v is not 1, pp divides it."),
    Hint(
        "state too large",
        is_kind("memory", "state"),
        "weights and gradients are cut by tp and pp, the optimizer also by dp from ZeRO-1 on: more of these.",
    ),
    Hint(
        "activations too large",
        is_kind("memory", "activations"),
        "a layer keeps b / tp of them under sequence parallelism. More stages do not help while there are more "
        "micro-batches than stages: each has fewer layers, and more in flight.",
    ),
    Hint(
        "one micro-batch too large",
        is_kind("memory", "working", "logits"),
        "a single layer, or the logits, of so many sequences at once fills the GPU: a smaller micro-batch.",
    ),
    Hint(
        "recomputed for nothing",
        _slow("matmul", lambda plan: plan.recompute == "full"),
        "full recomputation runs forward twice, a third more work. Find a plan whose activations fit without it.",
    ),
    Hint(
        "a large bubble",
        _slow("bubble", lambda plan: True),
        "(p-1) / (v m + p-1): fewer stages, more micro-batches (a smaller b or dp), or more stages per rank.",
    ),
    Hint(
        "tensor parallelism too wide",
        _slow("tensor", lambda plan: plan.tp > 8),
        "a layer's all-reduces go over NVLink only within a node, 8 GPUs: beyond it the network carries them.",
    ),
    Hint(
        "gradients and weights exchanged too often",
        _slow("sharding", lambda plan: plan.zero > 1 and plan.pp == 1),
        "without a pipeline ZeRO-3 gathers every layer's weights, and ZeRO-2 sends gradients, for each micro-batch; "
        "ZeRO-1 sends once per step.",
    ),
    Hint(
        "norms on every tensor rank",
        _slow("elementwise", lambda plan: not plan.sequence_parallel),
        "without sequence parallelism each tensor rank has all tokens between the products: sequence_parallel=True.",
    ),
    Hint(
        "no component of memory",
        _word("word", "fullest"),
        "lib.cost.memory.memory(model, plan, stack) is a dict of the components and their bytes: one of its keys.",
    ),
    Hint(
        "not the fullest",
        _word("smaller", "fullest"),
        "look at lib.cost.memory.memory(model, plan, stack) for the plan you return, not for another.",
    ),
    Hint("matmul", is_kind("matmul"), "matrix products are what the GPUs are for. What takes most of the rest?"),
    Hint(
        "no component of the step",
        _word("word", "slowest"),
        "lib.cost.step.step_seconds(model, plan, gpu, stack) is a dict of the components and their seconds.",
    ),
    Hint(
        "not the slowest",
        _word("smaller", "slowest"),
        "look at lib.cost.step.step_seconds(model, plan, gpu, stack) for the plan you return, not for another.",
    ),
)
