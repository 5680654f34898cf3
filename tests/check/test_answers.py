"""Every check is proved able to fail: wrong answers are rejected with the right hint, right ones accepted.

One file per exercise, lab0/answers_<exercise>.py: WRONG {function: name of the hint}, RIGHT [functions].
For an exercise of several functions (a Bundle), function by function: WRONG {name: {...}}, RIGHT {name: [...]}.

`make test` runs, of each function, six wrong answers or more: one for every hint. `make test-all` runs them all.
"""

import importlib.util
import pathlib
import sys

import pytest

from lib.check.exercises import EXERCISES, FUNCTIONS
from lib.check.framework import evaluate


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    module.EXERCISE = path.stem.removeprefix("answers_")
    if not isinstance(module.RIGHT, dict):
        module.WRONG, module.RIGHT = {module.EXERCISE: module.WRONG}, {module.EXERCISE: module.RIGHT}
    return module


ANSWERS = [load(path) for path in sorted(pathlib.Path(__file__).parent.glob("lab*/answers_*.py"))]
WRONG = [(name, fn, hint) for m in ANSWERS for name, answers in m.WRONG.items() for fn, hint in answers.items()]
RIGHT = [(name, fn) for m in ANSWERS for name, answers in m.RIGHT.items() for fn in answers]
table: list[tuple[str, str, str, int, int]] = []


def wrong_answers():
    """All of WRONG; those that are further examples of a hint, after the sixth answer of a function, are slow tests."""
    seen: dict[str, list[str]] = {}
    for exercise, fn, hint in WRONG:
        hints = seen.setdefault(exercise, [])
        further = hint in hints and len(hints) >= 6
        hints.append(hint)
        marks = [pytest.mark.slow] if further else []
        yield pytest.param(exercise, fn, hint, id=f"{exercise}-{fn.__name__}", marks=marks)


@pytest.mark.parametrize(("exercise", "fn", "hint"), list(wrong_answers()))
def test_a_wrong_answer_is_rejected_with_its_hint(exercise, fn, hint):
    outcome = evaluate(FUNCTIONS[exercise], fn)
    print("\n".join(outcome.lines))
    table.append((exercise, fn.__name__, outcome.hint, outcome.points, outcome.max_points))
    assert not outcome.passed
    assert outcome.hint == hint


@pytest.mark.parametrize(("exercise", "fn"), RIGHT, ids=[f"{e}-{fn.__name__}" for e, fn in RIGHT])
def test_a_right_answer_written_another_way_is_accepted(exercise, fn):
    outcome = evaluate(FUNCTIONS[exercise], fn)
    assert outcome.passed, "\n".join(outcome.lines)


def test_every_exercise_has_six_wrong_answers_and_two_right_ones():
    for name, exercise in EXERCISES.items():
        functions = [part.name for part in exercise.parts]
        assert sum(e in functions for e, _, _ in WRONG) >= 6, name
        assert all(sum(e == function for e, _ in RIGHT) >= 2 for function in functions), name
    assert {e for e, _, _ in WRONG} == set(FUNCTIONS)


def test_every_hint_is_given_to_some_wrong_answer():
    for module in ANSWERS:
        for name, answers in module.WRONG.items():
            given, known = set(answers.values()), {h.name for h in FUNCTIONS[name].hints}
            assert known <= given, f"{name}: no wrong answer gets {known - given}"


def test_the_table_of_exercise_wrong_answer_and_hint(capsys):
    """Printed by `pytest -s`: which mistake gets which hint, and how many points it keeps."""
    with capsys.disabled():
        print()
        for exercise, name, hint, points, most in table:
            print(f"  {exercise:<24} {name:<32} {hint or '-':<40} {points} of {most}")
