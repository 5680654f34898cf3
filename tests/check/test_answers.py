"""Every check is proved able to fail: wrong answers are rejected with the right hint, right ones
accepted.

One file per exercise, lab0/answers_<exercise>.py: WRONG {function: name of the hint}, RIGHT
[functions]. For an exercise of several functions (a Bundle), function by function: WRONG {name:
{...}}, RIGHT {name: [...]}. Beside it, lab0/mistakes_<exercise>.py has the known mistakes, whose
fingerprints ship (mistakes.py); they are judged here as well.

`make test` runs three wrong answers of each function, with different hints, or the first wrong one
where answers run on ranks; `validate` judges a right one of each. `make test-all` runs them all.

The chosen answers of a function are judged together, as the parts of a Bundle are: in one launch,
and in one more after each answer that fails on the ranks. A student's answer is judged alone. So
where the verdict is not the one that is asked for, an answer is judged again, alone, and that
counts.
"""

import functools
import inspect
import pathlib
from types import SimpleNamespace
from unittest import mock

import pytest
from mistakes import judged_together, loaded, mistakes_of

from lib.check import causes
from lib.check.exercises import EXERCISES, FUNCTIONS, MODULES
from lib.check.framework import Outcome, evaluate


def load(path):
    """What the file lists, function by function. The file's module itself stays as it is, because
    other tests read it, too."""
    module, name = loaded(path), path.stem.removeprefix("answers_")
    by_function = isinstance(module.RIGHT, dict)
    right = module.RIGHT if by_function else {name: module.RIGHT}
    wrong = module.WRONG if by_function else {name: module.WRONG}
    return SimpleNamespace(
        RIGHT=right,
        WRONG={name: wrong.get(name, {}) | known_mistakes(name) for name in right},
        ALONE=getattr(module, "ALONE", ()),
        SLOW=getattr(module, "SLOW", ()),
    )


def known_mistakes(name):
    """{answer: hint} of the exercise's MISTAKES."""
    exercise, module = (
        FUNCTIONS[name],
        next(m for m in MODULES if FUNCTIONS[name] in m.EXERCISE.parts),
    )
    return {
        mistake.made(exercise.reference): mistake.hint for mistake in mistakes_of(exercise, module)
    }


# once for all mistakes of a function
with mock.patch.object(inspect, "getsource", functools.cache(inspect.getsource)):
    ANSWERS = [
        load(path) for path in sorted(pathlib.Path(__file__).parent.glob("lab*/answers_*.py"))
    ]
WRONG = [
    (name, fn, hint)
    for m in ANSWERS
    for name, answers in m.WRONG.items()
    for fn, hint in answers.items()
]
RIGHT = [(name, fn) for m in ANSWERS for name, answers in m.RIGHT.items() for fn in answers]
# they leave behind what the next would stumble over
ALONE = {fn for m in ANSWERS for fn in m.ALONE}
# tested in test_adversarial.py
SHARED = {hint.name for hint in (*causes.FIRST, *causes.GENERIC)}
# where the ranks' calls clash, N is 1 or a rank has nothing, whatever is built: exercises say it in
# their own words
SHARED |= {"not on every rank", "one rank alone", "right only where there is something"}
SLOW = {fn for m in ANSWERS for fn in m.SLOW}  # seconds of processor time each
outcomes: dict[tuple, Outcome] = {}
table: list[tuple[str, str, str, int, int]] = []


def right_answers(function):
    """All of them are slow tests, because `validate` judges the solution's."""
    return [
        pytest.param(function, fn, id=f"{function}-{fn.__name__}", marks=pytest.mark.slow)
        for name, fn in RIGHT
        if name == function
    ]


