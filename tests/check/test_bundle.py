"""Several functions in one check: each is judged by itself, and the points add up. Bonus
points say so."""

import json
import linecache
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from lib import launch
from lib.check import fingerprints
from lib.check.framework import (
    Bundle,
    CheckFailed,
    Claim,
    Exercise,
    Hint,
    Problem,
    check,
    evaluate,
    stand_in,
)


def gives(name, right, points):
    def judge(runs):
        (got,) = runs[0].results
        return None if got == right else Problem("value", f"expected {right}, got {got}")

    hint = Hint("one more", lambda p: str(right + 1) in p.text, "you counted from 1.")
    return Exercise(
        name,
        lambda fn: fn(),
        (),
        (Claim("the number", points, "always", judge),),
        (hint,),
        (),
        lambda: right,
    )


PAIR = Bundle("pair", (gives("two", 2, 1), gives("three", 3, 4)))


def unwritten():
    raise NotImplementedError


def half_written():
    dist.get_rank()
    raise NotImplementedError


def test_all_right():
    outcome = evaluate(PAIR, (lambda: 2, lambda: 3))
    assert outcome.passed
    assert outcome.lines == [
        "pair",
        f"  ok  {'two':<30} the number",
        f"  ok  {'three':<30} the number",
        "5 of 5 points",
    ]


def test_one_wrong_costs_its_own_points_only():
    outcome = evaluate(PAIR, (lambda: 3, lambda: 3))
    assert (outcome.points, outcome.hint, outcome.message) == (
        4,
        "one more",
        "two: the number: expected 2, got 3",
    )
    assert outcome.lines == [
        "pair", "  --  two", "      --  the number", "          expected 2, got 3",
        "          Hint: you counted from 1.", f"  ok  {'three':<30} the number",
        "4 of 5 points",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sentences", "shown"),
    [
        (["you counted from 1."], "Usual cause: you counted from 1."),
        (["Try: count from 0."], "Try: count from 0."),
        (["a is one.", "b is one."], "Usual cause: a is one. Or: b is one."),
        (["Try: count.", "a is one."], "Usual cause: a is one. Or try: count."),
        ([], ""),
    ],
)
def test_a_hint_says_whether_it_names_a_cause_or_gives_advice(sentences, shown):
    assert fingerprints.labelled(sentences) == shown


def test_only_a_failure_that_is_known_as_a_whole_has_a_usual_cause(monkeypatch):
    """If only what is wrong under one name is known, or only a condition fits, it is a possible
    cause."""
    part = PAIR.parts[0]
    problem = Problem("value", "expected 2, got 5", {"narrower": "one name"}, "everything")
    both = fingerprints.all_of(part.claims[0], problem)
    for known, label in ((both[:1], "Usual"), (both[1:], "Possible")):
        table = {"prints": {one: ["one more"] for one in known}}
        monkeypatch.setattr(fingerprints, "tables", lambda table=table: {part.name: table})
        name, text = fingerprints.hint_for(part, part.claims[0], problem)
        assert (name, text) == ("one more", f"{label} cause: you counted from 1.")


def test_one_not_written():
    outcome = evaluate(PAIR, (lambda: 2, unwritten))
    assert (outcome.points, outcome.message) == (1, "three: not written yet")


def test_none_written():
    outcome = evaluate(PAIR, (unwritten, unwritten))
    assert (outcome.points, outcome.message, outcome.passed) == (0, "not written yet", False)


def test_the_right_one_is_used_from_then_on_and_one_line_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LAB_REPORT", str(tmp_path / "report"))
    two, three = lambda: 2, lambda: 4
    with pytest.raises(CheckFailed, match="three: the number: expected 3, got 4"):
        check(PAIR, two, three)
    assert stand_in(PAIR.parts[0], two) is two
    assert stand_in(PAIR.parts[1], three) is PAIR.parts[1].reference
    assert "running lib's three" in capsys.readouterr().out
    (line,) = (tmp_path / "report").read_text().splitlines()
    told = json.loads(line)
    parts = [(part["id"], part["points"], part["hint"]) for part in told.pop("parts")]
    assert parts == [("two", 1, ""), ("three", 0, "Hint: you counted from 1.")]
    assert told == {
        "id": "pair", "points": 1, "max_points": 5,
        "message": "three: the number: expected 3, got 4",
        "hint": "Hint: you counted from 1.", "where": "",
    }  # fmt: skip


