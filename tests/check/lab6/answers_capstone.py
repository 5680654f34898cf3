"""Answers to Lab 6's capstone: wrong ones, each with the hint that it must get, and right ones."""

from functools import partial

import numpy
from as_an_answer import as_an_answer

from lib.check.lab6 import capstone as check
from lib.cost.hardware import gpu
from lib.cost.memory import memory
from lib.cost.plan import Plan
from lib.cost.search import DEFAULT_STACK, search
from lib.cost.shapes import load
from lib.cost.stacks import stacks
from lib.cost.step import step_seconds

JOB = partial(Plan, 512)
MODEL, STACK = load("gpt-3-175b"), stacks()[DEFAULT_STACK]
BEST = JOB(2, tp=8, pp=4, dp=8, v=12, zero=1, sequence_parallel=True)


def justified(plan):
    """The plan, and the two words that are true of it."""
    sizes = memory(MODEL, plan, STACK)
    seconds = step_seconds(MODEL, plan, gpu("H100-80GB"), STACK)
    del seconds["matmul"]
    return plan, max(sizes, key=sizes.get), max(seconds, key=seconds.get)


# right


def as_in_the_notebook():
    return BEST, "activations", "tensor"


def a_deeper_pipeline():
    return list(justified(JOB(1, tp=8, pp=8, dp=4, v=6, zero=1, sequence_parallel=True)))


def half_a_node():
    return justified(JOB(1, tp=4, pp=8, dp=8, v=6, zero=2, sequence_parallel=True))


def the_first_of_the_search():
    return justified(search(MODEL, gpu("H100-80GB"), 256, 512)[0].plan)


# wrong: no plan for this job


def a_dict():
    return {"plan": BEST, "fullest": "activations", "slowest": "tensor"}


def a_plan_alone():
    return BEST


def two_things():
    return BEST, "activations"


def degrees_in_a_dict():
    return {"tp": 8, "pp": 4, "dp": 8}, "activations", "elementwise"


def text_for_a_plan():
    return "tp8 pp4 dp8", "activations", "elementwise"


def half_degrees():
    return JOB(2, tp=8, pp=4, dp=256 / 32, zero=1), "activations", "elementwise"


def in_fp8():
    return JOB(2, tp=8, pp=4, dp=8, v=12, zero=1, sequence_parallel=True, precision="fp8"), "activations", "elementwise"


def zero_4():
    return JOB(2, tp=8, pp=4, dp=8, v=12, zero=4, sequence_parallel=True), "activations", "elementwise"


def half_the_gpus():
    return JOB(2, tp=8, pp=4, dp=4, v=12, zero=1, sequence_parallel=True), "activations", "elementwise"


def batch_500():
    return Plan(500, 1, tp=8, pp=4, dp=8, zero=1, sequence_parallel=True), "activations", "elementwise"


def sixty_four_stages():
    return JOB(1, tp=4, pp=64, dp=1, sequence_parallel=True), "activations", "elementwise"


def thinner_than_a_layer():
    return JOB(2, tp=8, pp=4, dp=8, v=48, zero=1, sequence_parallel=True), "activations", "elementwise"


def sixty_four_tensor_ranks():
    return JOB(1, tp=64, pp=4, dp=1, zero=1), "activations", "elementwise"


def too_few_rows():
    return JOB(3, tp=8, pp=4, dp=8, zero=1), "activations", "elementwise"


# wrong: does not fit


def data_parallel():
    return JOB(1, dp=256, zero=1), "gradients", "elementwise"


def without_zero():
    return JOB(1, tp=8, pp=2, dp=16, sequence_parallel=True), "optimizer", "elementwise"


def no_tensor_parallelism():
    return JOB(1, tp=1, pp=32, dp=8, zero=1), "activations", "bubble"


def large_micro_batches():
    return JOB(8, tp=8, pp=8, dp=4, zero=1, sequence_parallel=True), "activations", "bubble"


def one_huge_micro_batch():
    return JOB(512, tp=8, pp=32, dp=1, recompute="full", sequence_parallel=True), "working", "bubble"


# wrong: slow


def all_recomputed():
    return JOB(2, tp=8, pp=4, dp=8, v=12, zero=1, recompute="full", sequence_parallel=True), "gradients", "elementwise"


def deep_with_few_micro_batches():
    return JOB(4, tp=8, pp=16, dp=2, zero=1, sequence_parallel=True), "activations", "bubble"


def tensor_ranks_on_two_nodes():
    return JOB(1, tp=16, pp=2, dp=8, zero=1, sequence_parallel=True), "gradients", "tensor"


def zero_3_without_a_pipeline():
    return JOB(2, tp=8, pp=1, dp=32, zero=3, sequence_parallel=True), "activations", "sharding"


def no_sequence_parallelism():
    return JOB(1, tp=8, pp=8, dp=4, v=12, zero=1), "activations", "elementwise"


# wrong: not justified


def the_optimizer():
    return BEST, "optimizer", "tensor"


def model_state():
    return BEST, "model state", "tensor"


def the_reserve():
    return BEST, "reserve", "tensor"


def matrix_products():
    return *justified(BEST)[:2], "matmul"


def communication():
    return *justified(BEST)[:2], "communication"


def the_bubble():
    return *justified(BEST)[:2], "bubble"


def not_a_word():
    return *justified(BEST)[:2], 0.65


def calls_libs():
    return check.capstone()


def one_after_another():
    yield from as_in_the_notebook()


def recomputes_a_list():
    return JOB(2, tp=8, pp=4, dp=8, v=12, zero=1, sequence_parallel=True, recompute=["full"]), "activations", "tensor"


def exits():
    raise SystemExit(0)


def numpys_degrees():
    tp, pp, dp = numpy.array([8, 4, 8])
    return JOB(2, tp=tp, pp=pp, dp=dp, v=12, zero=1, sequence_parallel=True), "activations", "tensor"


def not_written():
    raise NotImplementedError


WRONG = {
    a_dict: "not three things",
    degrees_in_a_dict: "no Plan",
    half_degrees: "a field of the Plan",
    half_the_gpus: "other GPUs",
    batch_500: "another batch",
    sixty_four_stages: "unequal stages",
    too_few_rows: "cannot be laid out",
    data_parallel: "state too large",
    large_micro_batches: "activations too large",
    one_huge_micro_batch: "one micro-batch too large",
    all_recomputed: "recomputed for nothing",
    deep_with_few_micro_batches: "a large bubble",
    tensor_ranks_on_two_nodes: "tensor parallelism too wide",
    zero_3_without_a_pipeline: "gradients and weights exchanged too often",
    no_sequence_parallelism: "norms on every tensor rank",
    model_state: "no component of memory",
    the_optimizer: "not the fullest",
    matrix_products: "matmul",
    communication: "no component of the step",
    the_bubble: "not the slowest",
    a_plan_alone: "not three things",
    two_things: "not three things",
    text_for_a_plan: "no Plan",
    in_fp8: "a field of the Plan",
    zero_4: "a field of the Plan",
    thinner_than_a_layer: "unequal stages",
    sixty_four_tensor_ranks: "cannot be laid out",
    without_zero: "state too large",
    no_tensor_parallelism: "activations too large",
    the_reserve: "no component of memory",
    not_a_word: "no component of the step",
    calls_libs: "called lib's",
    one_after_another: "not three things",
    recomputes_a_list: "a field of the Plan",
    exits: "exits",
    not_written: "not written",
}
RIGHT = [
    as_in_the_notebook,
    numpys_degrees,
    a_deeper_pipeline,
    the_first_of_the_search,
    half_a_node,
    as_an_answer(check.capstone),
]
