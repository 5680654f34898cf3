"""The mistakes that are made in choose_plan, told by the plans that come of them, and the hint for each."""

from itertools import combinations, permutations

from lib.check.framework import Hint
from lib.check.lab2.hints import all_seen, is_kind
from lib.check.lab6.choose_plan_jobs import fitting


def _raised(*words):
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


def _always(rule):
    """Fits if rule(plan, job) is true of all plans that were chosen, some of them too slow."""
    everywhere = all_seen(rule)
    return lambda p: p.kind == "slower" and everywhere(p)


def _first(order):
    """The first that fits, where three loops go through tp, pp and b in this order."""
    key = lambda plan: tuple(getattr(plan, name) for name in order)
    return lambda plan, job: plan == min(fitting(job), key=key)


FIRSTS = [_always(_first(order)) for order in permutations(("tp", "pp", "micro_batch"))]


def _best_below_the_edge(plan, job):
    return plan == min((p for p in fitting(job) if job.memory(p) < job.gpu.memory), key=job.seconds)


def _in_powers(names):
    """The fastest that fits, if these numbers could only be 1, 2, 4, 8, ..."""
    allowed = lambda plan: all(getattr(plan, name).bit_count() == 1 for name in names)
    return lambda plan, job: plan == min(filter(allowed, fitting(job)), key=job.seconds, default=None)


NUMBERS = ("tp", "pp", "dp", "micro_batch")
POWERS = [_always(_in_powers(names)) for count in (1, 2, 3, 4) for names in combinations(NUMBERS, count)]

HINTS = (
    Hint("called lib's", is_kind("built-in"), "three loops, and a list of what fits."),
    Hint("nothing returned", is_kind("nothing"), "the function must end with `return ...`."),
    Hint(
        "not a plan",
        is_kind("form"),
        "return the Plan alone, of min(found)'s (seconds, memory, plan) the last. Degrees are ints: //, not /.",
    ),
    Hint(
        "dp is 0",
        _raised("ZeroDivisionError"),
        "where tp pp is more than the GPUs, gpus // (tp * pp) is 0. See first whether gpus % (tp * pp) is 0.",
    ),
    Hint(
        "plans compared",
        _raised("'<' not supported", "'>' not supported"),
        "min compares the whole tuples, and where seconds and memory are equal, the plans: key=lambda each: each[:2].",
    ),
    Hint(
        "a plan not looked at",
        _raised("ValueError"),
        "there is a plan that fits, and it was not among those you tried: all divisors of the heads, the layers and "
        "a rank's rows, also on one GPU.",
    ),
    Hint("other GPUs", is_kind("gpus"), "all GPUs are used: tp pp dp = gpus. dp follows from the other two."),
    Hint(
        "tensor ranks on two nodes",
        is_kind("node"),
        "tensor parallelism sends most and needs NVLink: tp divides gpu.per_node, however fast seconds(plan) is.",
    ),
    Hint("heads are cut", is_kind("heads"), "each tensor rank has whole heads: tp is one of divisors(model.heads)."),
    Hint("stages unlike", is_kind("layers"), "all stages have as many layers: pp is one of divisors(model.layers)."),
    Hint(
        "rows left over",
        is_kind("batch"),
        "the batch is dp times m times b. First dp divides it, then b divides the rows of one data rank, batch // dp.",
    ),
    Hint(
        "other choices",
        is_kind("whole batch", "more"),
        "Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1), and nothing else: the first is the whole batch.",
    ),
    Hint("without ZeRO", is_kind("zero"), "zero=1: optimizer state is divided over dp, or much less would fit."),
    Hint(
        "without sequence parallelism",
        is_kind("sequence"),
        "sequence_parallel=tp > 1: it sends no more, and memory(plan) is less. With one tensor rank there is "
        "nothing to cut.",
    ),
    Hint("does not fit", is_kind("room"), "keep a plan only if memory(plan) <= gpu.memory; the fastest may not fit."),
    Hint(
        "the last byte",
        _always(_best_below_the_edge),
        "a plan that needs exactly gpu.memory fits: at most is <=.",
    ),
    Hint(
        "the first that fits",
        lambda p: any(fits(p) for fits in FIRSTS),
        "you return the first plan that fits. Note them all, and take the fastest at the end.",
    ),
    Hint(
        "the slowest",
        _always(lambda plan, job: job.seconds(plan) == max(map(job.seconds, fitting(job)))),
        "seconds are to be least: min.",
    ),
    Hint(
        "least memory first",
        _always(lambda plan, job: job.memory(plan) == min(map(job.memory, fitting(job)))),
        "memory is a limit, not the aim. Below gpu.memory only seconds count; memory decides between equals.",
    ),
    Hint(
        "one row in a micro-batch",
        _always(lambda plan, job: plan.micro_batch == 1),
        "you try b = 1 only. A larger b makes larger products, and fewer micro-batches: try all divisors(batch // dp).",
    ),
    Hint(
        "powers of two only",
        lambda p: any(fits(p) for fits in POWERS),
        "12 GPUs are 3 x 4, 12 layers make 3 stages, a micro-batch may have 3 rows: divisors(n), not 1, 2, 4, 8.",
    ),
    Hint(
        "the largest tp first",
        _always(lambda plan, job: plan.tp == max(p.tp for p in fitting(job))),
        "you take the largest tp there is, and choose the rest for it. With a smaller one another plan may be faster: "
        "three loops inside each other, then min.",
    ),
    Hint(
        "not the fastest",
        is_kind("slower"),
        "the best tp depends on pp and b, so they cannot be chosen one after another: try all of each with all others.",
    ),
    Hint(
        "memory does not decide",
        is_kind("tie"),
        "of equally fast plans the one that needs least memory: compare (seconds, memory).",
    ),
    Hint("no error", is_kind("not refused"), "if no plan has been found: raise ValueError(...), with the numbers."),
    Hint(
        "not a ValueError",
        is_kind("another error"),
        "see whether the list is empty before you take from it; what is raised then is a ValueError.",
    ),
)
