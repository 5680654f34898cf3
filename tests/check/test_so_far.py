"""The points so far: of the last check of each exercise in this kernel, bonus apart."""

import pytest

from lib import check
from lib.check import framework, so_far
from lib.check.exercises import EXERCISES, MODULES
from lib.cost.state import RECIPES
from lib.measuring.predictions import show_prediction


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    monkeypatch.setattr(framework, "judged", {})
    monkeypatch.setattr("lib.measuring.predictions._good", {})
    monkeypatch.setattr("lib.check.so_far.judged", framework.judged)


def told(capsys, lab=0):
    capsys.readouterr()
    check.points(lab)
    return capsys.readouterr().out.splitlines()


def test_a_check_that_has_not_run_one_not_written_one_wrong_and_one_right(capsys):
    def training_days(*given):
        raise NotImplementedError

    exercise = EXERCISES["model_state_bytes"]
    assert {"not run since the kernel started"} == {
        line[-32:] for line in told(capsys) if " of " in line and "so far" not in line
    }
    with pytest.raises(framework.CheckFailed):
        check.training_days(training_days)
    with pytest.raises(framework.CheckFailed):
        check.model_state_bytes(lambda *given: 0)
    lines = told(capsys)
    assert lines[0] == "Lab 0" and lines[2].endswith("not written yet")
    assert lines[1].split()[:4] == ["model_state_bytes", "0", "of", str(exercise.points)]
    assert lines[1].endswith(exercise.claims[0].name)
    check.model_state_bytes(lambda parameters, precision: parameters * RECIPES[precision].total)
    lines = told(capsys)
    assert lines[1].split() == [
        "model_state_bytes",
        str(exercise.points),
        "of",
        str(exercise.points),
    ]
    assert lines[-2] == f"{exercise.points} of 100 points so far"
    show_prediction("a run", 20, "kB", measured=24)
    assert told(capsys)[-1] == "Your one prediction was within 20 %."


def test_what_is_next_is_the_first_behind_this_one_then_the_first_of_all(monkeypatch):
    names = so_far.names_of(0)
    core = [name for name in names if not EXERCISES[name].bonus]
    assert so_far.lab_of("ring_all_reduce") == 0 and so_far.lab_of("mesh") == 6
    assert so_far.lab_of("no exercise") is None
    assert so_far.so_far(0) == (0, 100, core[0])
    assert so_far.so_far(0, core[1]) == (0, 100, core[2])
    for name in core[1:]:
        full = EXERCISES[name].points
        framework.judged[name] = framework.Outcome(full, full, [], "passed")
    assert so_far.so_far(0, core[-1]) == (100 - EXERCISES[core[0]].points, 100, core[0])


def test_every_lab_has_100_points_and_its_bonus_points_apart(capsys):
    for lab in range(7):
        lines = told(capsys, lab)
        names = [m.EXERCISE.name for m in MODULES if m.__name__.startswith(f"lib.check.lab{lab}.")]
        assert [line.split()[0] for line in lines[1 : len(names) + 1]] == names
        bonus = sum(EXERCISES[name].points for name in names if EXERCISES[name].bonus)
        assert lines[len(names) + 1 :] == [
            "0 of 100 points so far",
            *([f"0 of {bonus} bonus points so far"] * (bonus > 0)),
        ]


def test_a_lab_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="there is no Lab 7"):
        check.points(7)
