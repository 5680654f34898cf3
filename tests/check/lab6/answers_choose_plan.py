"""Answers to Lab 6's choose_plan: wrong ones, each with the hint that it must get, and right ones."""

import sys
from dataclasses import replace
from itertools import product

from as_an_answer import as_an_answer

from lib.cost import choose
from lib.cost.plan import Plan
from lib.cost.search import divisors, powers


def plans(gpu, gpus, batch, tps, pps, sizes=divisors, fits=lambda gpu, tp: gpu.per_node % tp == 0):
    """All plans that may be run, but for what is given."""
    for tp in tps:
        for pp in pps:
            if not fits(gpu, tp) or gpus % (tp * pp):
                continue
            dp = gpus // (tp * pp)
            for b in sizes(batch // dp) if batch % dp == 0 else []:
                yield Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1)


def all_plans(model, gpu, gpus, batch):
    return list(plans(gpu, gpus, batch, divisors(model.heads), divisors(model.layers)))


def least(found, gpu, memory, *keys):
    """Of the plans that fit the first for which these are least."""
    fit = [plan for plan in found if memory(plan) <= gpu.memory]
    if not fit:
        raise ValueError(f"none of {len(found)} plans fits")
    return min(fit, key=lambda plan: tuple(key(plan) for key in keys))


# right


def as_in_the_notebook(model, gpu, gpus, batch, memory, seconds):
    found = []
    for tp in divisors(model.heads):
        for pp in divisors(model.layers):
            dp = gpus // (tp * pp)
            if gpu.per_node % tp or gpus % (tp * pp) or batch % dp:
                continue
            for b in divisors(batch // dp):
                plan = Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1)
                if memory(plan) <= gpu.memory:
                    found.append((seconds(plan), memory(plan), plan))
    if not found:
        raise ValueError(f"no plan for {batch} rows on {gpus} GPUs fits into {gpu.memory:.3g} bytes: use more GPUs")
    return min(found, key=lambda each: each[:2])[2]


