"""Lab 6, section 9: capstone() -> (plan, fullest, slowest), a plan for GPT-3 on 256 GPUs and two words to justify it.

    the job      GPT-3 175B, sequences of 2,048 tokens, 512 of them a step; 256 H100 of 80 GB, 8 in a node; bf16
    plan         can be laid out, fits, and takes at most 10 % longer than the best there is
    fullest      what takes most of the memory of its fullest GPU
    slowest      what takes most of its step beside matrix products

Any plan will do that is as good. Memory and seconds are those of `lib.cost`, of its default software stack.
"""

import functools

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab5.here import answered
from lib.check.lab6.capstone_hints import HINTS
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
    return answered(capstone, fn, "capstone()")


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
    odd = next((name for name in DEGREES if type(getattr(plan, name)) is not int or getattr(plan, name) < 1), None)
    if odd:
        return Problem("value", f"{odd} is {getattr(plan, odd)!r}: expected a whole number, 1 or more")
    for name, known in (("zero", range(4)), ("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("precision", ["bf16"])):
        if getattr(plan, name) not in known:
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
    if word == most:
        return None
    text = f'{what} is "{word}", which takes {size(word)}; another component takes {size(most)}'
    return Problem("smaller", text, {"what": what})


def _is_fullest(plan, fullest, _):
    return _is_largest("fullest", fullest, _components(plan)[0], (GIB, "GiB"))


def _is_slowest(plan, _, slowest):
    if slowest == "matmul":
        return Problem("matmul", "matmul takes most of the step, as it should; asked is what comes next")
    return _is_largest("slowest", slowest, _components(plan)[1], (1, "s"))


EXERCISE = Exercise(
    name="capstone",
    reference=capstone,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("a plan for this job", 2, "256 GPUs, 512 sequences, 96 layers", _judge(_can_be_laid_out)),
        Claim("it fits", 2, "into 83 % of 80 GiB", _judge(_fits)),
        Claim("it is fast", 3, "at most 1.1 times the best plan's step", _judge(_is_fast)),
        Claim("the fullest component", 1, "of its fullest GPU's memory", _judge(_is_fullest)),
        Claim("the slowest component", 2, "of the step, beside matmul", _judge(_is_slowest)),
    ),
    hints=HINTS,
)
