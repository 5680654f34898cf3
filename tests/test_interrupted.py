"""A job killed by SIGKILL twelve times: what it keeps is what a clock says, what it loses
what the formula says."""

import numpy as np
import pytest

from lib import launch
from lib.cost.goodput import best_interval, kept_work, lost_share, simulated
from lib.measuring import interrupted
from lib.measuring.interrupted import NO_PACE, PACE, Pace, kept_steps, pace_here, train
from lib.training import checkpoint

FAILURES, TRIES = 12, 3
BUSY = 5  # times the pace of a machine that has nothing else to do
GAPS = np.random.default_rng(3).exponential(1.0, FAILURES)  # of the mean time between failures
EVERY = round(best_interval(PACE.save, PACE.mtbf) / PACE.step)


def run_to(folder, steps, every=5):
    return launch.capture(
        train, str(folder), every, NO_PACE, 0.0, None, steps, nproc=2, ledger=False
    )


def killed(folder, pace):
    """(kept by the ranks, kept by the clock) between the failures, in mean times
    between failures."""
    kept = kept_steps(str(folder), pace.mtbf * GAPS, EVERY, pace) * pace.step / pace.mtbf
    return kept, kept_work(
        GAPS, *(seconds / PACE.mtbf for seconds in (EVERY * PACE.step, PACE.save, PACE.restart))
    )


@pytest.mark.slow
def test_twelve_kills_lose_what_the_clock_and_the_formula_say(tmp_path):
    settings, lost = (EVERY * PACE.step, PACE.save, PACE.restart, PACE.mtbf), None
    low, high = np.quantile(simulated(*settings, failures=FAILURES, jobs=4000), [0.05, 0.95])
    for number in range(TRIES):
        pace = pace_here()
        if pace.mtbf > BUSY * PACE.mtbf:
            continue
        kept, should = killed(tmp_path / str(number), pace)
        assert checkpoint.latest(tmp_path / str(number)) == round(
            kept.sum() * pace.mtbf / pace.step
        )
        lost, by_the_clock = (1 - each.sum() / GAPS.sum() for each in (kept, should))
        if abs(lost - by_the_clock) < 0.03:
            break
    if lost is None:
        pytest.skip(
            f"not run: other programs keep this machine busy, so that it would take over "
            f"{BUSY * 10} seconds"
        )
    assert lost == pytest.approx(by_the_clock, abs=0.03)
    assert low <= lost <= high and low <= lost_share(*settings) <= high


def test_after_kills_it_ends_as_if_nothing_had_happened(tmp_path):
    pace = Pace(0.001, 0.002, 0.0, 1.0)
    kept = kept_steps(str(tmp_path / "killed"), [1.5, 0.0, 1.0], 5, pace)
    assert kept[1] == 0 and all(steps % 5 == 0 for steps in kept)
    steps = int(kept.sum()) + 12
    through, whole = run_to(tmp_path / "killed", steps), run_to(tmp_path / "whole", steps)
    assert [one["loss"] for one in through] == [one["loss"] for one in whole]


def test_whoever_ends_otherwise_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupted, "train", lambda *args: 1 / 0)
    with pytest.raises(launch.RankError, match="ZeroDivisionError"):
        kept_steps(str(tmp_path), [1.0], 5, NO_PACE)


def test_a_pace_keeps_its_proportions():
    assert PACE.times(2) == Pace(0.02, 0.12, 0.5, 2.0) and pace_here(nproc=1).mtbf >= PACE.mtbf
