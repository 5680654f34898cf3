"""A class is graded once, in the same bytes, resumed where it stopped, and told to
everybody in their format."""

import copy
import csv
import html
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from datetime import UTC, datetime
from xml.etree import ElementTree

import nbformat
import pytest
from class_tools import LIMITS, RIGHT, contents, hand_in, solved, terms

from lib.course import (
    answers,
    classroom,
    feedback,
    grade,
    notebook,
    people,
    submissions,
    summary,
    tables,
)
from lib.course.__main__ import main
from lib.course.notebook import CourseError

WRONG = "def double(x):\n    raise ValueError(f'<b>no</b> {object()}')"


@pytest.fixture
def class_(tmp_path, unsolved):
    """A class of four: right, wrong, no JSON, and a folder with nothing to grade."""
    folder = tmp_path / "submissions"
    hand_in(folder, alice=solved(unsolved), eve=b"{", **{"=bob": solved(unsolved, double=WRONG)})
    (folder / "dan").mkdir()
    return folder


def points_of(path):
    """[[a row's cells], ...] of points.csv, as a spreadsheet reads it."""
    text = path.read_bytes().decode("utf-8-sig")
    return list(csv.reader(text.splitlines()))


def run(root, *arguments, **options):
    """The command line in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "lib.course",
        "--root",
        root,
        "grade",
        "--lab",
        "9",
        *arguments,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.slow
def test_a_class_twice_gives_the_same_bytes_and_the_second_time_nobody_is_graded(
    toy_root, class_, tmp_path, monkeypatch, capsys
):
    before = contents(class_)
    arguments = [
        "--root",
        str(toy_root),
        "grade",
        "--lab",
        "9",
        str(class_),
        "--jobs",
        "2",
        "--out",
    ]
    assert main([*arguments, str(tmp_path / "one")]) == 0
    said = capsys.readouterr()
    assert "4 of 4 graded" in said.out and "100%" in said.err and "4/4" in said.err
    assert main([*arguments, str(tmp_path / "two")]) == 0
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert {path: seen[0] for path, seen in one.items()} == {
        path: seen[0] for path, seen in two.items()
    }
    assert len(one) == 4 + 4 + 4 + 4 and contents(class_) == before

    monkeypatch.setattr(classroom, "_start", lambda *_: pytest.fail("graded again"))
    monkeypatch.setattr(classroom.grade, "nothing", lambda *_: pytest.fail("graded again"))
    assert main([*arguments, str(tmp_path / "two")]) == 0
    assert {path: seen[0] for path, seen in contents(tmp_path / "two").items()} == {
        p: s[0] for p, s in one.items()
    }

    rows = points_of(tmp_path / "one" / "points.csv")
    minutes = [row.pop(7) for row in rows]
    assert minutes[0] == "minutes" and minutes[3] == "0"  # dan: there was nothing to grade
    assert all(1 <= int(minutes[number]) < 30 for number in (1, 2, 4))
    assert rows == [
        ["id", "name", "points", "bonus", "max_points", "percent", "status",
         "check_double", "check_total", "check_largest", "notes"],
        ["'=bob", "", "60", "0", "100", "60.0", "graded", "0", "40", "20", ""],
        ["alice", "", "100", "0", "100", "100.0", "graded", "40", "40", "20", ""],
        ["dan", "", "0", "0", "100", "0.0", "unreadable", "", "", "",
         "unreadable: no notebook in the folder"],
        ["eve", "", "0", "0", "100", "0.0", "unreadable", "", "", "", rows[-1][-1]],
    ]  # fmt: skip
    assert rows[-1][-1].startswith("unreadable: eve.ipynb is not JSON (")
    page = (tmp_path / "one" / "feedback" / "=bob.html").read_text()
    assert "60 of 100 points" in page and ">Try: do it by hand.<" in page and "0 of 40" in page
    assert (
        "small: ValueError: &lt;b&gt;no&lt;/b&gt;" in page
        and "<b>" not in page
        and "object at ..." in page
    )
    assert "<pre>def double(x):\n" in page and page.count("<pre>") == 1
    class_page = (tmp_path / "one" / "summary.html").read_text()
    assert class_page.index("no notebook in the folder") < class_page.index("2 notebooks")
    assert "<td>1</td><td>check_double</td><td>Try: do it by hand.</td>" in class_page
    gradescope = json.loads((tmp_path / "one" / "gradescope" / "=bob.json").read_text())
    assert gradescope["score"] == 60
    assert [test["status"] for test in gradescope["tests"]] == ["failed", "passed", "passed"]
    suites = ElementTree.parse(tmp_path / "one" / "junit.xml").getroot()
    assert [(s.get("name"), s.get("failures"), s.get("errors")) for s in suites] == [
        ("=bob", "1", "0"), ("alice", "0", "0"), ("dan", "0", "3"), ("eve", "0", "3")
    ]  # fmt: skip
    told = json.loads((tmp_path / "one" / "points.json").read_text())
    assert [record["result"]["points"] for record in told["students"]] == [60, 100, 0, 0]
    assert told["isolation"].startswith(("shut in by bubblewrap", "sealed", "open"))
    assert (
        "name one" not in str(told) and "no notebook" in told["students"][2]["result"]["notes"][0]
    )


def renamed(nb):
    for number, cell in enumerate(nb.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
    return nb


def without(nb, *ids):
    nb = copy.deepcopy(nb)
    nb.cells = [cell for cell in nb.cells if cell.id not in ids]
    return nb


@pytest.mark.slow
def test_the_points_tell_what_cannot_be_read_from_what_is_not_solved(toy_root, tmp_path, unsolved):
    right = solved(unsolved)
    whole = notebook.to_bytes(right)
    other = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("def train(): ...", id="train")]
    )
    folder = hand_in(
        tmp_path / "in", unsolved=unsolved, renamed=renamed(solved(unsolved)),
        one_deleted=without(right, "double"),
        all_deleted=without(unsolved, *RIGHT), other_lab=other, truncated=whole[: len(whole) // 2],
        empty=b"",
        words=b"I could not open it", huge=whole + b" " * 25_000_000, numbers=b"[1, 2]",
        bytes=b"\xff\xfe{}",
    )  # fmt: skip
    (folder / os.fsdecode(b"j\xf6rg.ipynb")).write_bytes(b"")
    assert (
        main(
            [
                "--root",
                str(toy_root),
                "grade",
                "--lab",
                "9",
                str(folder),
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    rows = {row[0]: row[2:] for row in points_of(tmp_path / "out" / "points.csv")}
    without_minutes = lambda row: [*row[:5], *row[6:]]
    assert without_minutes(rows["unsolved"]) == [
        "0", "0", "100", "0.0", "graded", "0", "0", "0", ""
    ]  # fmt: skip
    assert without_minutes(rows["renamed"])[5:] == ["40", "40", "20", ""]
    assert without_minutes(rows["one_deleted"])[5:] == [
        "0", "40", "20", "not in the notebook: check_double"
    ]  # fmt: skip
    says = {
        "all_deleted": "none of this lab's answer cells was found",
        "other_lab": "notebook of another lab?",
        "truncated": "is not JSON", "empty": "is not JSON", "words": "is not JSON",
        "huge": "has 25 MB, more than 20",
        "numbers": "is not a notebook", "bytes": "is not JSON", "j\\udcf6rg": "is not JSON",
    }  # fmt: skip
    assert rows.keys() == {"id", "unsolved", "renamed", "one_deleted", *says}
    for student, why in says.items():
        assert rows[student][4] == "unreadable" and rows[student][6:9] == ["", "", ""]
        assert rows[student][9].startswith("unreadable: ")
        assert why in rows[student][9] and why in html.unescape(
            (tmp_path / "out/feedback" / f"{student}.html").read_text()
        )


@pytest.mark.slow
def test_an_interrupted_class_goes_on_where_it_stopped(toy_root, tmp_path, unsolved):
    hang = solved(unsolved, double="import time\ntime.sleep(600)\n" + RIGHT["double"])
    folder, out = hand_in(tmp_path / "in", a=solved(unsolved), b=hang), tmp_path / "out"
    process = run(toy_root, folder, "--out", out, "--cell-timeout", "300")
    finished = out / "students" / "a.json"
    while process.poll() is None and not finished.exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)
    assert (
        process.returncode == 130
        and "stopped: run the same command again" in said[1]
        and not (out / "students" / "b.json").exists()
    )
    first = finished.stat()
    hand_in(folder, b=solved(unsolved, total="total = 3"))  # handed in again, meanwhile
    again = run(toy_root, folder, "--out", out, "--cell-timeout", "300")
    assert "2 of 2 graded" in again.communicate(timeout=300)[0] and again.returncode == 0
    assert (finished.stat().st_mtime_ns, finished.stat().st_ino) == (
        first.st_mtime_ns,
        first.st_ino,
    )
    assert [row[2] for row in points_of(out / "points.csv")] == ["points", "100", "60"]


def test_a_grader_that_fails_leaves_that_student_out_names_them_and_tries_again(
    toy_root, class_, tmp_path, capsys
):
    spoilt = classroom._start
    real = [sys.executable, "-c", "import sys; sys.exit('a bug of ours')"]

    def start(one, answer, hidden, terms):
        job = spoilt(one, answer, hidden, terms) if one.student == "eve" else None
        if job:
            return job
        with answer.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(real, stderr=log)
        return classroom._Job(one, answer, process, time.monotonic() + 300)

    classroom._start = start
    try:
        command = [
            "--root",
            str(toy_root),
            "grade",
            "--lab",
            "9",
            str(class_),
            "--out",
            str(tmp_path / "out"),
        ]
        assert main(command) == 1
    finally:
        classroom._start = spoilt
    assert "not graded: alice: a bug of ours" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out" / "students").iterdir()) == [
        "dan.json",
        "eve.json",
    ]
    rows = {row[0]: row[1:] for row in points_of(tmp_path / "out" / "points.csv")}
    assert rows["alice"][:5] == [""] * 5 and rows["alice"][5] == "not graded"
    assert rows["alice"][-1] == "not graded: a bug of ours"
    suites = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert suites.find("testsuite[@name='alice']/testcase/error").get("message") == "a bug of ours"


def test_a_key_tells_apart_all_that_points_depend_on(toy_root, tmp_path, unsolved):
    folder = hand_in(tmp_path / "in", a=solved(unsolved), b=unsolved)
    a, b = submissions.find(folder, "lab9_toy")
    plain = submissions.version(terms(toy_root))
    assert plain == submissions.version(terms(toy_root)) and submissions.key(
        a, plain
    ) != submissions.key(b, plain)
    assert submissions.version(terms(toy_root, cell_timeout=5.0)) != plain
    other = tmp_path / "course"
    nb = notebook.read(notebook.solution_path(toy_root, "lab9_toy"))
    nb.cells[0].source = "# Another text"
    notebook.write(nb, notebook.solution_path(other, "lab9_toy"))
    assert submissions.version(terms(other)) != plain
    assert submissions.key(submissions.Submission("a", None, "x"), plain) != submissions.key(
        a, plain
    )


def test_students_are_found_by_file_and_by_folder_and_doubts_are_named(tmp_path, unsolved):
    hand_in(tmp_path, zoe=unsolved)
    for path in (
        "bob/lab9_toy/lab9_toy.ipynb",
        "bob/notes.ipynb",
        "cy/a.ipynb",
        "cy/.ipynb_checkpoints/a.ipynb",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("{}")
    for path in ("two/a.ipynb", "two/b.ipynb", ".hidden.ipynb", "readme.txt"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("{}")
    os.symlink("/etc/passwd", tmp_path / "link.ipynb")
    os.symlink("/etc", tmp_path / "etc")
    (tmp_path / "none").mkdir()
    found = {one.student: one for one in submissions.find(tmp_path, "lab9_toy")}
    assert list(found) == ["bob", "cy", "link", "none", "two", "zoe"]
    paths = {name: one.path and str(one.path.relative_to(tmp_path)) for name, one in found.items()}
    assert (
        paths["bob"] == "bob/lab9_toy/lab9_toy.ipynb"
        and paths["cy"] == "cy/a.ipynb"
        and paths["zoe"] == "zoe.ipynb"
    )
    assert paths["link"] is paths["none"] is paths["two"] is None
    assert (
        "is a link" in found["link"].trouble
        and "2 notebooks (a.ipynb, b.ipynb)" in found["two"].trouble
    )
    (tmp_path / "zoe").mkdir()
    with pytest.raises(CourseError, match="both a file and a folder for zoe"):
        submissions.find(tmp_path, "lab9_toy")
    (tmp_path / "new").mkdir()
    with pytest.raises(CourseError, match="no notebook in"):
        submissions.find(tmp_path / "new", "lab9_toy")


def test_results_may_not_lie_among_the_submissions_and_a_folder_needs_out(toy_root, class_, capsys):
    with pytest.raises(CourseError, match="lies inside the submissions"):
        classroom.grade_class(class_, class_ / "report", terms(toy_root, LIMITS), 1)
    assert main(["--root", str(toy_root), "grade", "--lab", "9", str(class_)]) == 1
    assert "say with --out" in capsys.readouterr().err and not (class_ / "report").exists()


def everyone(*records):
    return {record["student"]: people.person(record["student"]) for record in records}


def test_names_and_messages_of_any_kind_stay_text():
    row = {
        "id": "a",
        "points": 1,
        "max_points": 2,
        "bonus": False,
        "status": "failed",
        "message": "<script>&",
        "hint": "",
        "title": "<i>a</i>",
        "code": ["x = '<i>'"],
        "parts": [],
    }
    notes = ["look by hand: cell a: =HYPERLINK()", "the last one is graded <i>"]
    result = {"lab": "lab9_toy", "points": 1, "max_points": 2, "exercises": [row], "notes": notes}
    record = {"student": '"><script>', "key": "k", "result": result, "trouble": "", "minutes": 1}
    page = feedback.page(record["student"], result)
    assert (
        "<script>" not in page
        and "<i>" not in page
        and "HYPERLINK" not in page
        and "the last one" in page
    )
    assert (
        list(csv.reader(tables.points_csv([record], everyone(record)).splitlines()))[1][-1]
        == "cell a: =HYPERLINK()"
    )
    assert "<script>" not in summary.page([record], {record["student"]: "tampered with"})
    assert (
        ElementTree.fromstring(tables.junit([record])[39:]).find("testsuite").get("name")
        == '"><script>'
    )


def test_the_names_of_learning_platforms_are_read_and_late_notebooks_are_marked(tmp_path):
    due = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    path = tmp_path / "alice" / "lab9_toy" / "lab9_toy.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (due.timestamp() + 3 * 3600 + 600,) * 2)
    for student, id_, name, platform, late in (
        ("Lee Ann_1234_assignsubmission_file", "1234", "Lee Ann", "Moodle", "late by 3 h 10 min"),
        (
            "李 雷_77_assignsubmission_file_lab9.ipynb",
            "77",
            "李 雷",
            "Moodle",
            "late by 3 h 10 min",
        ),
        ("leeann_4711_90210_lab9_toy", "4711", "leeann", "Canvas", "late by 3 h 10 min"),
        ("alice", "alice", "", "", "late by 3 h 10 min"),
    ):
        assert people.person(student, path, due) == people.Person(id_, name, platform, late)
        assert people.person(student, path, None).late == ""
    assert people.person("leeann_LATE_4711_90210_lab9_toy", path, None).late == "late, says Canvas"
    # nbgrader says when, whatever the time of the file
    (path.parent / "timestamp.txt").write_text("2026-11-30 12:00:00.123456 UTC")
    assert people.person("alice", path, due).late == ""
    (path.parent / "timestamp.txt").write_text("2026-12-02 00:01:00 UTC")
    assert people.person("alice", path, due).late == "late by 1 d 2 min"


@pytest.mark.slow
def test_a_class_of_moodle_and_canvas_gets_files_that_these_import(toy_root, tmp_path, unsolved):
    moodle = tmp_path / "in" / "李 雷_77_assignsubmission_file"
    hand_in(moodle, lab9_toy=solved(unsolved))
    hand_in(tmp_path / "in", leeann_LATE_4711_90210_lab9_toy=solved(unsolved, total="total = 3"))
    out = tmp_path / "out"
    command = ["--root", str(toy_root), "grade", "--lab", "9", str(tmp_path / "in")]
    assert main([*command, "--out", str(out), "--due", "2000-01-01"]) == 0
    rows = {row[0]: row for row in points_of(out / "points.csv")}
    assert rows["77"][1] == "李 雷" and rows["77"][6].startswith("graded, late by ")
    assert rows["4711"][1:3] == ["leeann", "60"]
    assert (out / "points.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    canvas = list(csv.reader((out / "canvas.csv").read_text().splitlines()))
    assert canvas[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "lab9_toy"]
    assert canvas[1][0].strip() == "Points Possible" and canvas[1][-1] == "100"
    assert canvas[2:] == [["leeann", "4711", "", "", "", "60"]]
    moodle = list(csv.DictReader((out / "moodle.csv").read_text("utf-8-sig").splitlines()))
    assert [(row["Identifier"], row["Grade"]) for row in moodle] == [("Participant 77", "100")]
    assert "李 雷" in (out / "feedback" / "李 雷_77_assignsubmission_file.html").read_text()


def test_an_autograder_of_gradescope_grades_what_was_uploaded(toy_root, tmp_path, unsolved):
    upload = hand_in(tmp_path / "submission", anything=solved(unsolved, double=WRONG))
    results = tmp_path / "results" / "results.json"
    command = ["--root", str(toy_root), "grade", str(upload), "--lab", "9"]
    assert main([*command, "--gradescope", str(results)]) == 0
    told = json.loads(results.read_text())
    assert (told["score"], [test["max_score"] for test in told["tests"]]) == (60, [40, 40, 20])
    assert told["tests"][0]["output"].startswith("failed\nsmall: ValueError")
    hand_in(upload, second=unsolved)
    assert main([*command, "--gradescope", str(results)]) == 1
    zipped = tmp_path / "autograder.zip"
    assert main(["gradescope", str(zipped), "--lab", "0"]) == 0
    with zipfile.ZipFile(zipped) as archive:
        names = set(archive.namelist())
        script = archive.read("run_autograder").decode()
    assert {"setup.sh", "course/lib/__init__.py", "course/solutions/lab0_concepts.ipynb"} <= names
    assert not any("__pycache__" in name for name in names)
    assert "--lab lab0_concepts \\\n" in script and "/autograder/results/results.json" in script


def test_a_student_learns_which_own_cell_is_missing_and_which_lab_was_handed_in(
    toy_root, tmp_path, unsolved
):
    nb = solved(unsolved, double="def double(x):\n    return both(x, x)")
    own = nbformat.v4.new_code_cell("def both(a, b):\n    return a + b", id="own")
    nb.cells.insert(2, own)
    path = tmp_path / "ada.ipynb"
    notebook.write(nb, path)
    result = grade.grade_notebook("9", path, toy_root, 60.0, 300.0)
    assert result["points"] == 60
    assert any("both is defined in your cell 3 (`def both(a, b):`)" in n for n in result["notes"])

    other = notebook.read(notebook.solution_path(toy_root, "lab9_toy"))
    for cell in other.cells:
        if cell.metadata.get("nbgrader"):
            cell.metadata.nbgrader.grade_id += "_2"
        cell.id += "-two"
        cell.source = cell.source.replace("double", "twice").replace("total", "sum_of")
        cell.source = cell.source.replace("Largest", "Most").replace("largest", "most")
    root = tmp_path / "course"
    shutil.copytree(toy_root, root)
    notebook.write(other, notebook.solution_path(root, "lab8_other"))
    notebook.write(other, path)
    result = grade.grade_notebook("9", path, root, 60.0, 300.0)
    assert result["unreadable"].startswith("this is the notebook of lab8_other")


def test_a_notebook_of_format_3_is_converted(tmp_path, unsolved):
    old = nbformat.convert(solved(unsolved), 3)
    path = tmp_path / "old.ipynb"
    path.write_text(nbformat.v3.writes_json(old))
    assert json.loads(path.read_text())["nbformat"] == 3
    cells, trouble = answers.read_submission(path)
    assert not trouble and RIGHT["double"] in [cell.source for cell in cells]
