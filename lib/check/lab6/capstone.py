"""Lab 6, section 5, the capstone: estimate and main_costs of (model, plan, gpu, reached);
chosen_plans() for four jobs.

    jobs      GPT-3 (dense) and Qwen3-235B (a mixture), on 256 H100, 8 in an NVLink domain, and on
              256 GB200, 64 in one
    estimate  memory, seconds and MFU of plans that the check brings, dense and mixtures, by the
              student's formulas: within 15, 20 and 10 % of the cost model's, and seconds within 20
              % of three published runs. It may ask the model nothing: a planner is no answer here
    costs     the two largest of five, for 17 of these plans, by the cost model's parts of a step;
              one that takes at most 3 % of the step less than another may stand in its place
    plans     one for each job: can be laid out, fits, and takes at most 1.1 times as long as the
              best with ZeRO-1

Any plan will do that is as good. Memory and seconds are those of `lib.cost`, with a stack that was
fitted on published runs of such a model: dense, or this very mixture.
"""

import functools
from numbers import Integral

from lib.calibration import predict
from lib.check.claims import claim, is_number, without_ranks
from lib.check.exercise import Bundle, Exercise, Problem
from lib.check.lab6 import capstone_costs
from lib.check.lab6 import capstone_hints as hints
from lib.check.lab6.capstone_jobs import (
    BATCH,
    CASES,
    CLEAR,
    GPUS,
    JOBS,
    MEASURED,
    RUNS,
    truth,
    words,
)
from lib.check.left_out import NO_RANKS, but
from lib.check.pure import asked, each, noting_calls, same_again
from lib.cost import by_hand, explain, search
from lib.cost import memory as of_memory
from lib.cost import step as of_step
from lib.cost.hardware import GIB
from lib.cost.plan import RECOMPUTE, SCHEDULES, Plan, slots

LONGER = 1.1
COST_MODEL = tuple(module.__file__ for module in (explain, predict, search, of_memory, of_step))
DEGREES = ("global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "v")
WITHIN = {"memory": 0.15, "seconds": 0.2, "MFU": 0.1, "a published step": 0.2}


_CALLED = []  # whoever searches for plans would take several times as long under `noting_calls`


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


def _measure(of_libs, cases, read):
    """measure(fn), of an answer that may ask neither lib's own nor the cost model."""

    def measure(fn):
        def noted(*args):
            with noting_calls(by_hand.estimate, by_hand.main_costs, *COST_MODEL) as calls:
                out = fn(*args)
            told = "it asks lib's cost model, whose answer is what it is to be compared with"
            return Problem("built-in", told) if calls else out

        def given(job, plan):
            of = (JOBS | RUNS)[job]
            return of.model, plan, of.gpu, of.reached

        return asked(
            noted,
            of_libs,
            cases,
            given,
            lambda out, *case: out if isinstance(out, Problem) else read(out),
        )

    return measure


def _read(got):
    if not isinstance(got, tuple | list) or len(got) != 3 or not all(map(is_number, got)):
        what = (
            f"{len(got)} things"
            if isinstance(got, tuple | list) and len(got) != 3
            else f"{got!r:.60}"
        )
        kind = "nothing" if got is None else "form"
        return Problem(kind, f"expected (bytes, seconds, MFU), three numbers; got {what}")
    return tuple(map(float, got))


def _near(what):
    """A judge: this number is near the cost model's in each case. facts: what, ratios
    {case: got / want}."""
    unit, said, number = {"memory": (GIB, "GiB", 0), "MFU": (1, "", 2)}.get(what, (1, "s", 1))
    cases = tuple(MEASURED) if what == "a published step" else CASES

    def want(case, got):
        if case in MEASURED:
            return MEASURED[case]
        if what != "MFU":
            return truth(*case)[number]
        model, device, *_ = JOBS[case[0]]
        # operations of a token; with attention's scores
        counts = 6 * model.active_parameters, model.flops_per_token()
        both = [each * BATCH * model.seq / (GPUS * device.bf16 * got[1]) for each in counts]
        return min(both, key=lambda one: abs(got[2] - one))

    @without_ranks
    def judge(seen):
        ratios = {case: seen[case][number] / want(case, seen[case]) for case in cases}
        wrong = {case: ratio for case, ratio in ratios.items() if abs(ratio - 1) > WITHIN[what]}
        if not wrong:
            return None
        case = next(iter(wrong))
        got, right = seen[case][number] / unit, want(case, seen[case]) / unit
        by = {
            "MFU": f"at {seen[case][1]:.3g} s a step it is",
            "a published step": "it was measured at",
        }.get(what, "the cost model says")
        text = (
            f"{words(*case)}: {what} {got:.3g} {said}; {by} {right:.3g} {said}, and "
            f"{WITHIN[what]:.0%} is near enough"
        )
        if len(wrong) > 1:
            text += f"\nIt is off in {len(wrong)} of {len(cases)} plans"
        return Problem(
            "off", text.replace(" ;", ";").replace(" ,", ","), {"what": what, "ratios": ratios}
        )

    return judge


def _measure_plans(fn):
    _CALLED.clear()
    got = fn()
    return (
        Problem("built-in", "it calls lib's chosen_plans, which is what this exercise asks for")
        if _CALLED
        else got
    )


def _judge(judged):
    """As a claim's judge: judged(job, plan) -> Problem or None, job by job."""

    @without_ranks
    def judge(seen):
        if isinstance(seen, Problem):
            return seen
        if not isinstance(seen, dict):
            return Problem(
                "nothing" if seen is None else "form",
                f"expected a dict of {len(JOBS)} plans, got {seen!r:.60}",
            )
        if seen.keys() != JOBS.keys():
            return Problem(
                "form", f"expected the jobs {'; '.join(JOBS)}; got {'; '.join(map(str, seen))}"
            )
        return next(filter(None, (judged(job, seen[job]) for job in JOBS)), None)

    return judge


def _can_be_laid_out(job, plan):
    if not isinstance(plan, Plan):
        return Problem(
            "no plan", f"{job}: expected a Plan, got a {type(plan).__name__}: {plan!r:.60}"
        )
    is_one = lambda n: isinstance(n, Integral) and not isinstance(n, bool) and n > 0
    if odd := next((name for name in DEGREES if not is_one(getattr(plan, name))), None):
        return Problem(
            "value", f"{job}: {odd} is {getattr(plan, odd)!r}: expected a whole number, 1 or more"
        )
    for name, right in (
        ("zero", [1]),
        ("recompute", RECOMPUTE),
        ("schedule", SCHEDULES),
        ("precision", ["bf16"]),
    ):
        if getattr(plan, name) not in tuple(right):
            text = (
                f"{job}: {name} is {getattr(plan, name)!r}: expected {', '.join(map(str, right))}"
            )
            return Problem("value", text)
    if plan.gpus != GPUS:
        text = (
            f"{job}: tp {plan.tp} x pp {plan.pp} x dp {plan.dp} x cp {plan.cp} = {plan.gpus} GPUs; "
            f"the job has {GPUS}"
        )
        return Problem("gpus", text)
    if plan.global_batch != BATCH:
        return Problem(
            "batch", f"{job}: {plan.global_batch} sequences in a step; the job has {BATCH}"
        )
    model = JOBS[job].model
    if slots(model.layers, plan.pp) % (plan.pp * plan.v):
        stages = f"pp {plan.pp} x v {plan.v} = {plan.pp * plan.v} stages"
        return Problem(
            "stages",
            f"{job}: {slots(model.layers, plan.pp)} layers cannot be cut into {stages} of as many "
            f"each",
        )
    problem = plan.problem(model)
    return Problem("layout", f"{job}: {problem}") if problem else None


def _fits(job, plan):
    model, device, _, stack = JOBS[job]
    parts, room = of_memory.memory(model, plan, stack), of_memory.FITS * device.memory
    needs = sum(parts.values())
    if needs <= room:
        return None
    text = f"{words(job, plan)}: needs {needs / GIB:.1f} GiB on its fullest GPU; "
    most = sorted((part for part in parts.items() if part[1]), key=lambda part: -part[1])
    text += f"{room / GIB:.1f} of its {device.memory / GIB:.0f} GiB may be used\n"
    text += ", ".join(f"{name} {size / GIB:.1f}" for name, size in most) + " GiB"
    blame = {name: parts[name] for name in ("activations", "logits", "working")}
    blame["state"] = parts["weights"] + parts["gradients"] + parts["optimizer"]
    return Problem("memory", text, {"is": max(blame, key=blame.get)})


@functools.cache
def best(job):
    """The fastest Choice that fits, of those with ZeRO-1."""
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
        f"It loses most on {worst}: {lost:.2f} s more on {explain.WORDS[worst]}"
    )
    return Problem("seconds", text, {"is": worst, "plan": plan})


