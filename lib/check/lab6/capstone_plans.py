"""Lab 6, section 5, the capstone: chosen_plans(), which returns a plan with ZeRO-1 for each of four
jobs. It must be possible to lay out each plan on the GPUs. The plan has to fit into memory, and a
step may take at most 1.1 times as long as with the best plan with ZeRO-1 that fits.

Any plan with these properties is right. A Problem's fact `why` says what is wrong with a plan.
"""

import functools
from numbers import Integral

from lib.check.causes import hints
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Problem
from lib.check.explain import cut, described
from lib.check.lab6.capstone_jobs import BATCH, GPUS, JOBS, words
from lib.check.left_out import LEAVES_OUT
from lib.cost import explain, search
from lib.cost import memory as of_memory
from lib.cost import step as of_step
from lib.cost.hardware import GIB
from lib.cost.plan import RECOMPUTE, SCHEDULES, Plan, slots

LONGER = 1.1
DEGREES = ("global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "v")
CHOICES = {"zero": (1,), "recompute": RECOMPUTE, "schedule": SCHEDULES, "precision": ("bf16",)}
FIELDS = (*DEGREES, *CHOICES)
_CALLED = []  # an answer that searches for plans would be several times slower in `noting_calls`


# exercise: lab6.chosen_plans
def chosen_plans():
    """{job: Plan} for the four jobs."""
    _CALLED.append(True)
    plan = functools.partial(Plan, BATCH, zero=1)
    return {
        "dense, H100": plan(2, tp=8, pp=4, dp=8, v=12, sequence_parallel=True),
        "dense, GB200": plan(8, tp=8, pp=2, dp=16, v=16, sequence_parallel=True),
        "mixture, H100": plan(2, tp=1, pp=4, dp=64, ep=16, v=12, recompute="full"),
        "mixture, GB200": plan(2, tp=1, pp=4, dp=64, ep=32, v=12),
    }


def _problem(why, text):
    return Problem("said", text, {"why": why})


def _measure(fn):
    _CALLED.clear()
    got = fn()
    told = "it calls lib's chosen_plans, which is what this exercise asks for"
    return Problem("built-in", told) if _CALLED else got


def _judge(judged):
    """A claim's judge: the first Problem that judged(job, plan) -> Problem or None returns."""

    @without_ranks
    def judge(seen):
        if isinstance(seen, Problem):
            return seen
        if not isinstance(seen, dict) or seen.keys() != JOBS.keys():
            why = "nothing returned" if seen is None else "not four plans"
            return _problem(why, f"expected a plan for each of {'; '.join(JOBS)}; got {cut(seen)}")
        return next(filter(None, (judged(job, seen[job]) for job in JOBS)), None)

    return judge


def _can_be_laid_out(job, plan):
    if not isinstance(plan, Plan):
        text = f"{job}: expected a Plan, got {described(plan)}"
        return _problem("no Plan", text)
    is_one = lambda n: isinstance(n, Integral) and not isinstance(n, bool) and n > 0
    right = lambda name, one: one in CHOICES[name] if name in CHOICES else is_one(one)
    odd = next((name for name in FIELDS if not right(name, getattr(plan, name))), None)
    if odd:
        expected = " or ".join(map(str, CHOICES.get(odd, ["a whole number above 0"])))
        text = f"{job}: {odd} is {getattr(plan, odd)!r}: expected {expected}"
        return _problem("a field of the Plan", text)
    model, stages = JOBS[job].model, plan.pp * plan.v
    layers, degrees = slots(model.layers, plan.pp), f"pp {plan.pp} x v {plan.v} = {stages}"
    gpus = f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp} x cp {plan.cp} = {plan.gpus}"
    rules = (  # (whether it is broken, why, in words), the most obvious first
        (plan.gpus != GPUS, "other GPUs", f"{gpus} GPUs; the job has {GPUS}"),
        (plan.global_batch != BATCH, "another batch",
         f"{plan.global_batch} sequences in a step; the job has {BATCH}"),
        (layers % stages, "unequal stages",
         f"{layers} layers cannot be split into {degrees} stages of as many each"),
        (plan.problem(model), "cannot be laid out", plan.problem(model)),
    )  # fmt: skip
    broken = (_problem(why, f"{job}: {text}") for wrong, why, text in rules if wrong)
    return next(broken, None)


def _fits(job, plan):
    model, device, _, stack = JOBS[job]
    parts, room = of_memory.memory(model, plan, stack), of_memory.FITS * device.memory
    needs = sum(parts.values())
    if needs <= room:
        return None
    most = sorted((part for part in parts.items() if part[1]), key=lambda part: -part[1])
    text = f"{words(job, plan)}: needs {needs / GIB:.1f} GiB on its fullest GPU; "
    text += f"{room / GIB:.1f} of its {device.memory / GIB:.0f} GiB may be used\n"
    text += ", ".join(f"{name} {size / GIB:.1f}" for name, size in most) + " GiB"
    blame = {
        "activations too large": parts["activations"],
        "one micro-batch too large": max(parts["logits"], parts["working"]),
        "state too large": parts["weights"] + parts["gradients"] + parts["optimizer"],
    }
    return _problem(max(blame, key=blame.get), text)


@functools.cache
def best(job):
    """The fastest Choice with ZeRO-1 that fits."""
    model, device, _, stack = JOBS[job]
    return search.search(model, device, GPUS, BATCH, stack, fixed={"zero": 1})[0]


def _is_fast(job, plan):
    model, device, _, stack = JOBS[job]
    seconds, (fastest, least, _) = of_step.step_seconds(model, plan, device, stack), best(job)
    total = sum(seconds.values())
    if total <= LONGER * least:
        return None
    (worst, lost), _ = explain.compare(of_step.step_seconds(model, fastest, device, stack), seconds)
    text = (
        f"{words(job, plan)}: a step takes {total:.2f} s, {total / least:.3f} times as long as "
        f"with the best plan with ZeRO-1 that fits; {LONGER} times is near enough\n"
        f"It loses most on {explain.WORDS[worst]}, {lost:.2f} s more than that plan"
    )
    return Problem("said", text, {"why": worst, "recompute": plan.recompute})


PLANS = Exercise(
    name="chosen_plans", reference=chosen_plans, measure=_measure, worlds=(),
    leaves_out=LEAVES_OUT | {"again": "it has no arguments"},
    claims=(
        claim("plans that fit", 3, "256 GPUs, 512 sequences; into 83%", _judge(_can_be_laid_out),
              _judge(_fits)),
        claim("and are fast", 3, "at most 1.1 times the best one's step", _judge(_is_fast)),
    ),
    hints=hints("lab6", "chosen_plans"),
)  # fmt: skip
