"""Lab 6, section 7: choose_plan(model, gpu, gpus, batch, memory, seconds), the fastest that fits.

Right is a plan that may be run, fits, and takes no longer than any other that does.
"""

from dataclasses import fields
from math import isclose
from numbers import Integral

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab6.choose_plan_jobs import JOBS, REFUSED, TIES, best
from lib.check.left_out import but
from lib.check.pure import LEAVES_OUT, NOTHING, all_seen, asked, each, noting_calls, refused
from lib.cost.choose import choose_plan
from lib.cost.plan import Plan

DEGREES = ("micro_batch", "tp", "pp", "dp")
CHOSEN = (*DEGREES, "global_batch", "zero", "sequence_parallel")


_UNASKED = set()  # jobs whose seconds(plan) the answer has not called


def _measure(fn):
    def noted(*args):
        with noting_calls(args[-1], choose_plan) as calls:
            out = fn(*args)
        _UNASKED.update([] if calls else [args[-1]])
        return Problem("built-in", "it calls lib's choose_plan") if choose_plan in calls else out

    _UNASKED.clear()
    return asked(
        noted,
        choose_plan,
        [(job,) for job in JOBS + TIES + REFUSED],
        lambda job: job.arguments,
        _read,
    )


def _read(out, *_):
    if not isinstance(out, Plan):
        return Problem(
            "nothing" if out is None else "form",
            f"got {out!r:.60}, a {type(out).__name__}, expected a Plan",
        )
    for name in DEGREES:
        number = getattr(out, name)
        if not isinstance(number, Integral) or number < 1:
            return Problem(
                "form",
                f"got a Plan whose {name} is {number!r:.30}, expected a whole number from 1 on",
            )
    return out


def _words(plan):
    return f"tp {plan.tp} pp {plan.pp} dp {plan.dp} b {plan.micro_batch}"


def _may_be_run(plan, job):
    """Every rule, in the order in which they are easily seen."""
    tp, pp, dp, b = plan.tp, plan.pp, plan.dp, plan.micro_batch
    broken = [
        ("gpus", tp * pp * dp != job.gpus, f"uses {tp * pp * dp} GPUs, expected {job.gpus}"),
        (
            "node",
            job.gpu.per_node % tp,
            f"groups of {tp} tensor ranks do not fit into nodes of {job.gpu.per_node}",
        ),
        ("heads", job.model.heads % tp, f"tp {tp} does not divide {job.model.heads} heads"),
        ("layers", job.model.layers % pp, f"pp {pp} does not divide {job.model.layers} layers"),
        (
            "batch",
            job.batch % (dp * b),
            f"dp b = {dp * b} does not divide the batch of {job.batch}",
        ),
        (
            "whole batch",
            plan.global_batch != job.batch,
            f"global_batch is {plan.global_batch}, expected {job.batch}",
        ),
        ("zero", plan.zero != 1, f"zero is {plan.zero}, expected 1"),
        (
            "sequence",
            plan.sequence_parallel != (tp > 1),
            f"sequence_parallel is {plan.sequence_parallel}, expected {tp > 1}",
        ),
    ]
    for kind, wrong, text in broken:
        if wrong:
            return Problem(kind, f"got {_words(plan)}: {text}")
    for field in fields(Plan):
        value = getattr(plan, field.name)
        if field.name not in CHOSEN and value != field.default:
            return Problem(
                "more", f"got {_words(plan)}: {field.name} is {value}, expected {field.default}"
            )
    return None


def _fits(plan, job):
    if (needs := job.memory(plan)) <= job.gpu.memory:
        return None
    text = (
        f"got {_words(plan)}: memory(plan) is {needs:.6g}, and a GPU has {job.gpu.memory:.6g} bytes"
    )
    return Problem(
        "room", f"{text}\nexpected {_words(best(job))}, which needs {job.memory(best(job)):.6g}"
    )


def _none_is_faster(plan, job):
    mine, least = job.seconds(plan), job.seconds(best(job))
    if isclose(mine, least, rel_tol=1e-12):
        return None
    text = (
        f"got {_words(plan)}: {mine:.6g} s\nexpected {_words(best(job))}: {least:.6g} s, and it "
        f"fits"
    )
    return Problem("slower", text, {"unasked": job.seconds in _UNASKED})


def _least_memory(plan, job):
    if problem := _may_be_run(plan, job) or _fits(plan, job) or _none_is_faster(plan, job):
        return problem
    needs, least = job.memory(plan), job.memory(best(job))
    if isclose(needs, least, rel_tol=1e-12):
        return None
    text = (
        f"got {_words(plan)}, which needs {needs:.6g} bytes\n{_words(best(job))} is as fast, and "
        f"needs {least:.6g}"
    )
    return Problem("tie", text)


def _judge(jobs, judge):
    return each([(job,) for job in jobs], judge, str, trace=str)


