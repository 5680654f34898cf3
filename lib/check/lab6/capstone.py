"""Lab 6, section 5, the capstone: estimate and main_costs of (model, plan, gpu, reached), and
chosen_plans() for four jobs (capstone_plans.py).

    jobs      GPT-3 (dense) and Qwen3-235B (a mixture), on 256 H100, 8 in an NVLink domain, and on
              256 GB200, 64 in one
    estimate  memory, seconds and MFU of given plans by the student's formulas. Memory has to be
              within 15 % and seconds within 20 % of the cost model's, and MFU within 10 % of the
              one that follows from the student's own seconds. For three published runs the seconds
              have to be within 20 % of what was measured. Answers must not call the cost model
    costs     the two largest of five costs, for 17 of these plans, by the cost model's parts of a
              step; a cost may replace another that is larger by at most 3 % of the step

An estimate that is near enough is shown as the expected value. The cost model is `lib.cost`, with a
stack that was fitted on published runs of dense models or of this mixture.
"""

from lib.calibration import predict
from lib.check.causes import hints, of_name
from lib.check.claims import is_number
from lib.check.exercise import Bundle
from lib.check.lab6.capstone_jobs import (
    BATCH,
    CASES,
    GPUS,
    JOBS,
    MEASURED,
    RUNS,
    costs,
    truth,
    words,
)
from lib.check.lab6.capstone_plans import PLANS
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.cost import by_hand, explain, memory, search, step
from lib.cost.hardware import GIB

COST_MODEL = tuple(module.__file__ for module in (explain, predict, search, memory, step))
NUMBERS, SHARE = "three numbers", "the MFU is a share"
MEMORY, SECONDS, MFU, PUBLISHED = "GiB of memory", "seconds of a step", "MFU", "published seconds"
WITHIN = {MEMORY: 0.15, SECONDS: 0.2, MFU: 0.1, PUBLISHED: 0.2}
TWO, HAS_THEM, LARGEST = "two of the five", "costs that the plan has", "the two largest"
TIE = 0.03  # of a step
ASKED, RUN = here(*(words(*one) for one in CASES)), here(*(words(*one) for one in MEASURED))
ALL_JOBS = JOBS | RUNS
PLAN_OF = dict(zip((*ASKED, *RUN), (*CASES, *MEASURED), strict=True))
# Main costs are not asked for two plans in which messages decide, because by hand these take
# several times as long as in the cost model.
CLEAR = tuple(case for i, case in enumerate(ASKED) if i not in (0, 16))


def _asked(make, case, show):
    """Call the answer, and return what it returned."""
    job, plan = PLAN_OF[case]
    model, gpu, reached, _ = ALL_JOBS[job]
    return show.run(make, model, plan, gpu, reached)


def estimate(make, case, show):
    job, plan = PLAN_OF[case]
    model, gpu, *_ = ALL_JOBS[job]
    by_model = truth(job, plan) if case in ASKED else None  # before make is called
    out = _asked(make, case, show)
    good = isinstance(out, tuple | list) and len(out) == 3 and all(map(is_number, out))
    if not show.returned(out, good, "(bytes, seconds, MFU)", NUMBERS):
        return
    needed, seconds, mfu = map(float, out)
    if not by_model:
        _show_near(show, PUBLISHED, seconds, MEASURED[job, plan], "what was measured")
        return
    _show_near(show, MEMORY, needed / GIB, by_model[0] / GIB)
    if _show_near(show, SECONDS, seconds, by_model[1]):
        show(SHARE, "" if mfu <= 1 else f"got an MFU of {mfu:.3g}, expected 0 to 1")
        counts = 6 * model.active_parameters, model.flops_per_token()  # with attention's scores
        both = [each * BATCH * model.seq / (GPUS * gpu.bf16 * seconds) for each in counts]
        near = any(abs(mfu / each - 1) <= WITHIN[MFU] for each in both)
        told = f"got {mfu:.3g}, and at {seconds:.3g} s a step it is {both[0]:.3g}"
        show(MFU, "" if near else told)


