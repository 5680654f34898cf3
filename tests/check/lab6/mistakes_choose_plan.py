"""Known mistakes of choose_plan."""

from itertools import combinations, permutations

from mistakes import Mistake

from lib.cost.plan import Plan
from lib.cost.search import divisors

NUMBERS = ("tp", "pp", "dp", "micro_batch")


def _chosen(key, allowed=lambda plan: True, fits=lambda needs, room: needs <= room):
    """choose_plan, but for the plans that are looked at, what fits, and key(plan, memory, seconds),
    which is least."""

    def answer(model, gpu, gpus, batch, memory, seconds):
        found = []
        for tp in divisors(model.heads):
            for pp in divisors(model.layers):
                if gpu.per_node % tp or gpus % (tp * pp) or batch % (dp := gpus // (tp * pp)):
                    continue
                found += [
                    Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1)
                    for b in divisors(batch // dp)
                ]
        found = [plan for plan in found if fits(memory(plan), gpu.memory) and allowed(plan)]
        if not found:
            raise ValueError("no plan fits")
        return min(found, key=lambda plan: key(plan, memory, seconds))

    return answer


def _fastest(plan, memory, seconds):
    return seconds(plan), memory(plan)


def _in_order(names):
    """The first that fits, where three loops go through tp, pp and b in this order."""
    return _chosen(lambda plan, memory, seconds: [getattr(plan, name) for name in names])


def _in_powers(names):
    """These numbers are 1, 2, 4, 8, ..."""
    return _chosen(
        _fastest, allowed=lambda plan: all(getattr(plan, name).bit_count() == 1 for name in names)
    )


MISTAKES = (
    Mistake("the last byte", _chosen(_fastest, fits=lambda needs, room: needs < room)),
    *(
        Mistake("the first that fits", _in_order(names))
        for names in permutations(("tp", "pp", "micro_batch"))
    ),
    Mistake("the slowest", _chosen(lambda plan, memory, seconds: -seconds(plan))),
    *(
        Mistake(
            "least memory first",
            _chosen(lambda plan, memory, seconds, then=then: (memory(plan), then(plan, seconds))),
        )
        for then in (lambda plan, seconds: 0, lambda plan, seconds: seconds(plan))
    ),
    *(
        Mistake("powers of two only", _in_powers(names))
        for count in (1, 2, 3)
        for names in combinations(NUMBERS, count)
        if "pp" not in names
    ),
    *(
        Mistake(
            "the largest tp first",
            _chosen(
                lambda plan, memory, seconds, then=then: (-plan.tp, *then(plan), seconds(plan))
            ),
        )
        for then in (
            lambda plan: (),
            lambda plan: (plan.pp,),
            lambda plan: (-plan.pp,),
            lambda plan: (plan.micro_batch,),
            lambda plan: (-plan.micro_batch,),
            lambda plan: (plan.pp, -plan.micro_batch),
            lambda plan: (-plan.pp, -plan.micro_batch),
            lambda plan: (plan.pp, plan.micro_batch),
        )
    ),
)
