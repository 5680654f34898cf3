"""Answers to Lab 6's choose_plan: wrong ones, each with the hint that it must get,
and right ones."""

import sys  # noqa: F401  in edits, as are replace and powers
from dataclasses import replace  # noqa: F401
from itertools import product

from as_an_answer import as_an_answer, told

from lib.cost import choose
from lib.cost.plan import Plan
from lib.cost.search import divisors, powers  # noqa: F401


def all_plans(model, gpu, gpus, batch):
    for tp, pp in product(divisors(model.heads), divisors(model.layers)):
        if gpu.per_node % tp == gpus % (tp * pp) == 0 and batch % (dp := gpus // (tp * pp)) == 0:
            yield from (
                Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1)
                for b in divisors(batch // dp)
            )


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
        raise ValueError(
            f"no plan for {batch} rows on {gpus} GPUs fits into {gpu.memory:.3g} bytes: use more "
            f"GPUs"
        )
    return min(found, key=lambda each: each[:2])[2]


def one_comprehension(model, gpu, gpus, batch, memory, seconds):
    """From the largest degrees down."""
    degrees = product(divisors(gpu.per_node)[::-1], range(model.layers, 0, -1), range(batch, 0, -1))
    found = [
        Plan(batch, b, tp, pp, gpus // (tp * pp), zero=1, sequence_parallel=tp > 1)
        for tp, pp, b in degrees
        if model.heads % tp == model.layers % pp == gpus % (tp * pp) == 0
        and batch % (gpus // (tp * pp) * b) == 0
    ]
    fit = [plan for plan in found if memory(plan) <= gpu.memory]
    if not fit:
        raise ValueError(f"none of {len(found)} plans fits")
    return min(fit, key=lambda plan: (seconds(plan), memory(plan)))


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


# wrong


def one_after_another(model, gpu, gpus, batch, memory, seconds):
    """The best tp of plans with one stage and one row, then the best pp with it, then the best b:
    where they fit."""
    found = [plan for plan in all_plans(model, gpu, gpus, batch) if memory(plan) <= gpu.memory]
    if not found:
        raise ValueError("nothing fits")
    for name in ("tp", "pp", "micro_batch"):
        rest = lambda plan, name=name: sum(
            getattr(plan, n) for n in ("tp", "pp", "micro_batch") if n != name
        )
        simplest = min(found, key=lambda plan: (rest(plan), seconds(plan)))
        found = [plan for plan in found if getattr(plan, name) == getattr(simplest, name)]
    return found[0]


def not_written(model, gpu, gpus, batch, memory, seconds):
    raise NotImplementedError


SKIP, PLAN = (
    "gpu.per_node % tp or gpus % (tp * pp) or batch % dp",
    "seconds(plan), memory(plan), plan",
)
FITS, EMPTY = "if memory(plan) <= gpu.memory:", "    found = []\n"
BEST, ORDER = "return min(found, key=lambda each: each[:2])[2]", "each[:2]"
# As as_in_the_notebook has it, across its lines
NONE = """raise ValueError(
            f"no plan for {batch} rows on {gpus} GPUs fits into {gpu.memory:.3g} bytes: use more "
            f"GPUs"
        )"""
CHANGED = f"best = {BEST.removeprefix('return ')}\n    return replace(best, "
WRONG = told(
    as_in_the_notebook,
    ("calls_libs", "called what it builds", lambda *args: choose.choose_plan(*args)),
    ("not_written", "not written", not_written),
    ("returns_nothing", "nothing returned", (BEST, BEST.removeprefix("return "))),
    ("all_of_the_tuple", "not a plan", ("each[:2])[2]", "each[:2])")),
    ("dp_is_a_float", "not a plan", (BEST, f"{CHANGED}dp=gpus / (best.tp * best.pp))")),
    ("a_generator", "not a plan", (BEST, BEST.replace("return", "yield"))),
    ("rows_before_gpus", "dp is 0", (SKIP, "batch % dp or gpus % (tp * pp) or gpu.per_node % tp")),
    ("whole_nodes", "a plan not looked at",
     (EMPTY, f"{EMPTY}    if gpus % gpu.per_node:\n        raise ValueError('no whole nodes')\n")),
    ("stages_in_powers_of_two", "a plan not looked at",
     ("divisors(model.layers)", "[pp for pp in powers(model.layers) if model.layers % pp == 0]")),
    ("gpus_left_over", "other GPUs", (SKIP, "gpu.per_node % tp or dp == 0 or batch % dp")),
    ("across_nodes", "tensor ranks on two nodes", ("gpu.per_node % tp or ", "")),
    ("any_tp_of_a_node", "heads are cut", ("divisors(model.heads)", "divisors(gpu.per_node)")),
    ("any_pp_up_to_the_layers", "stages unlike", ("divisors(model.layers)",
        "range(1, model.layers + 1)")),
    ("any_dp", "rows left over", (" or batch % dp", "")),
    ("b_divides_the_batch", "rows left over", ("divisors(batch // dp)",
        "divisors(batch) if batch % dp == 0 else []"),
     (FITS, "if b * dp <= batch and memory(plan) <= gpu.memory:")),
    ("the_batch_of_a_rank", "other choices", (BEST, f"{CHANGED}global_batch=batch // best.dp)")),
    ("interleaved", "other choices", (BEST, f"{CHANGED}v=2 if best.pp > 1 else 1)")),
    ("no_zero", "without ZeRO", ("zero=1", "zero=0")),
    ("no_sequence_parallelism", "without sequence parallelism", ("tp > 1", "False")),
    ("always_sequence_parallel", "without sequence parallelism", ("tp > 1", "True")),
    ("memory_ignored", "does not fit", (FITS, "if True:")),
    ("costs_of_its_own", "does not fit", (FITS, "if True:"),
    (PLAN, "(tp * pp, pp, b), memory(plan), plan")),
    ("costs_of_its_own_where_it_fits", "seconds not asked",
     (PLAN, "abs(tp - 2) + abs(pp - 2), memory(plan), plan")),
    ("single_rows", "one row in a micro-batch", ("divisors(batch // dp)", "[1]")),
    ("one_after_another", "not the fastest", one_after_another),
    ("largest_micro_batch", "not the fastest", (ORDER, "(-each[2].micro_batch, each[0])")),
    ("seconds_alone", "memory does not decide", (ORDER, "each[0]")),
    ("most_memory_of_the_fastest", "memory does not decide", (ORDER, "(each[0], -each[1])")),
    ("whole_tuples", "plans compared", (BEST, "return min(found)[2]")),
    ("none_of_them", "no error", (NONE, "return None")),
    ("smallest_if_nothing_fits", "no error", (FITS, "if True:"),
     (ORDER, "(each[1] > gpu.memory, *each[each[1] > gpu.memory : 2])")),
    ("takes_from_an_empty_list", "not a ValueError", (NONE, "return found[0]")),
    ("asserts", "not a ValueError", (f"if not found:\n        {NONE}",
        "assert found, 'nothing fits'")),
    ("one_list_for_all_calls", "an earlier call's plan", ("seconds):", "seconds, found=[]):"),
    (EMPTY, "")),
    ("exits_where_nothing_fits", "exits", (NONE, "sys.exit('nothing fits')")),
)  # fmt: skip
RIGHT = [
    as_an_answer(choose.choose_plan),
    as_in_the_notebook,
    one_comprehension,
    keeps_the_best_so_far,
]
