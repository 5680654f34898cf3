"""Published sweeps: regret of the chosen plan, and the noise floor it is held against."""

from dataclasses import replace

import numpy as np
import pytest

from lib.calibration import fit
from lib.calibration.sweeps import TWO_RUNS, scatter, sweeps
from lib.cost.plan import Plan


def test_the_choice_costs_little_and_never_more_than_noise():
    """Mean regret at most 2 %, none above its sweep's floor, where the slowest plan takes 1.1 to 4
    times the best's."""
    found = sweeps()
    assert len(found) >= 7
    assert np.mean([sweep.regret for sweep in found]) <= 0.02
    for sweep in found:
        assert 0 <= sweep.regret <= sweep.noise, sweep
        assert sweep.noise < sweep.spread - 1, (
            "a floor above the whole sweep's spread would excuse any choice"
        )


def test_the_same_without_the_sweeps_that_the_fit_has_seen():
    """vTrain's other half alone: 54 plans in no fit."""
    found = sweeps(cases=fit.cases("sweeps"))
    assert sum(sweep.plans for sweep in found) > 50
    assert np.mean([sweep.regret for sweep in found]) <= 0.02
    assert all(sweep.regret <= sweep.noise for sweep in found)


def test_rows_of_the_sweeps_are_in_no_fit():
    rows = {(case.source, case.row) for case in fit.cases()}
    more = fit.cases("sweeps")
    assert len(more) == 54 and not rows & {(case.source, case.row) for case in more}


def line(noise, seed=0):
    """Runs of 7 micro-batches of a pipeline whose slots take 1 + b/2 seconds, but for
    relative noise."""
    draw = np.random.default_rng(seed)
    plans = [replace(Plan(384, pp=4, dp=8), micro_batch=b) for b in (1, 2, 3, 4, 6, 8, 12)]
    return [
        (plan, (plan.micro_batches + 3) * (1 + plan.micro_batch / 2) * (1 + noise * draw.normal()))
        for plan in plans
    ]


def test_scatter_is_the_noise_that_was_put_in():
    assert scatter(line(0.0))[0] == pytest.approx(0, abs=1e-20)
    estimates = [
        (squares / free) ** 0.5
        for squares, free in (scatter(line(0.03, seed)) for seed in range(200))
    ]
    assert np.mean(estimates) == pytest.approx(0.03, rel=0.1)
    assert scatter(line(0.03)[:2]) == (0.0, 0)  # two points are always on a line


def test_two_runs_that_are_equally_fast_differ_by_more_than_the_floor_once_in_ten():
    draw = np.random.default_rng(0)
    differences = abs(draw.normal(size=100_000) - draw.normal(size=100_000))
    assert np.mean(differences > TWO_RUNS) == pytest.approx(0.1, abs=0.005)
