"""Submissions of every kind, the points that each must earn, and nothing left
running afterwards."""

import copy
import json
import os
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

import class_of_sixty
import nbformat
import own_processes
import pytest
from toy_lab import by_id, code

from lib import linux
from lib.course import grade, nbval_run, notebook, report
from lib.course.__main__ import main
from lib.course.notebook import CourseError

RIGHT = {
    "double": "def double(x):\n    return x + x",
    "total": "total = sum",
    "largest": """
class Largest:
    def __init__(self, value):
        self.values = [value]

    def see(self, value):
        self.values.append(value)

    def get(self):
        return max(self.values)
""",
}


@pytest.fixture
def submit(toy_root, tmp_path):
    """A function that grades a notebook, or the unsolved lab with these answers in
    place of its stubs."""

    def submit_one(nb=None, cell_timeout=30, total_timeout=300, **answers):
        nb = nb or notebook.read(notebook.lab_path(toy_root, "lab9_toy"))
        for cell_id, source in answers.items():
            by_id(nb, cell_id).source = source
        path = tmp_path / "mine.ipynb"
        notebook.write(nb, path)
        return grade.grade_notebook("9", path, toy_root, cell_timeout, total_timeout)

    return submit_one


def points(result):
    return [row["points"] for row in result["exercises"]]


def statuses(result):
    return [row["status"] for row in result["exercises"]]


def messages(result):
    return [row["message"] for row in result["exercises"]]


def body(name, *lines):
    """A function of one argument with these lines."""
    return f"def {name}(x):\n" + "\n".join(f"    {line}" for line in lines)


def test_right_answers_earn_all_points_whatever_became_of_the_notebook_around_them(
    submit, unsolved
):
    nb = unsolved
    for cell_id, source in RIGHT.items():
        by_id(nb, cell_id).source = source
    twin = copy.deepcopy(by_id(nb, "double"))  # answer copied, the first copy still the stub
    twin.id = "double-copy"
    by_id(nb, "double").source = 'def double(x):\n    """Twice x."""\n    raise NotImplementedError'
    nb.cells.append(twin)
    by_id(nb, "largest").metadata = nbformat.from_dict({})  # metadata wiped
    by_id(nb, "largest").id = "largest-moved"  # and the id lost: found by the class
    nb.cells.remove(by_id(nb, "check-total"))  # a check deleted
    by_id(nb, "check-double").source = "assert False"  # a check edited
    nb.cells.insert(
        0, code("mess", "import os\nos.chdir('/')\nraise ValueError('not part of any answer')")
    )
    nb.cells.insert(0, code("exit", "exit()"))
    nb.cells.reverse()  # and all in another order
    result = submit(nb)
    assert (result["points"], result["max_points"]) == (100, 100)
    assert statuses(result) == ["passed"] * 3 and messages(result) == [""] * 3
    assert len(result["notes"]) == 3 and all(
        "course's own" in n or "without its grade_id" in n for n in result["notes"]
    )


USES_A_HELPER = {
    "double": body("double", "return twice(x)"),
    "total": body("total", "return total(x[1:]) + x[0] if x else 0"),
    "largest": RIGHT["largest"].replace("max(", "biggest("),
}


def with_helpers(nb, source):
    by_id(nb, "my-helpers").source = source
    for cell_id, answer in USES_A_HELPER.items():
        by_id(nb, cell_id).source = answer
    return nb


def test_a_students_own_helpers_are_graded_with_every_exercise(submit, unsolved):
    """Of the first exercise and of the last, though they stand in a cell before both."""
    helpers = "def twice(x):\n    return x + x\n\ndef biggest(values):\n    return max(values)"
    result = submit(with_helpers(unsolved, helpers))
    assert (points(result), result["notes"]) == ([40, 40, 20], [])


