"""Lab 1, section 3: broadcast_parameters(module, group) and average_gradients(parameters, group, all_reduce)."""

from functools import partial

from lib.check.framework import Bundle, Claim, Exercise, Hint, Problem
from lib.check.lab0.cases import seen
from lib.check.lab1 import averaging, broadcast_parameters
from lib.check.lab1.cases import GROUPS, GROUPS_SAY, Case
from lib.check.lab1.models import Small
from lib.check.lab1.wire import COLLECTIVES
from lib.data_parallel import naive

CASES = [Case("average_gradients", members) for members in GROUPS]


def _all(model):
    return list(model.parameters())


def _elements(runs):
    trained = sum(p.numel() for p in Small().parameters() if p.requires_grad)
    for run, case, records in seen(runs, CASES):
        problem = averaging.another_way(run, case)
        if problem:
            return problem
        for rank, record in enumerate(records):
            got = sum(shape.numel() for shape, _ in record["calls"])
            if got != trained:
                words = f"all-reduced {got} elements, expected {trained}, those of every trained parameter once"
                facts = {"frozen": got == sum(p.numel() for p in Small().parameters())}
                return Problem("elements", f"{case.where}: {case.rank(rank)} {words}", facts)
    return None


AVERAGE_GRADIENTS = Exercise(
    name="average_gradients",
    reference=naive.average_gradients,
    measure=partial(averaging.measured, CASES, Small, _all),
    worlds=(4,),
    may_call=(averaging.GIVEN, *COLLECTIVES),
    claims=(
        Claim("the mean in every .grad", 6, f"{GROUPS_SAY}; tied, unused, frozen ones", averaging.means(CASES)),
        Claim("the all_reduce it was given", 3, "each trained parameter once, frozen ones never", _elements),
        Claim("parameters left alone", 1, "only .grad changes", averaging.untouched(CASES)),
    ),
    hints=(
        *averaging.MISTAKES,
        averaging.NOT_WRITTEN_BACK,
        averaging.RETURNED_NOTHING,
        averaging.NO_GRADIENT,
        averaging.SKIPPED,
        averaging.FROZEN,
        averaging.ANOTHER_WAY,
        Hint(
            "sent more than once",
            lambda p: p.kind == "elements",
            "one all-reduce of each trained parameter's gradient is enough.",
        ),
    ),
)
EXERCISE = Bundle("naive_data_parallel", (broadcast_parameters.EXERCISE, AVERAGE_GRADIENTS))