def _of_an_earlier_call(p):
    """Is it a plan that was right for a job before this one?"""
    seen = p.fact("seen", {})
    before = (
        [best(*case) for case in [*seen][: [*seen].index(p.facts["case"])]]
        if p.fact("case") in seen
        else []
    )
    return (
        p.kind in ("gpus", "whole batch", "node", "heads", "layers", "batch")
        and seen[p.facts["case"]] in before
    )


def _compares_plans(p):
    """Did torch or Python say that plans have no order?"""
    return s.raised("TypeError")(p) and "instances of 'Plan'" in str(p.facts["error"])


EXERCISE = Exercise(
    name="choose_plan", reference=choose_plan, measure=_measure, worlds=(), bonus=True,
    leaves_out=but(LEAVES_OUT, "given used"),
    claims=(
        claim("a plan that may be run", 3, "11 jobs, on 1 to 64 GPUs", _judge(JOBS, _may_be_run)),
        claim("that fits", 2, "memory(plan) <= gpu.memory", _judge(JOBS, _fits)),
        claim("and none is faster", 4, "compared with the fastest plan",
              _judge(JOBS, _none_is_faster)),
        claim("of equally fast, least memory", 1, "where all plans are equally fast",
              _judge(TIES, _least_memory)),
        claim("nothing fits", 2, "a ValueError",
              refused([(job,) for job in REFUSED], str, lambda job: "no plan fits", trace=_words)),
    ),
    hints=(
    s.CALLED_LIB.saying("three loops, and a list of what fits."),
    NOTHING,
    Hint("not a plan", s.kind("form"),
         "return the Plan alone, of min(found)'s (seconds, memory, plan) the last. Degrees are "
         "ints: //, not /."),
    Hint("dp is 0", s.raised("ZeroDivisionError"),
         "where tp pp is more than the GPUs, gpus // (tp * pp) is 0. See first whether gpus % (tp "
         "* pp) is 0."),
    Hint("plans compared", _compares_plans,
         "min compares the whole tuples, and where seconds and memory are equal, the plans: "
         "key=lambda each: each[:2]."),
    Hint("a plan not looked at", s.raised("ValueError"),
         "there is a plan that fits, and it was not found: try all divisors of the heads, the "
         "layers and a rank's rows, also on one GPU. One that does not fit is passed over, however "
         "fast; it does not end the search."),
    Hint("an earlier call's plan", _of_an_earlier_call,
         "this plan is an earlier call's: what is found is kept from call to call. Begin each call "
         "with a new list."),
    Hint("other GPUs", s.kind("gpus"),
         "all GPUs are used: tp pp dp = gpus. dp follows from the other two."),
    Hint("tensor ranks on two nodes", s.kind("node"),
         "tensor parallelism sends most and needs NVLink: tp divides gpu.per_node, however fast "
         "seconds(plan) is."),
    Hint("heads are cut", s.kind("heads"),
         "each tensor rank has whole heads: tp is one of divisors(model.heads)."),
    Hint("stages unlike", s.kind("layers"),
         "all stages have as many layers: pp is one of divisors(model.layers)."),
    Hint("rows left over", s.kind("batch"),
         "the batch is dp times m times b. First dp divides it, then b divides the rows of one "
         "data rank, batch // dp."),
    Hint("other choices", s.kind("whole batch", "more"),
         "Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1), and nothing else: the "
         "first is the whole batch."),
    Hint("without ZeRO", s.kind("zero"),
         "zero=1: optimizer state is divided over dp, or much less would fit."),
    Hint("without sequence parallelism", s.kind("sequence"),
         "sequence_parallel=tp > 1: it sends no more, and memory(plan) is less. With one tensor "
         "rank there is nothing to cut."),
    Hint("does not fit", s.kind("room"),
         "keep a plan only if memory(plan) <= gpu.memory; the fastest may not fit."),
    Hint("seconds not asked", s.kind("slower", unasked=True),
         "how long a plan takes is for seconds(plan) to say, which you are given: no rule of your "
         "own."),
    Hint("one row in a micro-batch", s.both(s.kind("slower"),
        all_seen(lambda plan, job: plan.micro_batch == 1)),
         "you try b = 1 only. A larger b makes larger products, and fewer micro-batches: try all "
         "divisors(batch // dp)."),
    Hint("not the fastest", s.kind("slower"),
         "the best tp depends on pp and b, so they cannot be chosen one after another: try all of "
         "each with all others."),
    Hint("memory does not decide", s.kind("tie"),
         "of equally fast plans the one that needs least memory: compare (seconds, memory)."),
    Hint("no error", s.kind("not refused"),
         "if no plan has been found: raise ValueError(...), with the numbers."),
    Hint("not a ValueError", s.kind("another error"),
         "see whether the list is empty before you take from it; what is raised then is a "
         "ValueError."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