_NOTHING_LEFT = but(NO_RANKS, "returned", "again")
ESTIMATE = Exercise(
    name="estimate", reference=by_hand.estimate,
    measure=_measure(by_hand.estimate, (*CASES, *MEASURED), _read),
    worlds=(),
    leaves_out=_NOTHING_LEFT,
    claims=(
        claim("memory", 6, "within 15% of the cost model, 19 plans",
              each((*CASES, *MEASURED), lambda *_: None, words), same_again(words),
              _near("memory")),
        claim("seconds", 7, "within 20%, dense and mixture", _near("seconds")),
        claim("MFU", 2, "within 10% of the one from your seconds", _near("MFU")),
        claim("published runs", 3, "seconds within 20% of three runs", _near("a published step")),
    ),
    hints=hints.ESTIMATE,
)  # fmt: skip
COSTS = Exercise(
    name="main_costs", reference=by_hand.main_costs,
    measure=_measure(by_hand.main_costs, CLEAR, capstone_costs.read),
    worlds=(), leaves_out=_NOTHING_LEFT,
    claims=(
        claim("the two largest", 6, "of five, for 17 plans; within 3% of a step is a tie",
              each(CLEAR, lambda *_: None, words), same_again(words), capstone_costs.two_largest),
    ),
    hints=capstone_costs.HINTS,
)  # fmt: skip
PLANS = Exercise(
    name="chosen_plans", reference=chosen_plans, measure=_measure_plans, worlds=(),
    leaves_out=_NOTHING_LEFT | {"again": "it has no arguments"},
    claims=(
        claim("plans that fit", 3, "256 GPUs, 512 sequences; into 83%", _judge(_can_be_laid_out),
              _judge(_fits)),
        claim("and are fast", 3, "at most 1.1 times the best one's step", _judge(_is_fast)),
    ),
    hints=hints.PLANS,
)  # fmt: skip
EXERCISE = Bundle("capstone", (ESTIMATE, COSTS, PLANS))
