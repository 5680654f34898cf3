"""Answers to Lab 6's capstone, estimate and chosen_plans: wrong ones, each with its hint,
and right ones."""

from functools import partial

import numpy
from as_an_answer import as_an_answer, told

from lib.check.lab6 import capstone as check
from lib.check.lab6 import capstone_plans
from lib.check.lab6.capstone_jobs import JOBS, costs
from lib.cost import by_hand
from lib.cost.memory import memory
from lib.cost.plan import Plan
from lib.cost.search import DEFAULT_STACK, search
from lib.cost.stacks import stacks
from lib.cost.step import step_seconds

JOB = partial(Plan, 512, zero=1)
DENSE, MIXTURE = "dense, H100", "mixture, GB200"
STACK = stacks()[DEFAULT_STACK]
BEST = {
    "dense, H100": JOB(2, tp=8, pp=4, dp=8, v=12, sequence_parallel=True),
    "dense, GB200": JOB(4, tp=8, pp=2, dp=16, v=8, sequence_parallel=True),
    "mixture, H100": JOB(2, tp=1, pp=4, dp=64, ep=16, v=12, recompute="full"),
    "mixture, GB200": JOB(2, tp=1, pp=4, dp=64, ep=32, v=12),
}


# estimate: right


def term_by_term(model, plan, gpu, reached):
    """Every term by itself, and the model's own count of operations, attention's
    scores among them."""
    mixture = model.experts > 0
    stage = model.layers / plan.pp
    of_experts = stage * model.experts * model.expert_parameters if mixture else 0
    others = model.parameters / plan.pp - of_experts
    weights = others / plan.tp + of_experts / plan.ep
    memory = 6 * weights + 12 * model.parameters / plan.gpus
    tokens = plan.micro_batch * model.seq
    per_token = 34 * model.hidden
    if mixture:
        per_token = 15 * model.hidden + model.topk * (4 * model.hidden + 6 * model.ffn)
    times = min(plan.pp, plan.micro_batches)
    if plan.v > 1:
        times *= 1 + (plan.pp - 1) / plan.pp / plan.v
    if plan.recompute == "full":
        memory += (2 * model.hidden * stage * times + per_token) * tokens / plan.tp
    else:
        memory += per_token * stage * times * tokens / plan.tp
    operations = model.flops_per_token() * plan.global_batch * model.seq
    seconds = operations / (plan.gpus * gpu.bf16 * reached)
    seconds *= 1 if plan.recompute == "none" else 4 / 3
    if mixture:
        row = tokens * plan.micro_batches / plan.tp * stage * 2 * model.hidden
        ways = 4 if plan.recompute == "none" else 6
        slowest = model.topk * (1 - 1 / plan.ep) / gpu.link
        if plan.ep > gpu.per_node:
            domains = plan.ep / gpu.per_node
            wanted = 1 - ((domains - 1) / domains) ** model.topk  # by some expert of a domain
            slowest = max(slowest, (domains - 1) * wanted / gpu.nic)
        seconds += ways * row * slowest
    ring = 2 * (plan.tp - 1) / plan.tp * 2 * tokens * model.hidden
    seconds += 4 * ring * stage * plan.micro_batches / gpu.link
    bubble = (plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp - 1)
    seconds /= 1 - bubble
    return [numpy.float64(memory), seconds, operations / plan.gpus / gpu.bf16 / seconds]


def the_four_jobs_alone(model, plan, gpu, reached):
    """Right for 512 sequences of 2,048 tokens on 256 GPUs, and for nothing else."""
    memory, seconds, mfu = term_by_term(model, plan, gpu, reached)
    tokens = plan.global_batch * model.seq / plan.gpus
    return memory, seconds * (512 * 2048 / 256) / tokens, mfu


def every_copy_leaves_its_domain(model, plan, gpu, reached):
    """k rows of a token between domains, where one for each domain is sent."""
    memory, seconds, _ = term_by_term(model, plan, gpu, reached)
    if plan.ep > gpu.per_node:
        rows = model.topk * (1 - gpu.per_node / plan.ep)
        tokens = plan.global_batch * model.seq * model.layers / plan.gpus
        ways = 4 if plan.recompute == "none" else 6
        bubble = (plan.pp - 1) / (plan.v * plan.micro_batches + plan.pp - 1)
        seconds += ways * tokens * 2 * model.hidden * (rows - 1) / gpu.nic / (1 - bubble)
    return (
        memory,
        seconds,
        model.flops_per_token() * plan.global_batch * model.seq / (plan.gpus * gpu.bf16 * seconds),
    )


