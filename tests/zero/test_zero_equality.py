"""ZeRO-1, 2 and 3: every gradient and parameter of every step is that of one process, clipping and
groups included."""

from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from replicas import differences, same_bits
from sweeps import sweep
from zero_cases import (
    GROUPS,
    MIXED,
    MODELS,
    OPTIMIZERS,
    STAGES,
    STEPS,
    mixed_data_parallel,
    single_process,
    train_on_ranks,
)

from lib import launch

WORLD = (0, 1, 2, 3)
RUNS = sweep(
    (name, stage, optimizer, members)
    for name in MODELS
    for stage in STAGES
    for optimizer in OPTIMIZERS
    for members in GROUPS
    if (name == "gpt float64" and (optimizer, members) != ("sgd", (1, 3)))
    or (optimizer, members) == ("adamw", WORLD)
)
MIXED_ON = (0, 1)  # a sum of two numbers is the same in either order, in 16 bits too
MICROBATCHED = [
    ("gpt float64", stage, "adamw", members) for stage in STAGES for members in [(0, 1, 2)]
]


class Seen(NamedTuple):
    """What a rank saw: {run: Training}, and the steps in 16 bits, {stage: ...}."""

    by_batch: dict
    by_micro_batch: dict
    mixed: dict


def run_each():
    group_of = {m: dist.new_group(m) if len(m) < dist.get_world_size() else None for m in GROUPS}
    seen = Seen({}, {}, {})
    for run in RUNS:
        if dist.get_rank() in run[-1]:
            seen.by_batch[run] = train_on_ranks(*run[:3], group_of[run[-1]])
    for run in MICROBATCHED:
        if dist.get_rank() in run[-1]:
            group = group_of[run[-1]]
            seen.by_micro_batch[run] = train_on_ranks(*run[:3], group, microbatches=2)
    if dist.get_rank() in MIXED_ON:
        group = group_of[MIXED_ON]
        seen.mixed["data parallel"] = mixed_data_parallel(group)
        for stage in STAGES:
            seen.mixed[stage] = train_on_ranks("mixed", stage, "adamw", group, clip=None).steps
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=600, ledger=False)


def check(training, run):
    name, _, optimizer, _ = run
    want, tolerance = single_process(name, optimizer), MODELS[name].tolerance
    wrong = differences(training.steps, want.steps, tolerance)
    assert len(training.steps) == STEPS and not wrong, f"{run}: " + "; ".join(wrong[:3])
    assert training.norms == pytest.approx(want.norms, rel=tolerance)


def first_of(results, run):
    """What the first rank of a run's group saw."""
    _, _, _, members = run
    return results[members[0]]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_every_gradient_and_parameter_is_the_single_process_s(results, run):
    check(first_of(results, run).by_batch[run], run)


@pytest.mark.parametrize("run", MICROBATCHED, ids=str)
def test_micro_batches_add_up_to_the_batch(results, run):
    check(first_of(results, run).by_micro_batch[run], run)


@pytest.mark.parametrize("stage", STAGES)
def test_masters_of_shards_train_as_whole_masters_do(results, stage):
    for rank in MIXED_ON:
        mixed = results[rank].mixed
        assert differences(mixed[stage], mixed["data parallel"], MIXED.tolerance) == []
        first_gradients, first_parameters = mixed[stage][0]
        assert all(
            torch.equal(g, mixed["data parallel"][0][0][n]) for n, g in first_gradients.items()
        )
        assert {p.dtype for p in first_parameters.values()} == {torch.bfloat16}


def test_clipping_did_something():
    for name in MODELS:
        assert max(single_process(name, "adamw").norms) > 0.3


def test_all_ranks_hold_the_same_bits(results):
    for run in RUNS:
        first, *others = (results[member].by_batch[run].steps for member in run[-1])
        for other in others:
            assert same_bits(first, other), run
