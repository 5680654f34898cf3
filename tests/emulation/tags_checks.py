"""Every graded check that runs on ranks, with lib's own reference as the answer."""

import importlib.util
import pathlib
import sys
import time

import torch

from lib.check import framework
from lib.check.exercises import EXERCISES

path = pathlib.Path(__file__).parents[1] / "check" / "as_an_answer.py"
sys.path.append(str(path.parent))  # for what it imports there
spec = importlib.util.spec_from_file_location("as_an_answer", path)
answers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(answers)

# cloudpickle takes a module that is not here for one made up in the notebook; once_differentiable
# refers to this one.
sys.modules.setdefault("torch._C._functions", torch._C._functions)


def run(names):
    for name in names or [n for n, e in EXERCISES.items() if any(part.worlds for part in e.parts)]:
        exercise, began = EXERCISES[name], time.monotonic()
        given = tuple(answers.as_an_answer(part.reference) for part in exercise.parts)
        outcome = framework.evaluate(
            exercise, given if isinstance(exercise, framework.Bundle) else given[0]
        )
        yield name, "" if outcome.passed else "\n".join(outcome.lines), time.monotonic() - began