# estimate: wrong


def off_where(fits):
    """Seconds and memory half as large again in some of the plans."""

    def answer(model, plan, gpu, reached):
        memory, seconds, mfu = term_by_term(model, plan, gpu, reached)
        times = 1.5 if fits(plan, gpu) else 1.0
        return memory * times, seconds * times, mfu / times

    return answer


def off_between_domains(model, plan, gpu, reached):
    """The seconds alone, where experts span several NVLink domains."""
    memory, seconds, mfu = term_by_term(model, plan, gpu, reached)
    times = 1.5 if plan.ep > gpu.per_node else 1.0
    return memory, seconds * times, mfu / times


def asks_the_model(model, plan, gpu, reached):
    seconds = sum(step_seconds(model, plan, gpu, STACK).values())
    operations = model.flops_per_token() * 512 * model.seq
    return (
        sum(memory(model, plan, STACK).values()),
        seconds,
        operations / (256 * gpu.bf16 * seconds),
    )


def nothing_returned(model, plan, gpu, reached):
    by_hand.plan_bubble(plan)


def sums_for_the_bubble(model, plan, gpu, reached):
    """Too long where there are sums along tp, too short where there are none."""
    memory, seconds, mfu = term_by_term(model, plan, gpu, reached)
    return memory, seconds * (2 if plan.tp > 1 else 0.5), mfu


def not_written_yet(model, plan, gpu, reached):
    raise NotImplementedError


# main_costs: right


