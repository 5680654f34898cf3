"""The benchmark of attention over a cut sequence: all sides are right, torch's too, or
nothing is timed."""

import pytest

pytest.importorskip("torch.distributed.tensor.experimental._context_parallel")

from lib import launch
from tests.benchmarks import bench_context_parallel, report

TINY = (1, 4, 16, 4)


@pytest.mark.slow
def test_each_way_is_timed_against_torchs_ring():
    outcome = bench_context_parallel.measured([2], TINY, 2)
    ways = ("ring", "gathered", "Ulysses")
    assert [(row.what, row.ranks) for row in outcome.rows] == [
        (f"{way} against torch's ring", 2) for way in ways
    ]
    assert set(outcome.data[2]) == {*ways, "theirs", "again"}
    assert "cp 2" in outcome.drawing.alt and "fused kernel" in report.as_text(outcome)


def apart():
    sides, right = bench_context_parallel.calls(TINY)
    return {name: (side() - right).abs().max().item() for name, side in sides.items()}


def test_all_sides_are_causal_attention_on_four_ranks():
    for of_rank in launch.capture(apart, nproc=4, backend="gloo", timeout=300):
        assert len(of_rank) == 5 and max(of_rank.values()) < 1e-5
