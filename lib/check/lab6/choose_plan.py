"""Lab 6, section 7: choose_plan(model, gpu, gpus, batch, memory, seconds), the fastest that fits.

An answer is right if its plan can be run, fits into memory, and takes no longer than lib's. Where
several plans are equally fast, it has to be one that needs the least memory.
"""

from dataclasses import fields
from numbers import Integral

from lib.check.causes import hints
from lib.check.explain import cut
from lib.check.lab6.choose_plan_jobs import JOBS, REFUSED, TIES
from lib.check.left_out import LEAVES_OUT, NO_TENSORS, but
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.cost.choose import choose_plan
from lib.cost.plan import Plan

DEGREES = ("micro_batch", "tp", "pp", "dp")
CHOSEN = (*DEGREES, "global_batch", "zero", "sequence_parallel")
RULES = (
    "all GPUs", "tp in a node", "whole heads", "equal stages", "all rows", "the whole batch",
    "ZeRO-1", "sequence parallel", "no other choices",
)  # fmt: skip
A_PLAN, WHOLE = "a Plan", "whole degrees"
FORM = (RETURNED, A_PLAN, WHOLE, *RULES)
ALL = JOBS + TIES + REFUSED
CASES = here(*(f"job {number}, {job}" for number, job in enumerate(ALL)))
JOB_OF = dict(zip(CASES, ALL, strict=True))
ONES = CASES[: len(JOBS)]
EQUALS, NONE = CASES[len(JOBS) : -len(REFUSED)], CASES[-len(REFUSED) :]


def script(make, case, show):
    job = JOB_OF[case]
    if case in NONE:
        show.refused(make, *job)
        return
    plan = show.run(make, *job)
    if not show.returned(plan, isinstance(plan, Plan), "a Plan", A_PLAN):
        return
    odd = [f"{one} is {cut(n, 30)}" for one in DEGREES if not _is_degree(n := getattr(plan, one))]
    wrong = {WHOLE: f"got a Plan whose {odd[0]}, expected 1, 2, 3, ..."} if odd else {}
    if show.said([WHOLE], wrong):
        return
    got = f"got tp {plan.tp} pp {plan.pp} dp {plan.dp} b {plan.micro_batch}"
    show.said(RULES, {name: f"{got}: {why}" for name, why in _rules(plan, job)})
    needs, room = job.memory(plan), job.gpu.memory
    too_much = f"{got}: memory(plan) is {needs:.6g}, and a GPU has {room:.6g} bytes"
    show("room", too_much if needs > room else "")
    show("seconds(plan)", job.seconds(plan), at_most=True, tolerance=1e-12, beside=got)
    if case in EQUALS:
        show("memory(plan)", needs, at_most=True, tolerance=1e-12, beside=got)


def _is_degree(n):
    return isinstance(n, Integral) and n >= 1


def _rules(plan, job):
    """[(rule, why), ...] of the broken rules, the most obvious first."""
    tp, pp, dp, b = plan.tp, plan.pp, plan.dp, plan.micro_batch
    layers, heads, node = job.model.layers, job.model.heads, job.gpu.per_node
    more = [f for f in fields(Plan) if f.name not in CHOSEN and getattr(plan, f.name) != f.default]
    broken = (
        (tp * pp * dp != job.gpus, f"uses {tp * pp * dp} GPUs, expected {job.gpus}"),
        (node % tp, f"groups of {tp} tensor ranks do not fit into nodes of {node}"),
        (heads % tp, f"tp {tp} does not divide {heads} heads"),
        (layers % pp, f"pp {pp} does not divide {layers} layers"),
        (job.batch % (dp * b), f"dp b = {dp * b} does not divide the batch of {job.batch}"),
        (plan.global_batch != job.batch,
         f"global_batch is {plan.global_batch}, expected {job.batch}"),
        (plan.zero != 1, f"zero is {plan.zero}, expected 1"),
        (plan.sequence_parallel != (tp > 1),
         f"sequence_parallel is {plan.sequence_parallel}, expected {tp > 1}"),
        (more, " and ".join(f"{f.name}, expected {f.default}" for f in more)),
    )  # fmt: skip
    return [(name, why) for name, (wrong, why) in zip(RULES, broken, strict=True) if wrong]


MEASURE = SideBySide(script, choose_plan, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("a plan that may be run", 3, "11 jobs, on 1 to 64 GPUs", (FORM, ONES)),
    ("that fits", 2, "memory(plan) <= gpu.memory", ("room", ONES)),
    ("and none is faster", 4, "compared with the fastest plan", ("seconds(plan)", ONES)),
    ("of equally fast, least memory", 1, "where all plans are equally fast",
     ((*FORM, "room", "seconds(plan)", "memory(plan)"), EQUALS)),
    ("nothing fits", 2, "a ValueError", "the error raised"),
    hints=hints("lab6", "choose_plan"), bonus=True, leaves_out=but(LEAVES_OUT, "given used"),
)  # fmt: skip