def term_by_term_again(model, plan, gpu, reached):
    """Seconds of each term; the bubble's as a share of the step."""
    work = 6 * model.active_parameters * 512 * model.seq / 256 / gpu.bf16 / reached
    again = plan.recompute == "full"
    tokens = 512 * model.seq * model.layers / 256  # of a GPU, through all layers
    trips, N = (4 + 2 * again) * tokens * 2 * model.hidden, max(1, plan.ep // gpu.per_node)
    to_experts = trips * model.topk * (1 - 1 / plan.ep) / gpu.link
    to_domains = trips * (N - 1) * (1 - (1 - 1 / N) ** model.topk) / gpu.nic
    seconds = {
        "computing": work * 4 / 3 if again else work,
        "tensor messages": 16 * tokens * model.hidden * (plan.tp - 1) / gpu.link,
        "expert messages": max(to_experts, to_domains),
    }
    rounds = plan.v * plan.micro_batches
    seconds["pipeline bubble"] = sum(seconds.values()) * (plan.pp - 1) / rounds
    return set(sorted(seconds, key=seconds.get, reverse=True)[:2])


def by_the_cost_models_order(model, plan, gpu, reached):
    """Ties the other way round, as a list."""
    (case,) = [case for case in TABLE if case[1] == plan and JOBS[case[0]].model == model]
    shares = TABLE[case]
    first, second = sorted(shares, key=shares.get)[:-3:-1]
    tied = [
        cost
        for cost in shares
        if cost != first and shares[cost] > max(1e-9, shares[second] - 0.029)
    ]
    return [tied[-1], first]


TABLE = {check.PLAN_OF[case]: costs(*check.PLAN_OF[case]) for case in check.CLEAR}


# main_costs: wrong


def bubble_and_largest_message(model, plan, gpu, reached):
    message = "expert messages" if model.experts else "tensor messages"
    return message, "pipeline bubble" if plan.pp > 1 else "computing"


def bubble_wherever_there_is_one(model, plan, gpu, reached):
    other = "expert messages" if model.experts else "tensor messages"
    return "computing", "pipeline bubble" if plan.pp > 1 else other


def asks_the_model_for_parts(model, plan, gpu, reached):
    seconds = step_seconds(model, plan, gpu, STACK)
    return "computing", "pipeline bubble" if seconds["bubble"] > seconds[
        "tensor"
    ] else "tensor messages"


# chosen_plans: right


def as_in_the_notebook():
    return dict(BEST)


def the_first_of_a_search():
    job = JOBS[DENSE]
    return BEST | {DENSE: search(job.model, job.gpu, 256, 512, fixed={"zero": 1})[0].plan}


def numpys_degrees():
    tp, pp, dp = numpy.array([8, 4, 8])
    return BEST | {DENSE: JOB(2, tp=tp, pp=pp, dp=dp, v=12, sequence_parallel=True)}


# chosen_plans: wrong


def of(job, plan):
    """An answer that has this plan for this job."""
    return BEST | {job: plan}


def nothing():
    of(DENSE, None)


def exits():
    raise SystemExit(0)


def not_written():
    raise NotImplementedError


WRONG = {
    "estimate": told(
        None,
        ("asks_the_model", "called what it builds", asks_the_model),
        ("calls_libs", "called what it builds", lambda model, plan, gpu,
        reached: by_hand.estimate(model, plan, gpu, reached)),
        ("nothing_returned", "nothing returned", nothing_returned),
        ("two_numbers", "not three numbers", lambda *args: (6e10, 8.8)),
        ("in_words", "not three numbers", lambda *args: ("60 GiB", "9 s", "50 %")),
        ("the_four_jobs_alone", "the size of another job", the_four_jobs_alone),
        ("every_copy_leaves_its_domain", "a row for every expert between domains",
         every_copy_leaves_its_domain),
        ("one_set_of_numbers_for_all", "term by term", lambda *args: (63 * 2**30, 8.8, 0.51)),
        ("sums_for_the_bubble", "term by term", sums_for_the_bubble),
        ("off_between_domains", "experts of several domains", off_between_domains),
        ("off_in_mixtures", "mixtures alone", off_where(lambda plan, gpu: plan.ep > 1)),
        ("off_if_interleaved", "interleaved plans alone", off_where(lambda plan, gpu: plan.v > 1)),
        ("off_in_pipelines", "pipelines alone", off_where(lambda plan, gpu: plan.pp > 1)),
        ("off_if_recomputed", "full recomputation",
         off_where(lambda plan, gpu: plan.recompute == "full")),
        ("not_written_yet", "not written", not_written_yet),
    ),
    "main_costs": told(
        None,
        ("computing_and_tensor", "not by the plan",
        lambda *args: ("computing", "tensor messages")),
        ("computing_and_experts", "costs that the plan does not have",
        lambda *args: ("computing", "expert messages")),
        ("computing_and_data", "messages that hide", lambda *args: ("computing", "data messages")),
        ("bubble_and_messages", "no computing",
         lambda model, *args: ("pipeline bubble",
             "expert messages" if model.experts else "tensor messages")),
        ("bubble_and_largest_message", "no computing", bubble_and_largest_message),
        ("messages_alone", "no bubble",
         lambda model, plan, gpu, reached: ("computing",
             "expert messages" if model.experts else "tensor messages")),
        ("bubble_wherever_there_is_one", "not by the plan", bubble_wherever_there_is_one),
        ("one_name", "not two names", lambda *args: "pipeline bubble"),
        ("twice_the_same", "not two names", lambda *args: ("pipeline bubble", "pipeline bubble")),
        ("other_words", "not two names", lambda *args: ("computing", "all-reduce")),
        ("nothing_returned", "nothing returned", nothing_returned),
        ("asks_the_model_for_parts", "called what it builds", asks_the_model_for_parts),
        ("calls_libs_costs", "called what it builds",
         lambda model, plan, gpu, reached: by_hand.main_costs(model, plan, gpu, reached)),
        ("not_written_yet", "not written", not_written_yet),
    ),
    "chosen_plans": told(
        None,
        ("a_plan_alone", "not four plans", lambda: BEST[DENSE]),
        ("three_jobs", "not four plans", lambda: {job: plan for job,
            plan in BEST.items() if job != MIXTURE}),
        ("a_list", "not four plans", lambda: list(BEST.values())),
        ("nothing", "nothing returned", nothing),
        ("degrees_in_a_dict", "no Plan", lambda: of(DENSE, {"tp": 8, "pp": 4, "dp": 8})),
        ("half_degrees", "a field of the Plan", lambda: of(DENSE, JOB(2, tp=8, pp=4, dp=256 / 32))),
        ("in_fp8", "a field of the Plan",
         lambda: of(DENSE, JOB(2, tp=8, pp=4, dp=8, v=12, sequence_parallel=True,
             precision="fp8"))),
        ("recomputes_a_list", "a field of the Plan",
         lambda: of(DENSE, JOB(2, tp=8, pp=4, dp=8, v=12, sequence_parallel=True,
             recompute=["full"]))),
        ("with_zero_3", "a field of the Plan", lambda: of(MIXTURE,
            Plan(512, 2, dp=256, ep=4, zero=3))),
        ("half_the_gpus", "other GPUs", lambda: of(DENSE, JOB(2, tp=8, pp=4, dp=4, v=12,
            sequence_parallel=True))),
        ("ep_counted_as_gpus", "other GPUs",
         lambda: of(MIXTURE, JOB(8, tp=4, pp=1, dp=1, ep=64, sequence_parallel=True))),
        ("batch_500", "another batch",
         lambda: of(DENSE, Plan(500, 1, tp=8, pp=4, dp=8, zero=1, sequence_parallel=True))),
        ("sixty_four_stages", "unequal stages", lambda: of(DENSE,
            JOB(1, tp=4, pp=64, dp=1, sequence_parallel=True))),
        ("thinner_than_a_layer", "unequal stages",
         lambda: of(DENSE, JOB(2, tp=8, pp=4, dp=8, v=48, sequence_parallel=True))),
        ("too_few_rows", "cannot be laid out", lambda: of(DENSE, JOB(3, tp=8, pp=4, dp=8))),
        ("sixty_four_tensor_ranks", "cannot be laid out",
        lambda: of(DENSE, JOB(1, tp=64, pp=4, dp=1))),
        ("experts_on_parts_of_ranks", "cannot be laid out",
        lambda: of(MIXTURE, JOB(2, tp=1, pp=8, dp=32, ep=64))),
        ("data_parallel", "state too large", lambda: of(DENSE, JOB(1, dp=256))),
        ("no_tensor_parallelism", "activations too large",
        lambda: of(DENSE, JOB(1, tp=1, pp=32, dp=8))),
        ("large_micro_batches", "activations too large",
         lambda: of(DENSE, JOB(8, tp=8, pp=8, dp=4, sequence_parallel=True))),
        ("one_huge_micro_batch", "one micro-batch too large",
         lambda: of(DENSE, JOB(512, tp=8, pp=32, dp=1, recompute="full", sequence_parallel=True))),
        ("all_recomputed", "recomputed for nothing",
         lambda: of(DENSE, JOB(2, tp=8, pp=4, dp=8, v=12, recompute="full",
             sequence_parallel=True))),
        ("deep_with_few_micro_batches", "a large bubble",
         lambda: of(DENSE, JOB(4, tp=8, pp=16, dp=2, sequence_parallel=True))),
        ("tensor_ranks_on_two_nodes", "tensor parallelism too wide",
         lambda: of(DENSE, JOB(1, tp=16, pp=2, dp=8, sequence_parallel=True))),
        ("no_stages", "gradients of many parameters",
         lambda: of("mixture, GB200", JOB(1, dp=256, ep=32))),
        ("no_sequence_parallelism", "norms on every tensor rank",
        lambda: of(DENSE, JOB(1, tp=8, pp=8, dp=4, v=12))),
        ("experts_over_eight_nodes", "experts too far apart",
         lambda: of("mixture, H100", JOB(2, tp=1, pp=4, dp=64, ep=64, v=12, recompute="full"))),
        ("dense_advice_for_a_mixture", "many small kernels",
         lambda: of("mixture, H100", JOB(2, tp=8, pp=4, dp=8, ep=16, v=12, recompute="full",
             sequence_parallel=True))),
        ("thin_slices", "small products", lambda: of("dense, GB200",
            JOB(1, tp=8, pp=4, dp=8, sequence_parallel=True))),
        ("calls_libs_plans", "called what it builds", lambda: capstone_plans.chosen_plans()),
        ("exits", "exits", exits),
        ("not_written", "not written", not_written),
    ),
}  # fmt: skip
RIGHT = {
    "estimate": [term_by_term, as_an_answer(by_hand.estimate)],
    "main_costs": [term_by_term_again, by_the_cost_models_order, as_an_answer(by_hand.main_costs)],
    "chosen_plans": [
        as_in_the_notebook,
        the_first_of_a_search,
        numpys_degrees,
        as_an_answer(capstone_plans.chosen_plans),
    ],
}
