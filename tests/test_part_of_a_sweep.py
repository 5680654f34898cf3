"""What `make test` takes of a sweep holds all that the sweep holds."""

import itertools

import pytest
import sweeps

RUNS = [run for run in itertools.product("abc", (1, 2, 4), (True, False)) if run != ("a", 1, True)]


def held(runs, holds=sweeps.values):
    return set().union(*map(holds, runs))


def test_every_value_of_a_sweep_is_in_what_is_taken_and_those_meet_that_are_to(monkeypatch):
    monkeypatch.setattr(sweeps, "WHOLE", False)
    taken = sweeps.sweep(RUNS)
    assert (
        held(taken) == held(RUNS) and len(taken) == 3 and taken == [r for r in RUNS if r in taken]
    )
    wanted = ("c", 4, False)
    assert wanted in sweeps.sweep(RUNS, always=[wanted])
    met = sweeps.sweep(RUNS, holds=sweeps.meeting(0, 1))
    assert (
        {run[:2] for run in met} == {run[:2] for run in RUNS}
        and len(met) == 9
        and held(met) == held(RUNS)
    )


def test_the_whole_sweep_is_all_of_it(monkeypatch):
    monkeypatch.setattr(sweeps, "WHOLE", True)
    assert sweeps.sweep(iter(RUNS)) == RUNS and sweeps.quick({"one": 1}, {"one"}) == {"one": 1}


def test_a_slow_run_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(sweeps, "WHOLE", False)
    assert sweeps.quick({"one": 1, "two": 2}, {"two"}) == {"one": 1}
    with pytest.raises(AssertionError, match="tow"):
        sweeps.quick({"one": 1, "two": 2}, {"tow"})
