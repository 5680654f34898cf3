"""Lab 6, section 6: choose_plan(model, gpu, gpus, batch, memory, seconds), the fastest plan that fits.

Right is a plan that may be run, fits, and takes no longer than any other that does; all are tried here as well.
"""

from dataclasses import fields
from math import isclose
from numbers import Integral

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab2.asking import asked, each
from lib.check.lab6.choose_plan_hints import HINTS
from lib.check.lab6.choose_plan_jobs import JOBS, REFUSED, TIES, best
from lib.cost.choose import choose_plan
from lib.cost.plan import Plan

DEGREES = ("micro_batch", "tp", "pp", "dp")
CHOSEN = (*DEGREES, "global_batch", "zero", "sequence_parallel")


def _measure(fn):
    arguments = {(job,): job.arguments for job in JOBS + TIES + REFUSED}
    return asked(fn, choose_plan, arguments, _read)


def _read(out, *_):
    if not isinstance(out, Plan):
        return Problem(
            "nothing" if out is None else "form", f"got {out!r:.60}, a {type(out).__name__}, expected a Plan"
        )
    for name in DEGREES:
        number = getattr(out, name)
        if not isinstance(number, Integral) or number < 1:
            return Problem("form", f"got a Plan whose {name} is {number!r:.30}, expected a whole number from 1 on")
    return out


def _words(plan):
    return f"tp {plan.tp} pp {plan.pp} dp {plan.dp} b {plan.micro_batch}"


def _may_be_run(plan, job):
    """Every rule, in the order in which they are easily seen."""
    tp, pp, dp, b = plan.tp, plan.pp, plan.dp, plan.micro_batch
    broken = [
        ("gpus", tp * pp * dp != job.gpus, f"uses {tp * pp * dp} GPUs, expected {job.gpus}"),
        ("node", job.gpu.per_node % tp, f"groups of {tp} tensor ranks do not fit into nodes of {job.gpu.per_node}"),
        ("heads", job.model.heads % tp, f"tp {tp} does not divide {job.model.heads} heads"),
        ("layers", job.model.layers % pp, f"pp {pp} does not divide {job.model.layers} layers"),
        ("batch", job.batch % (dp * b), f"dp b = {dp * b} does not divide the batch of {job.batch}"),
        ("whole batch", plan.global_batch != job.batch, f"global_batch is {plan.global_batch}, expected {job.batch}"),
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
            return Problem("more", f"got {_words(plan)}: {field.name} is {value}, expected {field.default}")
    return None


def _fits(plan, job):
    if (needs := job.memory(plan)) <= job.gpu.memory:
        return None
    text = f"got {_words(plan)}: memory(plan) is {needs:.6g}, and a GPU has {job.gpu.memory:.6g} bytes"
    return Problem("room", f"{text}\nexpected {_words(best(job))}, which needs {job.memory(best(job)):.6g}")


def _none_is_faster(plan, job):
    mine, least = job.seconds(plan), job.seconds(best(job))
    if isclose(mine, least, rel_tol=1e-12):
        return None
    text = f"got {_words(plan)}: {mine:.6g} s\nexpected {_words(best(job))}: {least:.6g} s, and it fits"
    return Problem("slower", text)


def _least_memory(plan, job):
    if problem := _may_be_run(plan, job) or _fits(plan, job) or _none_is_faster(plan, job):
        return problem
    needs, least = job.memory(plan), job.memory(best(job))
    if isclose(needs, least, rel_tol=1e-12):
        return None
    text = f"got {_words(plan)}, which needs {needs:.6g} bytes\n{_words(best(job))} is as fast, and needs {least:.6g}"
    return Problem("tie", text)


def _refused(runs):
    ((seen,),) = (run.results for run in runs)
    for job in REFUSED:
        got = seen[job,]
        error = got.facts.get("error") if isinstance(got, Problem) else None
        if error is None:
            said = f"got {_words(got)}" if isinstance(got, Plan) else "no error"
            return Problem("not refused", f"{job}: {said}; no plan fits, expected a ValueError")
        if not isinstance(error, ValueError):
            return Problem("another error", f"{job}: {got.text}\nno plan fits, expected a ValueError")
    return None


EXERCISE = Exercise(
    name="choose_plan",
    reference=choose_plan,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("a plan that may be run", 3, "11 jobs, on 1 to 64 GPUs", each([(j,) for j in JOBS], _may_be_run, str)),
        Claim("that fits", 2, "memory(plan) <= gpu.memory", each([(j,) for j in JOBS], _fits, str)),
        Claim("and none is faster", 4, "compared with all there are", each([(j,) for j in JOBS], _none_is_faster, str)),
        Claim(
            "of equally fast, least memory",
            1,
            "where all plans are as fast",
            each([(j,) for j in TIES], _least_memory, str),
        ),
        Claim("nothing fits", 2, "a ValueError", _refused),
    ),
    hints=HINTS,
)
