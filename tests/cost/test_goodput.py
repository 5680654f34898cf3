"""Goodput: the formula against 10,000 simulated failures, the best interval against a search and
Daly's examples."""

import pytest

from lib.cost.goodput import (
    LLAMA_3,
    best_interval,
    job_mtbf,
    kept_work,
    lost_share,
    simulated,
    young,
)

SETTINGS = [  # interval, save, restart over the mtbf
    (interval, save, restart) for interval in (0.005, 0.05, 0.3, 1.0, 3.0) for save in (0.0, 0.002,
    0.1, 0.5)
    for restart in (0.0, 0.01, 0.4)
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_within_3_percent_of_10_000_simulated_failures(setting):
    mtbf = 7200.0
    case = (*(part * mtbf for part in setting), mtbf)
    (seen,) = simulated(*case)
    assert lost_share(*case) == pytest.approx(seen, rel=0.03)


@pytest.mark.parametrize("setting", SETTINGS[::5], ids=str)
def test_of_a_million_failures_within_half_a_percent(setting):
    assert lost_share(*setting, 1.0) == pytest.approx(
        simulated(*setting, 1.0, failures=1_000_000)[0], rel=0.005
    )


def test_the_clock_by_hand():
    """A restart of 1, intervals of 3 and saves of 1: a save ends at 5, 9, 13 ..."""
    assert kept_work([0.5, 1.0, 4.9, 5.0, 8.9, 9.0, 13.5], 3, 1, 1).tolist() == [
        0,
        0,
        0,
        3,
        3,
        6,
        9,
    ]
    assert simulated(3, 1, 1, 10, failures=12, jobs=5).shape == (5,)


def test_a_share_lies_between_0_and_1_and_grows_with_what_is_lost():
    shares = [lost_share(interval, 10, 60, 1000) for interval in (1e-3, 1, 50, 1e3, 1e5, 1e7)]
    assert all(0 <= share <= 1 for share in shares) and shares[-1] == 1
    assert (
        lost_share(100, 20, 60, 1000) > lost_share(100, 10, 60, 1000) > lost_share(100, 10, 0, 1000)
    )
    assert lost_share(100, 0, 0, 1e12) == pytest.approx(0, abs=1e-9)


def test_in_the_first_order_it_is_the_sum_of_its_three_parts():
    T, S, R, M = 30.0, 0.3, 5.0, 1e5
    assert lost_share(T, S, R, M) == pytest.approx(S / (T + S) + (T / 2 + R) / M, rel=2e-3)


@pytest.mark.parametrize("save", [1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0])
def test_no_other_interval_loses_less(save):
    best = best_interval(save, 1.0)
    for restart in (0.0, 0.7):  # which moves no least
        least = lost_share(best, save, restart, 1.0)
        assert all(
            lost_share(best * factor, save, restart, 1.0) > least
            for factor in (0.9, 0.99, 1.01, 1.1)
        )


def test_dalys_examples_and_where_youngs_holds():
    """Daly 2006, figures 3 to 5: saves of 5 minutes at an mtbf of 24 h, 6 h and 15 minutes."""
    for hours, minutes in ((24, 117), (6, 57), (0.25, 9.1)):
        assert best_interval(300, hours * 3600) / 60 == pytest.approx(minutes, rel=0.01)
    assert young(1, 1e6) == pytest.approx(best_interval(1, 1e6), rel=1e-3)
    assert young(300, 900) > 1.3 * best_interval(300, 900)


def test_llama_3s_failures_in_seconds():
    mtbf = job_mtbf(*LLAMA_3, job_gpus=16_384)
    assert mtbf == pytest.approx(54 * 86400 / 419) and mtbf / 3600 == pytest.approx(3.09, abs=0.01)
    assert job_mtbf(*LLAMA_3, job_gpus=100_000) == pytest.approx(mtbf * 0.16384)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: lost_share(0, 1, 1, 1), "interval=0"),
        (lambda: lost_share(1, -1, 1, 1), "save=-1"),
        (lambda: lost_share(1, 1, 1, 0), "mtbf=0"),
        (lambda: best_interval(0, 1), "save=0"),
        (lambda: best_interval(1, float("inf")), "mtbf=inf"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_value(wrong, named):
    with pytest.raises(ValueError, match=named):
        wrong()
