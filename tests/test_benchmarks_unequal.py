"""The benchmark of unequal devices: what it tells the ranks could meet its bar, and an
equal split could not."""

import numpy as np
import pytest

from tests.benchmarks import bench_unequal, report
from tests.benchmarks.bench_unequal import EQUAL, SPEED, foretold, ideals, splits


def test_what_is_told_allows_the_bar_and_an_equal_split_does_not():
    told, ideal = foretold(), ideals()
    for what in ("batch", "pipeline"):
        assert 0.93 < ideal[what] / told[what, SPEED] <= 1 + 1e-12
        assert ideal[what] / told[what, EQUAL] < 0.7
    assert sum(splits()["batch", SPEED]) == sum(splits()["batch", EQUAL]) == bench_unequal.B


@pytest.mark.parametrize(("longer", "verdict"), [(1.0, "met"), (1.04, "met"), (1.2, "missed")])
def test_a_split_by_speed_that_takes_too_long_misses_the_bar(longer, verdict):
    outcome = bench_unequal.outcome(
        {key: np.full(9, longer * each) for key, each in foretold().items()}, "gloo"
    )
    verdicts = {row.what: row.verdict for row in outcome.rows}
    assert verdicts == {f"{what}, {how}": verdict if how == SPEED else "-"
                        for what in ("batch", "pipeline") for how in (SPEED, EQUAL)}  # fmt: skip
    assert outcome.drawing.png.startswith(b"\x89PNG") and "90 %" in report.as_text(outcome)
    assert report.as_json("unequal", outcome, report.machine(), quick=True)["data"]["ideal"]


def test_on_ranks_every_split_takes_at_least_its_time():
    found, place = bench_unequal.measured(1)
    assert place == "gloo" and found.keys() == foretold().keys()
    for key, seconds in found.items():
        assert seconds.shape == (1,) and (seconds >= 0.99 * foretold()[key]).all(), key