def wrong_answers(function):
    """What comes after the first three hints is a slow test, and so are further examples of a hint.

    On ranks each failing answer costs a launch or two: there what comes after the first answer is
    slow.
    """
    hints, on_ranks = [], bool(FUNCTIONS[function].worlds)
    for fn, hint in ((fn, hint) for name, fn, hint in WRONG if name == function):
        is_slow = len(hints) >= (1 if on_ranks else 3) or hint in hints or fn in SLOW
        marks = [pytest.mark.slow] if is_slow else []
        if not is_slow:
            hints.append(hint)
        yield pytest.param(function, fn, hint, id=f"{function}-{fn.__name__}", marks=marks)


@pytest.fixture
def outcome(request, function, fn):
    """The verdict on one answer; the first that is asked for brings those on all chosen
    answers of its function."""
    if fn in ALONE:
        return None
    if (function, fn) not in outcomes:
        chosen = [
            item.callspec.params for item in request.session.items if hasattr(item, "callspec")
        ]
        fns = [
            params["fn"]
            for params in chosen
            if params.get("function") == function and params["fn"] not in ALONE
        ]
        try:
            verdicts = judged_together(FUNCTIONS[function], fns)
        except RuntimeError:  # a launch that did not begin: all are judged alone
            verdicts = [None] * len(fns)
        outcomes.update(
            {(function, fn): verdict for fn, verdict in zip(fns, verdicts, strict=True)}
        )
    return outcomes[function, fn]


def alone_unless(expected, outcome, function, fn):
    """`outcome`, if it is there and as expected; else the verdict on this answer judged alone."""
    return outcome if outcome and expected(outcome) else evaluate(FUNCTIONS[function], fn)


def answers_of(name):
    """A class for each function: pytest's workers take a class whole, and judge its
    answers together."""

    class Answers:
        @pytest.mark.parametrize(("function", "fn"), right_answers(name))
        def test_a_right_answer_written_another_way_is_accepted(self, function, fn, outcome):
            outcome = alone_unless(lambda verdict: verdict.passed, outcome, function, fn)
            assert outcome.passed, "\n".join(outcome.lines)

        @pytest.mark.parametrize(("function", "fn", "hint"), list(wrong_answers(name)))
        def test_a_wrong_answer_is_rejected_with_its_hint(self, function, fn, hint, outcome):
            named = lambda verdict: hint in (verdict.hint, *(verdict.hint or "").split(" or "))
            outcome = alone_unless(named, outcome, function, fn)
            print("\n".join(outcome.lines))
            table.append((function, fn.__name__, outcome.hint, outcome.points, outcome.max_points))
            assert not outcome.passed
            assert named(outcome), f"the hint was {outcome.hint!r}, expected {hint!r}"

    return Answers


for name in dict.fromkeys(name for name, _, _ in WRONG):
    globals()[f"Test_{name}"] = answers_of(name)


def test_every_exercise_has_six_wrong_answers_and_two_right_ones():
    for name, exercise in EXERCISES.items():
        functions = [part.name for part in exercise.parts]
        assert sum(e in functions for e, _, _ in WRONG) >= 6, name
        assert all(sum(e == function for e, _ in RIGHT) >= 2 for function in functions), name
    assert {e for e, _, _ in WRONG} == set(FUNCTIONS)


def test_every_hint_is_given_to_some_wrong_answer():
    """A sentence that several exercises share is given in one of them at least."""
    texts = {name: {h.name: h.text for h in FUNCTIONS[name].hints} for name in FUNCTIONS}
    shared = {(hint, texts[name].get(hint)) for name, _, hint in WRONG}
    for module in ANSWERS:
        given = {hint for answers in module.WRONG.values() for hint in answers.values()}
        for name in module.WRONG:
            known = {
                hint for hint, text in texts[name].items() if (hint, text) not in shared
            } - SHARED
            assert known <= given, f"{name}: no wrong answer gets {known - given}"


def test_the_table_of_exercise_wrong_answer_and_hint(capsys):
    """Printed by `pytest -s`: which mistake gets which hint, and how many points it keeps."""
    with capsys.disabled():
        print()
        for exercise, name, hint, points, most in table:
            print(f"  {exercise:<24} {name:<32} {hint or '-':<40} {points} of {most}")
