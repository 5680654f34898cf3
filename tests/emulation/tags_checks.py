"""Every graded check that runs on ranks, with lib's own reference as the answer."""

import pathlib
import sys
import time

import torch

from lib.check import framework
from lib.check.exercises import EXERCISES

sys.path.append(str(pathlib.Path(__file__).parents[1] / "check"))
from as_an_answer import as_an_answer

# cloudpickle takes a module that is not here for one made up in the notebook; once_differentiable
# refers to this one.
sys.modules.setdefault("torch._C._functions", torch._C._functions)


def run(names):
    for name in names or [n for n, e in EXERCISES.items() if any(part.worlds for part in e.parts)]:
        exercise, began = EXERCISES[name], time.monotonic()
        given = tuple(as_an_answer(part.reference) for part in exercise.parts)
        outcome = framework.evaluate(
            exercise, given if isinstance(exercise, framework.Bundle) else given[0]
        )
        yield name, "" if outcome.passed else "\n".join(outcome.lines), time.monotonic() - began