@pytest.mark.parametrize("change", ["emptied", "deleted"])
def test_a_lab_without_helpers_loses_nothing(submit, unsolved, change):
    for cell_id, answer in RIGHT.items():
        by_id(unsolved, cell_id).source = answer
    if change == "deleted":
        unsolved.cells.remove(by_id(unsolved, "my-helpers"))
    else:
        by_id(unsolved, "my-helpers").source = ""
    result = submit(unsolved)
    assert (points(result), result["notes"]) == ([40, 40, 20], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("helpers", "told"),
    [
        ("raise ValueError('of a helper')", "my_helpers: ValueError: of a helper"),
        ("while True:\n    pass", "my_helpers: left out: "),
        ("import os\nos._exit(3)", "my_helpers: left out: "),
    ],
)
def test_helpers_that_raise_hang_or_kill_cost_only_the_exercises_that_need_them(
    submit, unsolved, helpers, told
):
    result = submit(with_helpers(unsolved, helpers), cell_timeout=3)
    assert points(result) == [0, 40, 0]
    assert "twice" in messages(result)[0] and "biggest" in messages(result)[2]
    assert [note.startswith(told) for note in result["notes"]] == [True]


def test_points_are_given_per_claim_hidden_tests_count_and_errors_stay_in_their_exercise(submit):
    result = submit(
        double=body("double", "return abs(x) * 2"),  # right on positive numbers only
        # fails the hidden test, on []
        total=body("total", "return x[0] + total(x[1:]) if x[1:] else x[0]"),
        largest="class Largest\n    pass",  # no Python
    )
    assert points(result) == [30, 20, 0]
    assert statuses(result) == ["failed", "failed", "error"]
    assert messages(result)[:2] == ["negative", "none: IndexError: list index out of range"]
    assert messages(result)[2].startswith("SyntaxError") and messages(result)[2].endswith(
        ", line 1: class Largest"
    )
    assert (result["points"], result["max_points"]) == (50, 100)


def test_prints_while_debugging_cost_nothing_and_what_an_answer_started_is_ended(submit):
    sleep = own_processes.long_sleep()
    daemon = (
        f"import subprocess\nprint(subprocess.Popen(['sleep', '{sleep}'], "
        f"start_new_session=True).pid, flush=True)\n"
    )
    result = submit(double=daemon + body("double", "print(x)", "return x + x"))
    assert points(result) == [40, 0, 0] and statuses(result) == [
        "passed",
        "not written yet",
        "not written yet",
    ]
    assert not own_processes.running(sleep)


def test_an_endless_loop_and_a_dead_kernel_cost_their_own_points_only(submit):
    result = submit(
        cell_timeout=5,
        double=body("double", "while True: pass"),
        total="import os\nos._exit(0)",
        largest=RIGHT["largest"],
    )
    assert points(result) == [0, 0, 20]
    assert statuses(result) == ["timeout", "kernel died", "passed"]
    assert messages(result)[0] == "ran longer than 5 s and was stopped"


def test_exits_floods_and_a_killed_parent_cost_their_own_points_only(submit):
    flood = body("total", "while len(x) == 3: print('x' * 1000)", "return sum(x)")
    result = submit(
        double=body("double", "import sys", "sys.exit(0)"),
        total=flood,
        largest="class Largest:\n    def __init__(self, value):\n        import os; "
        "os.kill(os.getppid(), 9)",
    )
    assert points(result) == [0, 20, 0]
    assert statuses(result) == ["error", "failed", "kernel died"]
    assert messages(result)[0] == "SystemExit: 0"
    assert "more than 1,000,000 characters printed" in messages(result)[1]


def test_the_total_limit_ends_everything_that_was_started(submit):
    sleep = own_processes.long_sleep()
    stubborn = (
        "import os, subprocess, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"subprocess.Popen(['sleep', '{sleep}'], start_new_session=True)\n"
        f"subprocess.Popen(['sleep', '{sleep}'], env={{}})\n"
        "while True: pass"
    )
    result = submit(total_timeout=8, cell_timeout=300, double=stubborn, total=RIGHT["total"])
    assert statuses(result) == ["timeout"] * 3 and "total limit of 8 s" in messages(result)[0]
    assert not own_processes.running(sleep)


def test_a_course_that_does_not_work_here_grades_nobody(toy_root, tmp_path, solution):
    by_id(solution, "tools").source = "import a_package_nobody_has"
    root = tmp_path / "course"
    notebook.write(solution, notebook.solution_path(root, "lab9_toy"))
    with pytest.raises(CourseError, match=r"set-up cell 'tools' .*ModuleNotFoundError"):
        grade.grade_notebook("9", notebook.lab_path(toy_root, "lab9_toy"), root, 20, 60)


