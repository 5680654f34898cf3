"""Lab 6, section 9: capstone() -> (plan, fullest, slowest), a plan for GPT-3 on 256 GPUs and two words to justify it.

    the job      GPT-3 175B, sequences of 2,048 tokens, 512 of them a step; 256 H100 of 80 GB, 8 in a node; bf16
    plan         can be laid out, fits, and takes at most 10 % longer than the best there is
    fullest      what takes most of the memory of its fullest GPU
    slowest      what takes most of its step beside matrix products

Any plan will do that is as good. Memory and seconds are those of `lib.cost`, of its default software stack.
"""

import functools
from math import isclose
from numbers import Integral

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab0.left_out import NO_RANKS
from lib.check.pure import noting_calls
from lib.cost.explain import WORDS, compare
from lib.cost.hardware import GIB, gpu
from lib.cost.memory import memory
from lib.cost.plan import RECOMPUTE, SCHEDULES, Plan
from lib.cost.predict import FITS
from lib.cost.search import DEFAULT_STACK, search
from lib.cost.shapes import load
from lib.cost.stacks import stacks
from lib.cost.step import step_seconds

MODEL, GPU, GPUS, BATCH, STACK = load("gpt-3-175b"), gpu("H100-80GB"), 256, 512, stacks()[DEFAULT_STACK]
ROOM = FITS * GPU.memory
LONGER = 1.1
DEGREES = ("global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "v")


# exercise: lab6.capstone
def capstone():
    """(plan, fullest, slowest): a Plan for the job; what takes most of its memory, and of its step beside matmul."""
    plan = Plan(512, 2, tp=8, pp=4, dp=8, v=12, zero=1, sequence_parallel=True)
    sizes, seconds = _components(plan)
    return plan, max(sizes, key=sizes.get), max(seconds, key=seconds.get)


def _components(plan):
    """({component: bytes} on the plan's fullest GPU, {component: seconds} of its step), what is not asked left out."""
    sizes, seconds = memory(MODEL, plan, STACK), step_seconds(MODEL, plan, GPU, STACK)
    return {k: v for k, v in sizes.items() if k != "reserve"}, {k: v for k, v in seconds.items() if k != "matmul"}


@functools.cache
def _space():
    """[Choice] of all plans that fit, the fastest first."""
    return search(MODEL, GPU, GPUS, BATCH)


def _measure(fn):
    with noting_calls(capstone) as calls:
        got = fn()
    return Problem("built-in", "it calls lib's capstone, which is what this exercise asks for") if calls else got


def _judge(judged):
    """As a claim's judge: judged(plan, fullest, slowest) -> Problem or None."""

    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        if isinstance(seen, Problem):
            return seen
        if not isinstance(seen, tuple | list) or len(seen) != 3:
            what = f"{len(seen)} things" if isinstance(seen, tuple | list) else f"a {type(seen).__name__}"
            return Problem("form", f"expected (plan, fullest, slowest), got {what}")
        return judged(*seen)

    return judge


def _can_be_laid_out(plan, *_):
    if not isinstance(plan, Plan):
        return Problem("no plan", f"expected a Plan first, got a {type(plan).__name__}: {plan!r:.60}")
    is_one = lambda n: isinstance(n, Integral) and not isinstance(n, bool) and n > 0
    if odd := next((name for name in DEGREES if not is_one(getattr(plan, name))), None):
        return Problem("value", f"{odd} is {getattr(plan, odd)!r}: expected a whole number, 1 or more")
    for name, known in (("zero", range(4)), ("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("precision", ["bf16"])):
        if getattr(plan, name) not in tuple(known):
            text = f"{name} is {getattr(plan, name)!r}: expected {', '.join(map(str, known))}"
            return Problem("value", text)
    if plan.gpus != GPUS:
        text = f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp} x cp {plan.cp} = {plan.gpus} GPUs; the job has {GPUS}"
        return Problem("gpus", text)
    if plan.global_batch != BATCH:
        return Problem("batch", f"{plan.global_batch} sequences in a step; the job has {BATCH}")
    if MODEL.layers % (plan.pp * plan.v):
        stages = f"pp {plan.pp} x v {plan.v} = {plan.pp * plan.v} stages"
        return Problem("stages", f"{MODEL.layers} layers cannot be cut into {stages} of as many layers each")
    problem = plan.problem(MODEL)
    return Problem("layout", problem) if problem else None


def _words(plan):
    return f"{plan}, m {plan.micro_batches}"


def _fits(plan, *_):
    parts = memory(MODEL, plan, STACK)
    needs = sum(parts.values())
    if needs <= ROOM:
        return None
    text = f"{_words(plan)}: needs {needs / GIB:.1f} GiB on its fullest GPU; "
    most = sorted((part for part in parts.items() if part[1]), key=lambda part: -part[1])
    text += f"{ROOM / GIB:.1f} of its {GPU.memory / GIB:.0f} GiB may be used\n"
    text += ", ".join(f"{name} {size / GIB:.1f}" for name, size in most) + " GiB"
    blame = {name: parts[name] for name in ("activations", "logits", "working")}
    blame["state"] = parts["weights"] + parts["gradients"] + parts["optimizer"]
    return Problem("memory", text, {"is": max(blame, key=blame.get)})


def _is_fast(plan, *_):
    best = _space()[0]
    seconds = step_seconds(MODEL, plan, GPU, STACK)
    total = sum(seconds.values())
    if total <= LONGER * best.seconds:
        return None
    (worst, lost), _ = compare(step_seconds(MODEL, best.plan, GPU, STACK), seconds)
    text = f"{_words(plan)}: a step takes {total:.2f} s, {total / best.seconds:.3f} times as long as with the best of "
    text += f"{len(_space()):,} plans that fit; {LONGER} times is near enough\n"
    text += f"It loses most on {worst}: {lost:.2f} s more on {WORDS[worst]}"
    return Problem("seconds", text, {"is": worst, "plan": plan})


def _is_largest(what, word, parts, unit):
    """The Problem if `word` does not name the largest of parts, {component: size}; it does not tell which does."""
    size = lambda name: f"{parts[name] / unit[0]:.3g} {unit[1]}"
    if not isinstance(word, str) or word not in parts:
        return Problem("word", f"{what} is {word!r:.40}: expected one of {', '.join(parts)}", {"what": what})
    most = max(parts, key=parts.get)
    if isclose(parts[word], parts[most]):
        return None
    text = f'{what} is "{word}", which takes {size(word)}; another component takes {size(most)}'
    return Problem("smaller", text, {"what": what})


def _is_fullest(plan, fullest, _):
    return _is_largest("fullest", fullest, _components(plan)[0], (GIB, "GiB"))


def _is_slowest(plan, _, slowest):
    if slowest == "matmul":
        return Problem("matmul", "matmul takes most of the step, as it should; asked is what comes next")
    return _is_largest("slowest", slowest, _components(plan)[1], (1, "s"))


def _word(kind, what):
    return lambda p: p.kind == kind and p.fact("what") == what


def _slow(component, plan_is):
    """Does it lose most on this component, with such a plan?"""
    return lambda p: p.kind == "seconds" and p.facts["is"] == component and plan_is(p.facts["plan"])


def _large(*parts):
    """Is it one of these that takes most of the memory?"""
    return lambda p: p.kind == "memory" and p.facts["is"] in parts


EXERCISE = Exercise(
    name="capstone",
    reference=capstone,
    measure=_measure,
    worlds=(),
    leaves_out={name: why for name, why in NO_RANKS.items() if name != "returned"} | {"again": "it has no arguments"},
    claims=(
        claim("a plan for this job", 2, "256 GPUs, 512 sequences, 96 layers", _judge(_can_be_laid_out)),
        claim("it fits", 2, "into 83 % of 80 GiB", _judge(_fits)),
        claim("it is fast", 3, "at most 1.1 times the best plan's step", _judge(_is_fast)),
        claim("the fullest component", 1, "of its fullest GPU's memory", _judge(_is_fullest)),
        claim("the slowest component", 2, "of the step, beside matmul", _judge(_is_slowest)),
    ),
    hints=(
        Hint("called lib's", s.kind("built-in"), "the plan and both words are yours to find."),
        Hint("not three things", s.kind("form"), 'end with return Plan(...), "one component", "another".'),
        Hint(
            "no Plan", s.kind("no plan"), "Plan(512, micro_batch, tp=..., pp=..., dp=..., zero=...), of lib.cost.plan."
        ),
        Hint("a field of the Plan", s.kind("value"), "degrees are whole numbers; the job runs in bf16."),
        Hint("other GPUs", s.kind("gpus"), "tp x pp x dp is all the GPUs there are: choose tp and pp, and dp follows."),
        Hint("another batch", s.kind("batch"), "the job says how many sequences a step has. b is yours to choose."),
        Hint(
            "unequal stages",
            s.kind("stages"),
            "pp v stages of 96 / (pp v) layers each, a whole number; and pp divides the 256 GPUs.",
        ),
        Hint("cannot be laid out", s.kind("layout"), "m = batch / (dp b) is whole; where v is not 1, pp divides it."),
        Hint(
            "state too large",
            _large("state"),
            "weights and gradients are cut by tp and pp, the optimizer also by dp from ZeRO-1 on: more of these.",
        ),
        Hint(
            "activations too large",
            _large("activations"),
            "a layer keeps b / tp of them under sequence parallelism. More stages do not help while there are more "
            "micro-batches than stages: each has fewer layers, and more in flight.",
        ),
        Hint(
            "one micro-batch too large",
            _large("working", "logits"),
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
            "without a pipeline ZeRO-3 gathers every layer's weights, and ZeRO-2 sends gradients, for each "
            "micro-batch; ZeRO-1 sends once per step.",
        ),
        Hint(
            "norms on every tensor rank",
            _slow("elementwise", lambda plan: not plan.sequence_parallel),
            "without sequence parallelism each tensor rank has all tokens between the products: "
            "sequence_parallel=True.",
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
        Hint("matmul", s.kind("matmul"), "matrix products are what the GPUs are for. What takes most of the rest?"),
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
        *s.ANYWHERE,
    ),
)