def one_comprehension(model, gpu, gpus, batch, memory, seconds):
    """From the largest degrees down."""
    degrees = product(divisors(gpu.per_node)[::-1], range(model.layers, 0, -1), range(batch, 0, -1))
    found = [
        Plan(batch, b, tp, pp, gpus // (tp * pp), zero=1, sequence_parallel=tp > 1)
        for tp, pp, b in degrees
        if model.heads % tp == model.layers % pp == gpus % (tp * pp) == 0 and batch % (gpus // (tp * pp) * b) == 0
    ]
    return least(found, gpu, memory, seconds, memory)


def keeps_the_best_so_far(model, gpu, gpus, batch, memory, seconds):
    """dp is chosen, pp follows. Node by node: no tensor group lies on two."""
    best = None
    for dp in divisors(gpus):
        for tp in divisors(gpus // dp):
            pp = gpus // dp // tp
            if gpu.per_node % tp or model.heads % tp or model.layers % pp or batch % dp:
                continue
            for b in divisors(batch // dp):
                plan = Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1)
                costs = seconds(plan), memory(plan)
                if costs[1] <= gpu.memory and (best is None or costs < best[0]):
                    best = costs, plan
    if best is None:
        raise ValueError(f"nothing fits into {gpu.memory} bytes")
    return best[1]


# wrong: no plan


def calls_libs(model, gpu, gpus, batch, memory, seconds):
    return choose.choose_plan(model, gpu, gpus, batch, memory, seconds)


def returns_nothing(model, gpu, gpus, batch, memory, seconds):
    as_in_the_notebook(model, gpu, gpus, batch, memory, seconds)


def all_of_the_tuple(model, gpu, gpus, batch, memory, seconds):
    plan = as_in_the_notebook(model, gpu, gpus, batch, memory, seconds)
    return seconds(plan), memory(plan), plan


def dp_is_a_float(model, gpu, gpus, batch, memory, seconds):
    plan = as_in_the_notebook(model, gpu, gpus, batch, memory, seconds)
    return replace(plan, dp=gpus / (plan.tp * plan.pp))


def rows_before_gpus(model, gpu, gpus, batch, memory, seconds):
    found = []
    for tp, pp in product(divisors(model.heads), divisors(model.layers)):
        dp = gpus // (tp * pp)
        if batch % dp == 0 and gpus % (tp * pp) == 0 and gpu.per_node % tp == 0:
            found += [Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1) for b in divisors(batch // dp)]
    return least(found, gpu, memory, seconds, memory)


def whole_nodes(model, gpu, gpus, batch, memory, seconds):
    if gpus % gpu.per_node:
        raise ValueError(f"{gpus} GPUs are no whole nodes")
    return as_in_the_notebook(model, gpu, gpus, batch, memory, seconds)


# wrong: a plan that may not be run


def gpus_left_over(model, gpu, gpus, batch, memory, seconds):
    found = []
    for tp, pp in product(divisors(model.heads), divisors(model.layers)):
        dp = gpus // (tp * pp)
        if gpu.per_node % tp == 0 and dp and batch % dp == 0:
            found += [Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1) for b in divisors(batch // dp)]
    return least(found, gpu, memory, seconds, memory)


def across_nodes(model, gpu, gpus, batch, memory, seconds):
    found = plans(gpu, gpus, batch, divisors(model.heads), divisors(model.layers), fits=lambda gpu, tp: True)
    return least(list(found), gpu, memory, seconds, memory)


def any_tp_of_a_node(model, gpu, gpus, batch, memory, seconds):
    found = plans(gpu, gpus, batch, divisors(gpu.per_node), divisors(model.layers))
    return least(list(found), gpu, memory, seconds, memory)


def any_pp_up_to_the_layers(model, gpu, gpus, batch, memory, seconds):
    found = plans(gpu, gpus, batch, divisors(model.heads), range(1, model.layers + 1))
    return least(list(found), gpu, memory, seconds, memory)


def any_dp(model, gpu, gpus, batch, memory, seconds):
    found = []
    for tp, pp in product(divisors(model.heads), divisors(model.layers)):
        if gpu.per_node % tp == 0 and gpus % (tp * pp) == 0:
            dp = gpus // (tp * pp)
            found += [Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1) for b in divisors(batch // dp)]
    return least(found, gpu, memory, seconds, memory)


def b_divides_the_batch(model, gpu, gpus, batch, memory, seconds):
    found = plans(gpu, gpus, batch, divisors(model.heads), divisors(model.layers), sizes=lambda rows: divisors(batch))
    return least([p for p in found if p.micro_batches], gpu, memory, seconds, memory)


def the_batch_of_a_rank(model, gpu, gpus, batch, memory, seconds):
    plan = as_in_the_notebook(model, gpu, gpus, batch, memory, seconds)
    return replace(plan, global_batch=batch // plan.dp)


def interleaved(model, gpu, gpus, batch, memory, seconds):
    plan = as_in_the_notebook(model, gpu, gpus, batch, memory, seconds)
    return replace(plan, v=2) if plan.pp > 1 else plan


def no_zero(model, gpu, gpus, batch, memory, seconds):
    found = [replace(plan, zero=0) for plan in all_plans(model, gpu, gpus, batch)]
    return least(found, gpu, memory, seconds, memory)


def no_sequence_parallelism(model, gpu, gpus, batch, memory, seconds):
    found = [replace(plan, sequence_parallel=False) for plan in all_plans(model, gpu, gpus, batch)]
    return least(found, gpu, memory, seconds, memory)


def always_sequence_parallel(model, gpu, gpus, batch, memory, seconds):
    found = [replace(plan, sequence_parallel=True) for plan in all_plans(model, gpu, gpus, batch)]
    return least(found, gpu, memory, seconds, memory)


# wrong: does not fit, or is not the fastest


def memory_ignored(model, gpu, gpus, batch, memory, seconds):
    return min(all_plans(model, gpu, gpus, batch), key=lambda plan: (seconds(plan), memory(plan)))


def single_rows(model, gpu, gpus, batch, memory, seconds):
    found = plans(gpu, gpus, batch, divisors(model.heads), divisors(model.layers), sizes=lambda rows: [1])
    return least(list(found), gpu, memory, seconds, memory)


def stages_in_powers_of_two(model, gpu, gpus, batch, memory, seconds):
    stages = [pp for pp in powers(model.layers) if model.layers % pp == 0]
    found = plans(gpu, gpus, batch, divisors(model.heads), stages)
    return least(list(found), gpu, memory, seconds, memory)


def one_after_another(model, gpu, gpus, batch, memory, seconds):
    """The best tp of plans with one stage and one row, then the best pp with it, then the best b: where they fit."""
    found = [plan for plan in all_plans(model, gpu, gpus, batch) if memory(plan) <= gpu.memory]
    if not found:
        raise ValueError("nothing fits")
    for name in ("tp", "pp", "micro_batch"):
        rest = lambda plan, name=name: sum(getattr(plan, n) for n in ("tp", "pp", "micro_batch") if n != name)
        simplest = min(found, key=lambda plan: (rest(plan), seconds(plan)))
        found = [plan for plan in found if getattr(plan, name) == getattr(simplest, name)]
    return found[0]


def largest_micro_batch(model, gpu, gpus, batch, memory, seconds):
    return least(all_plans(model, gpu, gpus, batch), gpu, memory, lambda plan: -plan.micro_batch, seconds)


# wrong: ties, and nothing fits


def seconds_alone(model, gpu, gpus, batch, memory, seconds):
    return least(all_plans(model, gpu, gpus, batch), gpu, memory, seconds)


def most_memory_of_the_fastest(model, gpu, gpus, batch, memory, seconds):
    return least(all_plans(model, gpu, gpus, batch), gpu, memory, seconds, lambda plan: -memory(plan))


def whole_tuples(model, gpu, gpus, batch, memory, seconds):
    found = [p for p in all_plans(model, gpu, gpus, batch) if memory(p) <= gpu.memory]
    if not found:
        raise ValueError("nothing fits")
    return min((seconds(plan), memory(plan), plan) for plan in found)[2]


def none_of_them(model, gpu, gpus, batch, memory, seconds):
    found = [p for p in all_plans(model, gpu, gpus, batch) if memory(p) <= gpu.memory]
    return min(found, key=lambda plan: (seconds(plan), memory(plan)), default=None)


def smallest_if_nothing_fits(model, gpu, gpus, batch, memory, seconds):
    found = all_plans(model, gpu, gpus, batch)
    try:
        return least(found, gpu, memory, seconds, memory)
    except ValueError:
        return min(found, key=memory)


def takes_from_an_empty_list(model, gpu, gpus, batch, memory, seconds):
    found = [p for p in all_plans(model, gpu, gpus, batch) if memory(p) <= gpu.memory]
    return sorted(found, key=lambda plan: (seconds(plan), memory(plan)))[0]


def asserts(model, gpu, gpus, batch, memory, seconds):
    found = [p for p in all_plans(model, gpu, gpus, batch) if memory(p) <= gpu.memory]
    assert found, "nothing fits"
    return min(found, key=lambda plan: (seconds(plan), memory(plan)))


def one_list_for_all_calls(model, gpu, gpus, batch, memory, seconds, found=[]):  # noqa: B006
    found += [(seconds(p), memory(p), p) for p in all_plans(model, gpu, gpus, batch) if memory(p) <= gpu.memory]
    if not found:
        raise ValueError("nothing fits")
    return min(found, key=lambda each: each[:2])[2]


def exits_where_nothing_fits(model, gpu, gpus, batch, memory, seconds):
    found = [p for p in all_plans(model, gpu, gpus, batch) if memory(p) <= gpu.memory]
    return min(found, key=lambda plan: (seconds(plan), memory(plan))) if found else sys.exit("nothing fits")


def costs_of_its_own(model, gpu, gpus, batch, memory, seconds):
    """By the number of tensor ranks and stages, whatever it is given."""
    return min(all_plans(model, gpu, gpus, batch), key=lambda plan: (plan.tp * plan.pp, plan.pp, plan.micro_batch))


def costs_of_its_own_where_it_fits(model, gpu, gpus, batch, memory, seconds):
    return least(all_plans(model, gpu, gpus, batch), gpu, memory, lambda plan: abs(plan.tp - 2) + abs(plan.pp - 2))


def a_generator(model, gpu, gpus, batch, memory, seconds):
    return (plan for plan in [as_in_the_notebook(model, gpu, gpus, batch, memory, seconds)])


def not_written(model, gpu, gpus, batch, memory, seconds):
    raise NotImplementedError


WRONG = {
    calls_libs: "called lib's",
    returns_nothing: "nothing returned",
    all_of_the_tuple: "not a plan",
    dp_is_a_float: "not a plan",
    rows_before_gpus: "dp is 0",
    whole_nodes: "a plan not looked at",
    gpus_left_over: "other GPUs",
    across_nodes: "tensor ranks on two nodes",
    any_tp_of_a_node: "heads are cut",
    any_pp_up_to_the_layers: "stages unlike",
    any_dp: "rows left over",
    b_divides_the_batch: "rows left over",
    the_batch_of_a_rank: "other choices",
    interleaved: "other choices",
    no_zero: "without ZeRO",
    no_sequence_parallelism: "without sequence parallelism",
    always_sequence_parallel: "without sequence parallelism",
    memory_ignored: "does not fit",
    single_rows: "one row in a micro-batch",
    stages_in_powers_of_two: "a plan not looked at",
    one_after_another: "not the fastest",
    largest_micro_batch: "not the fastest",
    seconds_alone: "memory does not decide",
    most_memory_of_the_fastest: "memory does not decide",
    whole_tuples: "plans compared",
    none_of_them: "no error",
    smallest_if_nothing_fits: "no error",
    takes_from_an_empty_list: "not a ValueError",
    asserts: "not a ValueError",
    one_list_for_all_calls: "an earlier call's plan",
    exits_where_nothing_fits: "exits",
    costs_of_its_own: "does not fit",
    costs_of_its_own_where_it_fits: "seconds not asked",
    a_generator: "not a plan",
    not_written: "not written",
}
RIGHT = [as_an_answer(choose.choose_plan), as_in_the_notebook, one_comprehension, keeps_the_best_so_far]
