"""Predicted against measured: the claim in the title is the one in the numbers, and wrong
data are refused."""

import pytest

from lib import plots

RUNS = {"A100": ([1.0, 10.0, 100.0], [1.05, 9.0, 130.0]), "H100": ([3.0], [3.1])}


def test_the_same_data_give_the_same_bytes_and_the_title_counts():
    first = plots.predicted_against_measured(RUNS)
    assert first.png == plots.predicted_against_measured(RUNS).png and first.png.startswith(
        b"\x89PNG"
    )
    assert first.alt.startswith(
        "Predicted against measured seconds per step of 4 runs in 2 groups (A100, H100)"
    )
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


ERRORS = {"A100": ([0.1, 0.3], [0.1, 0.1]), "new": ([0.5], None)}


def test_the_title_has_the_errors_left_out_and_kinds_without_others_do_not_count():
    figure = plots.prediction_errors(ERRORS)
    assert figure.png == plots.prediction_errors(ERRORS).png
    assert (
        "Left out of the fit, 2 published runs are 20.0% off on average; in sample 10.0%"
        in figure.alt
    )
    assert "A100, 2 runs: 20.0% off, 10.0% in sample; new, 1 runs: 50.0% off." in figure.alt


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ({"new": ([0.5], None)}, "1 kinds, 0 of them with errors in sample"),
        ({"a": ([0.1, 0.2], [0.1])}, "a: give as many errors"),
        ({"a": ([-0.1], [0.1])}, "0 or more"),
    ],
)
def test_errors_that_cannot_be_drawn_are_refused(kinds, says):
    with pytest.raises(ValueError, match=says):
        plots.prediction_errors(kinds)
