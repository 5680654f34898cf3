"""Lab 4, section 4: Unit, which gathers and frees parameters, and FSDP, which says when.

Each is judged with lib's other half: a Unit by itself and under lib's FSDP, an FSDP with units that are watched.
"""

import torch.distributed as dist

from lib import zero
from lib.check.framework import Bundle, Claim, Exercise, Problem
from lib.check.lab0.cases import in_step, seen
from lib.check.lab1.cases import Case
from lib.check.lab1.watched import groups_with_wires
from lib.check.lab3.groups import found
from lib.check.lab4.fsdp_given import MAY_CALL, sent_otherwise
from lib.check.lab4.fsdp_hints import HINTS
from lib.check.lab4.fsdp_models import ADAMW
from lib.check.lab4.fsdp_runs import GROUPS_SAY, UNIT_OF, WRAPPED, cases_of, trained
from lib.check.lab4.fsdp_watched import Watch
from lib.check.lab4.unit_alone import alone
from lib.check.lab4.unit_hints import HINTS as UNIT_HINTS

WORLD = 4
ALONE = "by itself"
UNIT_CASES = [
    *(Case("Unit", members, ALONE) for members in ((0, 1), (0, 1, 2), (1, 3))),
    Case("Unit", (0, 1, 2, 3), ADAMW),
]
FSDP_CASES = cases_of("FSDP")


def on_groups(cases, one):
    """On every rank: one(case, rank, group, wire) of each case, in step."""
    run = lambda case, groups: one(case, case.members.index(dist.get_rank()), *groups)
    return in_step(cases, groups_with_wires, run, wire=dist.new_group())


def _measure_unit(fn):
    def one(case, rank, group, wire):
        if case.what == ALONE:
            return alone(case, fn, rank, group, wire)
        return trained(case, type("FSDP", (zero.FSDP,), {"unit_type": fn}), rank, group, wire)

    return on_groups(UNIT_CASES, one)


def _measure_fsdp(fn):
    def one(case, rank, group, wire):
        if inherits(fn, zero.FSDP, "before_forward", "after_forward", "before_backward", "after_backward"):
            return {"ok": False, "value": Problem("built-in", "a method of the answer is lib's")}
        watch = Watch(f"{case.where}: {case.rank(rank)}", most=1)
        return trained(case, type("FSDP", (fn,), {"unit_type": UNIT_OF[case.what]}), rank, group, wire, watch)

    return on_groups(FSDP_CASES, one)


def inherits(fn, libs, *names):
    """Is one of these methods of the class lib's own?"""
    return any(getattr(fn, name, None) is getattr(libs, name) for name in names)


def by_what_it_was_given(cases, then):
    """The claim `then`, and that nothing was sent but by what the answer was given."""

    def judge(runs):
        for run, case, records in seen(runs, cases):
            for section in run.ledger.marks:
                if section.startswith(f"{case.name}, ") and not section.endswith(WRAPPED):
                    wires = [record["wire"] for record in records]
                    if problem := sent_otherwise(run.ledger.section(section), case, wires):
                        return problem
        return then(runs)

    return judge


UNIT = Exercise(
    name="Unit",
    reference=zero.Unit,
    measure=_measure_unit,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("unshard: the whole, in place", 3, "groups of 2 and 3", found(UNIT_CASES, "unshard")),
        Claim("reduce_gradients: the mean", 3, "added to the shards; unused, frozen", found(UNIT_CASES, "reduce")),
        Claim("reshard: no memory but the shards", 3, "parameters are empty", found(UNIT_CASES, "reshard")),
        Claim("trains as one process does", 2, f"4 ranks, under lib's FSDP, {ADAMW}", found(UNIT_CASES, "value")),
        Claim("sends each flat once", 1, "by what it was given", by_what_it_was_given(
            UNIT_CASES, found(UNIT_CASES, "calls"))),
    ),
    hints=UNIT_HINTS,
)  # fmt: skip
FSDP = Exercise(
    name="FSDP",
    reference=zero.FSDP,
    measure=_measure_fsdp,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("trains as one process does", 5, f"{GROUPS_SAY}; tied, frozen, unused", found(FSDP_CASES, "value")),
        Claim("one unit whole at a time", 3, "and the root; none in the end", found(FSDP_CASES, "memory")),
        Claim("sends 3 (N-1)/N psi", 2, "each unit gathered twice, reduced once", by_what_it_was_given(
            FSDP_CASES, found(FSDP_CASES, "sent"))),
    ),
    hints=HINTS,
)  # fmt: skip
EXERCISE = Bundle("fsdp", (UNIT, FSDP))
