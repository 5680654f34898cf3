"""What Lab 2 measures, without ranks: times for another schedule, paces, and what recomputation
should keep."""

import numpy as np
import torch
from torch import nn

from lib.cost.bubbles import published_runs
from lib.pipeline import interleaved, one_f_one_b, simulate, times_of, zb_h1
from lib.pipeline.trials import (
    faster,
    in_flight,
    memory_and_time,
    merged,
    stage_times,
    times_for,
)
from lib.training.recompute import Recomputed


def test_times_of_1f1b_predict_the_other_schedules():
    F, B, message = [4.0, 6.0, 4.0], [8.0, 12.0, 8.0], [1.0, 3.0]
    run = simulate(one_f_one_b(3, 6), {"F": F, "B": B}, message)
    found = times_of(run.bars)
    again = simulate(one_f_one_b(3, 6), *times_for(*found))
    assert again.makespan == run.makespan
    times, edges = times_for({"F": F, "B": B}, message, v=2)
    assert times["F"] == [2, 3, 2, 2, 3, 2]
    assert edges == [1, 3, 2, 1, 3]  # between the last rank and the first: the mean
    assert simulate(interleaved(3, 6, 2), times, edges).makespan < run.makespan
    halves, edges = times_for({"F": F, "B": B}, message)
    assert [i + w for i, w in zip(halves["I"], halves["W"], strict=True)] == B
    assert simulate(zb_h1(3, 6), halves, edges).makespan < run.makespan


def test_a_split_is_faster_by_its_slowest_stage():
    times = {"layers": np.array([[1.0, 1.0, 4.0], [2.0, 2.0, 6.0]])}
    cuts = lambda costs: {"first": [[0], [1, 2]], "second": [[0, 1], [2]]}
    assert faster(times, cuts).tolist() == [5 / 4, 8 / 6]


def test_recomputation_keeps_what_the_formula_says():
    stage = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    xs = [torch.randn(32, 16, requires_grad=True) for _ in range(4)]
    ways = {"keep all": stage, "recompute": Recomputed(stage)}
    (most, one), (least, first) = (in_flight(way, xs) for way in ways.values())
    assert (most, first) == (4 * one, xs[0].nbytes)
    times = stage_times(ways, xs, rounds=3)
    measured, formula = memory_and_time(ways, xs, times)
    assert measured["keep all"][0] == formula["keep all"][0] == most
    assert measured["recompute"][0] == least <= formula["recompute"][0] == one + 3 * first


def test_versions_of_all_ranks_are_merged():
    assert merged([({"a": 0}, 1), ({"b": 2}, 1)]) == {"a": 0, "b": 2}


def test_the_published_runs_have_a_computed_bubble_and_a_measured_rate():
    runs = published_runs()
    first = runs[0]
    assert len(runs) == 18 and {run["schedule"] for run in runs} == {
        "1F1B", "interleaved 1F1B", "ZB-H1",
    }  # fmt: skip
    assert (first["computed"], first["samples"], first["micro_batch"]) == (0.1985, 12.5, 6)
    assert first["times"]["B"] == first["times"]["I"] + first["times"]["W"]
    step = simulate(one_f_one_b(8, 32), first["times"], first["message"]).makespan
    assert 1.0 < 1e3 * 6 * 32 / step / 8 / first["samples"] < 1.1
