"""Sweeps over models, stages, groups: `make test` takes as few runs as hold all there is, `make test-all` takes all.

Runs are tuples, (model, stage, group). A defect of one value, or of two that meet, is seen by a run that has them.
"""

import itertools
import os

WHOLE = "WHOLE_SWEEPS" in os.environ  # the Makefile's test-all sets it


def pairs(run):
    return set(itertools.combinations(enumerate(run), 2))


def sweep(runs, always=(), holds=pairs):
    """Of `runs`, in their order: those of `always`, and more until all that a run holds is held by one of them.

    holds(run) -> a set; by default every two values of the run, each with its place.
    """
    runs = list(runs)
    if WHOLE:
        return runs
    chosen = [run for run in runs if run in always]
    missing = set().union(*map(holds, runs)) - set().union(*map(holds, chosen))
    while missing:
        chosen.append(max(runs, key=lambda run: len(holds(run) & missing)))
        missing -= holds(chosen[-1])
    return [run for run in runs if run in chosen]


def quick(named, slow):
    """Of {name: run}, without those named in `slow`."""
    assert not slow - named.keys(), f"there is no {slow - named.keys()}"
    return {name: run for name, run in named.items() if WHOLE or name not in slow}
