"""The checks of Lab 0's collectives: lib's own functions fulfil their claims, and a check is one or two launches."""

import dataclasses

import pytest

from lib import launch
from lib.check import EXERCISES
from lib.check.framework import evaluate

NAMES = (
    "broadcast", "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "all_to_all", "hierarchical_all_reduce",
)  # fmt: skip


def through(fn):
    """`fn` as a function that stands in this file: the ledger then sees the user's line that calls lib."""
    return lambda *args, **kwargs: fn(*args, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_libs_function_fulfils_the_claims_in_at_most_two_launches(name, monkeypatch):
    exercise, launches, capture = EXERCISES[name], [], launch.capture

    def counted(*args, **kwargs):
        launches.append(kwargs["nproc"])
        return capture(*args, **kwargs)

    monkeypatch.setattr(launch, "capture", counted)
    fn = exercise.reference
    allowed = (*exercise.may_call, f"{fn.__module__.split('.')[-1]}.{fn.__name__}")  # here lib may call itself
    outcome = evaluate(dataclasses.replace(exercise, may_call=allowed), through(fn))
    assert outcome.passed, "\n".join(outcome.lines)
    assert 1 <= len(launches) <= 2


def test_points_are_those_of_the_lab():
    assert {name: EXERCISES[name].points for name in NAMES if not EXERCISES[name].bonus} == {
        "broadcast": 12, "ring_reduce_scatter": 16, "ring_all_gather": 10, "ring_all_reduce": 10,
        "hierarchical_all_reduce": 12,
    }  # fmt: skip
    assert EXERCISES["all_to_all"].bonus
