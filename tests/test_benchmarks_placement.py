"""The benchmark of placements: a step that its formula does not explain misses the bar, and the
order is told."""

import numpy as np
import pytest

from lib import launch
from lib.hybrid.paced import placed_steps
from tests.benchmarks import bench_placement, report
from tests.benchmarks.bench_placement import (
    DATA,
    MICRO_BATCH,
    ONE,
    PLACEMENTS,
    SHAPE,
    STAGES,
    TENSOR,
    predicted,
)  # fmt: skip

ALONE = {8: 0.25, 4: 0.4}  # seconds of a step in one node


def found_times(longer, rounds=9):
    """What `measured` would have found, every step across nodes `longer` than predicted."""
    return {
        N: {
            name: np.full(
                rounds,
                (longer if name != ONE else 1.0) * sum(predicted(*placed, ALONE[N]).values()),
            )
            for name, placed in of_each.items()
        }
        for N, of_each in PLACEMENTS.items()
    }


def test_a_step_in_one_node_foretells_itself():
    assert found_times(1.0)[8][ONE] == pytest.approx(ALONE[8]) and found_times(1.0)[4][
        ONE
    ] == pytest.approx(ALONE[4])


@pytest.mark.parametrize(
    ("longer", "verdict"), [(1.0, "met"), (1.15, "met"), (0.75, "missed"), (1.3, "missed")]
)
def test_a_step_that_is_not_as_predicted_misses_the_bar(longer, verdict):
    outcome = bench_placement.outcome(found_times(longer), "gloo")
    assert [(row.ranks, row.what, row.verdict) for row in outcome.rows] == [
        (N, name, verdict) for N, of_each in PLACEMENTS.items() for name in of_each if name != ONE
    ]
    assert outcome.drawing.png.startswith(b"\x89PNG")
    assert report.as_json("placement", outcome, report.machine(), quick=True)["data"]


def test_the_order_of_the_placements_is_told():
    found = found_times(1.0)
    said = report.as_text(bench_placement.outcome(found, "gloo"))
    assert f"8 ranks: {ONE} < {STAGES} < {DATA} < {TENSOR} in 9 of 9 rounds" in said
    found[8][DATA][:4] = found[8][TENSOR][:4] + 1
    assert "in 5 of 9 rounds" in report.as_text(bench_placement.outcome(found, "gloo"))


def test_what_is_told_sets_the_placements_apart():
    of = {name: sum(predicted(*placed, 0.4).values()) for name, placed in PLACEMENTS[8].items()}
    assert (
        1.1 * of[ONE] < of[STAGES] and 1.1 * of[STAGES] < of[DATA] and 1.1 * of[DATA] < of[TENSOR]
    )


@pytest.mark.slow
def test_on_ranks_every_placement_takes_at_least_its_waits():
    found, place = bench_placement.measured([4], 1)
    assert place == "gloo" and found.keys() == {4} and found[4].keys() == PLACEMENTS[4].keys()
    waits = bench_placement.M * SHAPE.n_layers * sum(bench_placement.COMPUTE) / 2
    for name, seconds in found[4].items():
        assert seconds.shape == (1,) and seconds >= 0.99 * waits, name


def test_on_ranks_tensor_ranks_across_a_much_slower_link_take_longest():
    pair = {name: PLACEMENTS[8][name] for name in (TENSOR, ONE)}
    slower = [(2e-3, 4e-3), (20e-3, 1 / 8e6)]
    seconds = launch.capture(
        placed_steps,
        pair,
        SHAPE,
        bench_placement.rows(),
        MICRO_BATCH,
        *slower,
        1,
        nproc=8,
        ledger=False,
    )[0]
    # 30 times as long, on a machine that has nothing else to do
    assert seconds[TENSOR] > seconds[ONE]
