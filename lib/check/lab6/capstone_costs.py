"""The capstone's main_costs: which two costs are the largest, by the cost model's
parts of a step."""

from lib.check import symptoms as s
from lib.check.claims import without_ranks
from lib.check.exercise import Hint, Problem
from lib.check.lab6.capstone_jobs import CLEAR, JOBS, words
from lib.check.pure import NOTHING
from lib.cost import step as of_step
from lib.cost.by_hand import COSTS

TIE = 0.03  # of a step
PART = {"tensor": "tensor messages", "expert": "expert messages", "sharding": "data messages"}
# the cost model's other components are computing
PART |= dict.fromkeys(("bubble", "message"), "pipeline bubble")


def costs(job, plan):
    """{cost: share of the step} by the cost model."""
    model, device, _, stack = JOBS[job]
    seconds, shares = of_step.step_seconds(model, plan, device, stack), dict.fromkeys(COSTS, 0.0)
    for component, each in seconds.items():
        shares[PART.get(component, "computing")] += each / sum(seconds.values())
    return shares


def read(got):
    if (
        not isinstance(got, tuple | list | set | frozenset)
        or len(got) != 2
        or len(set(map(str, got))) != 2
    ):
        return Problem(
            "nothing" if got is None else "form",
            f"expected the names of two costs, got {got!r:.80}",
        )
    if odd := [name for name in got if name not in COSTS]:
        return Problem("unknown", f"got {odd[0]!r:.40}, expected two of {', '.join(COSTS)}")
    return sorted(got)


@without_ranks
def two_largest(seen):
    """A judge: in each case the two that were named are the largest, up to a TIE."""
    wrong = {}
    for case in CLEAR:
        shares = costs(*case)
        ranked = sorted(shares, key=shares.get, reverse=True)
        named = sorted(seen[case], key=shares.get, reverse=True)
        if any(
            shares[a] < shares[b] - TIE or not shares[a]
            for a, b in zip(named, ranked, strict=False)
        ):
            wrong[case] = (
                [cost for cost in ranked[:2] if cost not in named],
                [c for c in named if c not in ranked[:2]],
            )
    if not wrong:
        return None
    case = next(iter(wrong))
    shares = {cost: share for cost, share in costs(*case).items() if share}
    told = ", ".join(
        f"{cost} {shares[cost]:.1%}" for cost in sorted(shares, key=shares.get, reverse=True)
    )
    text = f"{words(*case)}: got {' and '.join(seen[case])}; by the cost model a step is {told}"
    if len(wrong) > 1:
        text += f"\nIt is wrong for {len(wrong)} of {len(CLEAR)} plans"
    trace = [[words(*one), *map(sorted, names)] for one, names in wrong.items()]
    return Problem("costs", text, {"wrong": wrong}, trace)


def _lacks(cost):
    """Is it this cost that is missing, wherever one is?"""
    return lambda p: (
        p.kind == "costs" and all(cost in missing for missing, _ in p.facts["wrong"].values())
    )


def _names(cost, among=lambda job, plan: True):
    """Is it this cost that is too many, in some plan of this sort?"""
    return lambda p: (
        p.kind == "costs"
        and any(cost in more and among(*case) for case, (_, more) in p.facts["wrong"].items())
    )


HINTS = (
    s.CALLED_LIB.saying(
        "Try: use your estimate, which has all the terms. The cost model comes later."),
    NOTHING.saying("Try: end the function with `return ...`."),
    Hint("not two names", s.kind("form"),
         'Try: end with return first, second, such as "pipeline bubble", "tensor messages".'),
    Hint("no such cost", s.kind("unknown"),
         "a name is not one of those in the docstring."),
    Hint(
        "costs that the plan does not have",
        s.either(
            _names("expert messages", lambda job, plan: not job.startswith("mixture")),
            _names("pipeline bubble", lambda job, plan: plan.pp == 1),
            _names("tensor messages", lambda job, plan: plan.tp == 1),
        ),
        "a cost is named that the plan does not have. A dense model sends no rows to experts, one "
        "stage has no bubble, and one tensor rank has no sums.",
    ),
    Hint("no computing", _lacks("computing"),
         "computing is left out. It is a cost as well, and the largest in most plans."),
    Hint("messages that hide", _names("data messages"),
         "the messages along dp are counted, but what ZeRO-1 sends there overlaps with backward, "
         "and little of it is left to wait for."),
    Hint("no bubble", _lacks("pipeline bubble"),
         "the bubble is too small. A GPU waits bubble / (1 - bubble) of the seconds in which it "
         "computes and sends, where the bubble is (p-1) / (v m + p-1)."),
    Hint("no rows", _lacks("expert messages"),
         "the rows of the experts are too few. A token's row is sent to k experts and back, in "
         "each layer and in both passes."),
    Hint("no sums", _lacks("tensor messages"),
         "the sums along tp are too few. Each layer has 4 all-reduces of its tokens."),
    Hint("not by the plan", s.kind("costs"),
         "Try: compare four numbers for each plan: computing, rows over their link along ep, "
         "sums / gpu.link along tp, and the bubble. Which of them is second differs between "
         "plans."),
    *s.ANYWHERE,
)  # fmt: skip