def test_the_report_says_which_line_of_the_answer_the_verdict_is_about(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_REPORT", str(tmp_path / "report"))
    cell, source, names = (
        "/tmp/ipykernel_1/123.py",
        "def three():\n    few = {}\n    return few['three']\n",
        {},
    )
    monkeypatch.setitem(linecache.cache, cell, (len(source), None, source.splitlines(True), cell))
    exec(compile(source, cell, "exec"), names)
    with pytest.raises(CheckFailed):
        check(PAIR, lambda: 2, names["three"])
    line = json.loads((tmp_path / "report").read_text())
    assert line["message"] == "three: the number: KeyError: 'three'"
    assert line["where"] == "line 3 of three: return few['three']"


def test_too_few_functions_are_named():
    with pytest.raises(
        CheckFailed, match=r"give the check your 2 functions, as in check.pair\(two, three\)"
    ):
        check(PAIR, lambda: 2)


def test_bonus_points_say_so():
    part = gives("two", 2, 3)
    bonus = Exercise(part.name, part.measure, (), part.claims, part.hints, bonus=True)
    assert evaluate(bonus, lambda: 2).lines[-1] == "3 of 3 bonus points"
    assert evaluate(bonus, lambda: 1).lines[-1] == "0 of 3 bonus points"


def test_checks_need_no_figures():
    """An import of matplotlib would cost every rank and every notebook a second."""
    loaded = (
        "import sys, lib.check.exercises; print(sorted({'matplotlib', 'IPython', 'scipy'} & "
        "set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True).stdout
        == "[]\n"
    )


def on_ranks(name):
    """An exercise on 2 ranks: give back your rank + 1."""

    def judge(runs):
        return None if runs[0].results == [1, 2] else Problem("value", f"got {runs[0].results}")

    return Exercise(name, lambda fn: fn(), (2,), (Claim("rank + 1", 1, "2 ranks", judge),), ())


def plus_one():
    return dist.get_rank() + 1


def waits_for_nobody():
    return dist.recv(torch.empty(1), 1 - dist.get_rank())


def test_parts_share_a_launch_and_one_that_fails_there_spoils_no_other(monkeypatch):
    launches = []
    capture = launch.capture
    monkeypatch.setattr(
        launch, "capture", lambda *args, **kwargs: launches.append(args) or capture(*args, **kwargs)
    )
    bundle = Bundle(
        "five", tuple(on_ranks(name) for name in ("right", "hangs", "unwritten", "begun", "wrong"))
    )

    assert [o.passed for o in evaluate(bundle, (plus_one,) * 5).parts] == [True] * 5
    assert len(launches) == 1

    outcome = evaluate(bundle, (plus_one, waits_for_nobody, unwritten, half_written, lambda: 0))
    assert [part.points for part in outcome.parts] == [1, 0, 0, 0, 0]
    hang, unwritten_, begun, wrong = outcome.parts[1:]
    assert hang.message.startswith("rank + 1: 2 ranks: deadlock")
    assert (unwritten_.message, begun.message) == (
        "not written yet",
    ) * 2 and wrong.message == "rank + 1: got [0, 0]"
    assert len(launches) == 1 + 3  # one more for each that failed on the ranks
    assert not any(unwritten in args for args in launches)  # nobody has to run that to know


def test_ranks_that_did_not_begin_judge_nobody(tmp_path, monkeypatch):
    def no_start(*args, **kwargs):
        raise launch.RankError("no start within 300 s", "no start")

    monkeypatch.setattr(launch, "capture", no_start)
    monkeypatch.setenv("LAB_REPORT", str(tmp_path / "report"))
    with pytest.raises(launch.RankError, match="no start"):
        check(on_ranks("plus_one"), plus_one)
    assert not (tmp_path / "report").exists()


def test_a_rank_imports_the_exercise_that_it_runs_and_no_other():
    """Seven labs of checks would cost every rank of every check a good part of a second."""

    def measure(fn):
        return sorted(name for name in sys.modules if name.startswith("lib.check.lab"))

    exercise = Exercise(
        "x",
        measure,
        (1,),
        (Claim("c", 1, "", lambda runs: Problem("seen", str(runs[0].results))),),
        (),
    )
    assert evaluate(exercise, plus_one).message == "c: [[]]"


def sends_what_nobody_receives():
    if dist.get_rank() == 0:
        dist.isend(torch.ones(1), 1)
    return dist.get_rank() + 1


def test_what_a_part_leaves_behind_is_its_own_fault_and_what_was_finished_before_stands(
    monkeypatch,
):
    launches = []
    capture = launch.capture
    monkeypatch.setattr(
        launch, "capture", lambda *args, **kwargs: launches.append(args) or capture(*args, **kwargs)
    )
    bundle = Bundle(
        "five", tuple(on_ranks(name) for name in ("right", "hangs", "leaves", "wrong", "last"))
    )
    fns = (plus_one, waits_for_nobody, sends_what_nobody_receives, lambda: 0, plus_one)
    right, hangs, leaves, wrong, last = evaluate(bundle, fns).parts
    assert right.passed and last.passed
    assert "their calls do not match" in "\n".join(leaves.lines)
    assert wrong.message == "rank + 1: got [0, 0]"
    assert hangs.message.startswith("rank + 1: 2 ranks: deadlock")
    # all five up to the hang; the last three; of these alone the one whose calls do not match; the
    # other two
    assert [len(arguments) - 3 for arguments in launches] == [5, 3, 1, 2]
