"""Predicted against measured: the claim in the title is the one in the numbers, and wrong data are refused."""

import pytest

from lib import plots

RUNS = {"A100": ([1.0, 10.0, 100.0], [1.05, 9.0, 130.0]), "H100": ([3.0], [3.1])}


def test_the_same_data_give_the_same_bytes_and_the_title_counts():
    first = plots.predicted_against_measured(RUNS)
    assert first.png == plots.predicted_against_measured(RUNS).png and first.png.startswith(b"\x89PNG")
    assert first.alt.startswith("Predicted against measured seconds per step of 4 runs in 2 groups (A100, H100)")
    assert "75% within 10%" in first.alt  # 5 %, 10 %, 30 %, 3 %
    assert "mean error 12.1%" in first.alt


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ({}, "0 groups of runs: 1 to 8"),
        ({"x": ([1.0], [1.0, 2.0])}, "x: 1 measured and 2 predicted"),
        ({"x": ([], [])}, "x: 0 measured and 0 predicted"),
        ({"x": ([0.0], [1.0])}, "x: 0 has no logarithm"),
    ],
)
def test_wrong_data_are_refused_with_their_numbers(runs, says):
    with pytest.raises(ValueError, match=says):
        plots.predicted_against_measured(runs)
