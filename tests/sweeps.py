"""Sweeps over models, stages, groups: `make test` takes as few runs as hold all there is, `make
test-all` takes all.

Runs are tuples, (model, stage, group). A defect of one value is seen by a run that has it; of two
values that meet, by all runs, or where `meeting` asks for them.
"""

import os
from collections import Counter

import pytest

WHOLE = "WHOLE_SWEEPS" in os.environ  # the Makefile's test-all sets it


def values(run):
    return set(enumerate(run))


def meeting(*places):
    """holds of `sweep`: every value, and all that meet at these places of a run."""
    return lambda run: values(run) | {tuple((place, run[place]) for place in places)}


def sweep(runs, always=(), holds=values):
    """Of `runs`, in their order: those of `always`, and more until all that a run holds is held by
    one of them.

    holds(run) -> a set; by default every value of the run, with its place. Of runs that hold as
    much that is new, the one whose values have been taken least.
    """
    runs = list(runs)
    if WHOLE:
        return runs
    chosen = [run for run in runs if run in always]
    missing = set().union(*map(holds, runs)) - set().union(*map(holds, chosen))
    taken = Counter(value for run in chosen for value in values(run))
    while missing:
        run = max(
            runs,
            key=lambda run: (
                len(holds(run) & missing),
                -sum(taken[value] for value in values(run)),
            ),
        )
        chosen.append(run)
        taken.update(values(run))
        missing -= holds(run)
    return [run for run in runs if run in chosen]


def quick(named, slow):
    """Of {name: run}, without those named in `slow`."""
    assert not slow - named.keys(), f"there is no {slow - named.keys()}"
    return {name: run for name, run in named.items() if WHOLE or name not in slow}


def first_quick(values, quick=1):
    """`values` for `pytest.mark.parametrize`: those after the first `quick` ones are slow tests."""
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    slow = [pytest.param(*value, marks=pytest.mark.slow) for value in tuples[quick:]]
    return [*values[:quick], *slow]