def test_a_notebook_that_cannot_be_read_earns_0_of_all_points(toy_root, tmp_path):
    path = tmp_path / "mine.ipynb"
    path.write_text('{"cells": [')
    result = grade.grade_notebook("lab9", path, toy_root)
    assert (result["points"], result["max_points"]) == (0, 100)
    assert statuses(result) == ["missing"] * 3 and "is not JSON" in result["notes"][0]


def test_a_notebook_that_does_not_exist_is_an_error(toy_root, tmp_path):
    with pytest.raises(CourseError, match="is no file"):
        grade.grade_notebook("lab9", tmp_path / "none.ipynb", toy_root)


def test_ranks_find_room_for_their_sockets_below_a_long_temporary_folder(tmp_path, monkeypatch):
    assert len(str(tmp_path)) > nbval_run.LONGEST
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert nbval_run._short() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/run/tmp")
    assert nbval_run._short() is None


def row_of(exercise, *lines):
    """The row that one check gets whose cell passed and left these report lines."""
    cell = nbval_run.Cell(exercise.check.id, "passed", "", list(lines))
    run = nbval_run.Run({cell.cell: cell}, cut=False)
    merged = grade.merge.Merged(nbformat.v4.new_notebook(), {})
    return grade._judge(exercise, run, merged, stuck=False)


def test_a_report_line_cannot_give_more_than_the_checks_points(solution):
    exercise = notebook.exercises(solution)[0]
    assert row_of(exercise, {"points": 12})["points"] == 12
    where = {
        "points": 12,
        "message": "small: KeyError: 2",
        "where": "line 2 of double: return {}[x]",
    }
    assert (
        row_of(exercise, where)["message"] == "small: KeyError: 2, line 2 of double: return {}[x]"
    )
    one, other = (
        {"points": 0, "message": f"2 ranks: rank {r} raised ValueError: rank {r} and itself"}
        for r in (0, 1)
    )
    assert row_of(exercise, one) == row_of(exercise, other)
    assert (
        row_of(exercise, one)["message"] == "2 ranks: a rank raised ValueError: a rank and itself"
    )
    assert row_of(exercise, {"points": 4000})["points"] == 40
    for odd in (-5, "40", None, float("nan"), [40]):
        assert row_of(exercise, {"points": odd})["points"] == 0
    # it ran, and left no report
    assert (row_of(exercise)["points"], row_of(exercise)["status"]) == (0, "error")