def _show_near(show, name, got, want, whose="what the cost model says") -> bool:
    """Show `want` if `got` is near enough, else `got`. Returns whether it is near enough."""
    near = abs(got / want - 1) <= WITHIN[name]
    told = f"Expected is {whose}, and {WITHIN[name]:.0%} is near enough."
    show(name, want if near else got, beside=told)
    return near


def main_costs(make, case, show):
    shares = costs(*PLAN_OF[case])  # before make is called
    out = _asked(make, case, show)
    named = [*map(str, out)] if isinstance(out, tuple | list | set | frozenset) else []
    good = len(named) == 2 and len(shares.keys() & named) == 2
    if not show.returned(out, good, f"two of {', '.join(shares)}", TWO):
        return
    none = [one for one in named if not shares[one]]
    show(HAS_THEM, f"got {none[0]}, of which this plan has none" if none else "")
    ranked, named = (sorted(some, key=shares.get, reverse=True) for some in (shares, named))
    right = all(shares[a] >= shares[b] - TIE for a, b in zip(named, ranked[:2], strict=True))
    told = ", ".join(f"{cost} {shares[cost]:.1%}" for cost in ranked if shares[cost])
    beside = f"By the cost model a step is {told}."
    show(LARGEST, " and ".join(ranked[:2] if right else named), beside=beside)


def _only(*names, plans):
    """A predicate: one of these numbers is wrong, and only in plans of one kind. plans(plan, gpu):
    is the plan of this kind?"""
    of_sort = lambda job, plan: plans(plan, ALL_JOBS[job].gpu)
    those = tuple(case.name for case, one in PLAN_OF.items() if of_sort(*one))
    off = lambda p: [case for case, _ in p.fact("narrower")[2]]
    return lambda p: of_name(*names)(p) and all(case.startswith(those) for case in off(p))


def _measure(script, reference, cases):
    return SideBySide(script, reference, cases, COST_MODEL, groups=None, excused=NO_TENSORS)


OF_ESTIMATE = _measure(estimate, by_hand.estimate, (*ASKED, *RUN))
OF_COSTS = _measure(main_costs, by_hand.main_costs, CLEAR)
ESTIMATE = OF_ESTIMATE.exercise(
    ("memory", 6, "within 15% of the cost model, 19 plans", RETURNED, NUMBERS, MEMORY),
    ("seconds", 7, "within 20%, dense and mixture", SECONDS),
    ("MFU", 2, "within 10% of the one from your seconds", SHARE, MFU),
    ("published runs", 3, "seconds within 20% of three runs", PUBLISHED),
    hints=hints(
        "lab6", "capstone", "estimate",
        experts_of_several_domains=_only(SECONDS, plans=lambda plan, gpu: plan.ep > gpu.per_node),
        full_recomputation=_only(MEMORY, SECONDS, plans=lambda plan, _: plan.recompute == "full"),
        mixtures_alone=_only(MEMORY, SECONDS, plans=lambda plan, _: plan.ep > 1),
        interleaved_plans_alone=_only(MEMORY, SECONDS, plans=lambda plan, _: plan.v > 1),
        pipelines_alone=_only(MEMORY, SECONDS, plans=lambda plan, _: plan.pp > 1),
    ),
    leaves_out=LEAVES_OUT,
)  # fmt: skip
COSTS = OF_COSTS.exercise(
    ("the two largest", 6, "of five, for 17 plans; within 3% of a step is a tie",
     RETURNED, TWO, HAS_THEM, LARGEST),
    hints=hints("lab6", "capstone", "main_costs"), leaves_out=LEAVES_OUT,
)  # fmt: skip
EXERCISE = Bundle("capstone", (ESTIMATE, COSTS, PLANS))
