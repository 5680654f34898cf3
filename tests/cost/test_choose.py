"""The planner in one loop: the best of all plans, tried by brute force; what may be run;
ties; nothing fits."""

import itertools
import random
from typing import NamedTuple

import pytest

from lib.cost import by_hand
from lib.cost.choose import choose_plan
from lib.cost.hardware import gpu
from lib.cost.plan import Plan
from lib.cost.search import divisors
from lib.cost.shapes import load


class Model(NamedTuple):
    layers: int
    heads: int


class Device(NamedTuple):
    memory: float
    per_node: int


BIG = Device(float("inf"), 8)


def may_be_run(model, device, gpus, batch):
    """Every plan by trying all numbers."""
    tried = itertools.product(
        *(range(1, most + 1) for most in (device.per_node, model.layers, gpus, batch))
    )
    for tp, pp, dp, b in tried:
        laid = tp * pp * dp == gpus and batch % (dp * b) == 0
        if laid and model.heads % tp == 0 and device.per_node % tp == 0 and model.layers % pp == 0:
            yield Plan(batch, b, tp, pp, dp, zero=1, sequence_parallel=tp > 1)


def drawn(seed, values):
    """A cost: of each plan a number that is drawn, the same whenever it is asked for."""
    return lambda plan: random.Random(f"{seed} {plan}").choice(values)


def test_no_other_plan_that_fits_is_faster():
    draw, found, refused = random.Random(0), 0, 0
    for seed in range(60):
        model = Model(draw.choice([4, 6, 10, 12]), draw.choice([4, 6, 8, 10]))
        device, gpus = (
            Device(draw.choice([1, 5, 9]), draw.choice([2, 4, 8])),
            draw.choice([1, 4, 6, 7, 12, 16]),
        )
        batch = draw.choice([1, 12, 16, 20])
        # many are alike
        memory, seconds = drawn(f"memory {seed}", range(10)), drawn(f"seconds {seed}", range(8))
        costs = [
            (seconds(p), memory(p))
            for p in may_be_run(model, device, gpus, batch)
            if memory(p) <= device.memory
        ]
        if not costs:
            refused += 1
            with pytest.raises(
                ValueError, match=f"no plan for {batch} sequences on {gpus} GPUs fits into"
            ):
                choose_plan(model, device, gpus, batch, memory, seconds)
            continue
        found += 1
        plan = choose_plan(model, device, gpus, batch, memory, seconds)
        assert plan in may_be_run(model, device, gpus, batch)
        assert (seconds(plan), memory(plan)) == min(costs)
    assert found > 20 and refused > 5


def test_every_plan_that_may_be_run_is_asked_about_once_and_no_other():
    model, device, asked = Model(12, 6), Device(1e9, 4), []
    choose_plan(model, device, 24, 48, lambda plan: asked.append(plan) or 1.0, lambda plan: 1.0)
    assert len(asked) == len(set(asked))
    assert set(asked) == set(may_be_run(model, device, 24, 48))


def test_tensor_ranks_share_a_node():
    for per_node in (1, 2, 4, 8):
        plan = choose_plan(
            Model(8, 8), Device(1.0, per_node), 8, 8, lambda plan: 0.0, lambda plan: 1 / plan.tp
        )
        assert plan.tp == per_node and plan.sequence_parallel == (per_node > 1) and plan.zero == 1


def test_of_equally_fast_plans_the_one_that_needs_least():
    plan = choose_plan(
        Model(8, 8), BIG, 8, 8, lambda plan: abs(plan.pp - 4) + plan.micro_batch, lambda plan: 1.0
    )
    assert plan.pp == 4 and plan.micro_batch == 1


def test_what_needs_all_the_memory_fits_and_what_needs_a_byte_more_does_not():
    needs = lambda plan: 100 * plan.micro_batch
    faster_with_more_rows = lambda plan: 1 / plan.micro_batch
    chosen = lambda room: (
        choose_plan(Model(1, 1), Device(room, 8), 1, 8, needs, faster_with_more_rows).micro_batch
    )
    assert [chosen(room) for room in (800, 799, 400, 399, 100)] == [8, 4, 4, 2, 1]
    with pytest.raises(ValueError, match="fits into 99 bytes: use more GPUs"):
        chosen(99)


def test_a_batch_that_no_data_ranks_divide_is_refused():
    with pytest.raises(ValueError, match="no plan for 12 sequences on 7 GPUs"):
        choose_plan(Model(12, 8), BIG, 7, 12, lambda plan: 0.0, lambda plan: 1.0)


def test_a_real_model_more_memory_is_never_slower_and_some_memory_is_too_little():
    """Llama 2 70B on 64 A100, with the costs of by_hand.py."""
    model, device = load("llama2-70b"), gpu("A100-80GB")
    memory = lambda plan: by_hand.plan_memory(model, plan)

    def seconds(plan):
        sent = by_hand.plan_messages(model, plan)
        return (5 + sent["tp"] / device.link + (sent["pp"] + sent["dp"]) / device.nic) / (
            1 - by_hand.plan_bubble(plan)
        )

    times = []
    for room in (25e9, 30e9, 60e9, 1e12):
        plan = choose_plan(model, device._replace(memory=room), 64, 256, memory, seconds)
        assert memory(plan) <= room and plan.problem(model) is None and plan.tp in divisors(64)
        times.append(seconds(plan))
    assert times[0] > times[1] > times[2] >= times[3]
    with pytest.raises(ValueError, match="no plan for 256 sequences on 64 GPUs"):
        choose_plan(model, device._replace(memory=20e9), 64, 256, memory, seconds)