def test_the_command_grades_the_lab_by_default_and_writes_json_and_junit(toy_root, tmp_path):
    command = [sys.executable, "-m", "lib.course", "--root", toy_root, "grade", "--lab", "9"]
    command += ["--json", tmp_path / "out" / "grade.json", "--junit", tmp_path / "grade.xml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0 of 100 points"
    result = json.loads((tmp_path / "out" / "grade.json").read_text())
    assert statuses(result) == ["not written yet"] * 3 and result["lab"] == "lab9_toy"
    suite = ElementTree.parse(tmp_path / "grade.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "3", "0")


def test_a_notebook_is_graded_where_there_is_no_proc_no_namespace_and_no_prctl(toy_root, tmp_path):
    """As on macOS: hidden here, for the command, its supervisor, the kernel and the ranks."""
    path = tmp_path / "mine.ipynb"
    nb = notebook.read(notebook.lab_path(toy_root, "lab9_toy"))
    for cell_id, source in RIGHT.items():
        by_id(nb, cell_id).source = source
    notebook.write(nb, path)
    command = [
        sys.executable,
        "-m",
        "lib.course",
        "--root",
        str(toy_root),
        "grade",
        "--lab",
        "9",
        str(path),
    ]
    command += ["--sandbox", "open"]  # else root's notebook would not be run
    env = os.environ | {linux.WITHOUT: "1", "PYTHONPATH": str(notebook.ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["100 of 100 points"]), (
        done.stderr
    )


def test_the_command_fails_only_where_the_grader_cannot_work(toy_root, tmp_path, capsys):
    broken = tmp_path / "broken.ipynb"
    broken.write_text("{")
    for arguments, exit_code, text in (
        (["grade", "--lab", "9", str(broken)], 0, "0 of 100 points\n"),
        (["grade", "--lab", "9", str(tmp_path / "none.ipynb")], 1, "error: "),
        (["grade", "--lab", "4"], 1, "choose one of lab9_toy"),
        (["build", "4"], 1, "choose one of lab9_toy"),
    ):
        assert main(["--root", str(toy_root), *arguments]) == exit_code
        shown = capsys.readouterr()
        assert text in (shown.err if exit_code else shown.out)
    with pytest.raises(SystemExit, match="2"):
        main(["grade"])
    assert "--lab" in capsys.readouterr().err
    command = [
        "--root",
        str(toy_root),
        "grade",
        "--lab",
        "9",
        str(broken),
        "--json",
        "/sys/points/of.json",
    ]
    assert main(command) == 1
    shown = capsys.readouterr()  # the points are shown although they cannot be stored
    assert (
        "0 of 100 points\n" in shown.out
        and "error: /sys/points cannot be opened or written (" in shown.err
    )


def test_the_table_and_junit_stand_odd_text():
    rows = [
        {
            "id": "a",
            "points": 3.5,
            "max_points": 10,
            "bonus": False,
            "status": "failed",
            "message": "<&> 数 \x00",
        },
        {
            "id": "long_name",
            "points": 5,
            "max_points": 5,
            "bonus": True,
            "status": "passed",
            "message": "",
        },
        {
            "id": "c",
            "points": 0,
            "max_points": 10,
            "bonus": False,
            "status": "timeout",
            "message": "ran long",
        },
    ]
    result = {
        "lab": "lab9_toy",
        "points": 8.5,
        "max_points": 20,
        "exercises": rows,
        "notes": ["see \x1b this"],
    }
    assert report.table(result).splitlines() == [
        "lab9_toy",
        "  a             3.5 of 10   failed",
        "      <&> 数 \x00",
        "  long_name  5 of 5 bonus   passed",
        "  c               0 of 10   timeout",
        "      ran long",
        "  note: see \x1b this",
        "8.5 of 20 points",
    ]
    suite = ElementTree.fromstring(report.junit(result).encode())
    assert (suite.get("failures"), suite.get("errors")) == ("1", "1")
    assert suite.find("testcase/failure").get("message") == "<&> 数 ?"


def test_the_course_tools_import_no_torch():
    modules = (
        "build, execute, grade, supervisor, lint, merge, nbval_run, notebook, output_cap, report, "
        "tamper"
    )
    modules += ", validate, classroom, feedback, sandbox, __main__"
    look = f"import sys; from lib.course import {modules}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == "False\n"


def test_a_message_says_nothing_that_another_run_would_say_otherwise():
    said = (
        "no room in /scratch/ada/lab-run-x_1y/work, '/tmp/lab-grade-0/a', <f at 0x7f00aa>, "
        "ipykernel_12/345.py"
    )
    assert grade.plain(said) == "no room in .../work, '.../a', <f at ...>, ipykernel_....py"


@pytest.mark.slow
def test_an_answer_that_does_not_wait_for_its_messages_is_told_so_in_the_table_and_in_the_feedback(
    tmp_path,
):
    root, folder, out = tmp_path / "course", tmp_path / "class", tmp_path / "out"
    folder.mkdir()
    nb = class_of_sixty.course(root)
    by_id(nb, "send-recv-answer").source = (
        "def send_recv(tensor, to, frm, group=None, out=None):\n"
        "    if to == dist.get_rank():\n"
        "        return tensor.clone()\n"
        "    out = torch.empty_like(tensor)\n"
        "    dist.isend(tensor, to)\n"
        "    dist.irecv(out, frm)\n"
        "    return out"
    )
    notebook.write(nb, folder / "forgets.ipynb")
    lab = ["--root", str(root), "grade", "--lab", class_of_sixty.LAB]
    assert main([*lab, str(folder), "--out", str(out)]) == 0
    (graded,) = json.loads((out / "points.json").read_text())["students"]
    row = next(row for row in graded["result"]["exercises"] if row["max_points"] == 16)
    assert (row["points"], row["status"]) == (0, "failed")
    assert row["message"].endswith("all 2 ranks raised NotWaitedFor: send, line 5 of send_recv")
    wait = "call .wait() on it before you return"
    assert wait in row["hint"] and wait in (out / "feedback" / "forgets.html").read_text()
