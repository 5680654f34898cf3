"""A class is graded once, in the same bytes, resumed where it stopped, and told to
everybody in their format."""

import copy
import csv
import html
import json
import os
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import nbformat
import pytest
from class_tools import LIMITS, RIGHT, contents, hand_in, solved, terms

from lib.course import classroom, feedback, notebook, submissions
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
    assert len(one) == 4 + 4 + 3 and contents(class_) == before

    monkeypatch.setattr(classroom, "_start", lambda *_: pytest.fail("graded again"))
    monkeypatch.setattr(classroom.grade, "nothing", lambda *_: pytest.fail("graded again"))
    assert main([*arguments, str(tmp_path / "two")]) == 0
    assert {path: seen[0] for path, seen in contents(tmp_path / "two").items()} == {
        p: s[0] for p, s in one.items()
    }

    rows = list(csv.reader((tmp_path / "one" / "points.csv").open()))
    assert rows == [
        ["student", "points", "max_points", "check_double", "check_total", "check_largest", "look"],
        ["'=bob", "60", "100", "0", "40", "20", ""],
        ["alice", "100", "100", "40", "40", "20", ""],
        ["dan", "0", "100", "", "", "", "unreadable: no notebook in the folder"],
        ["eve", "0", "100", "", "", "", rows[-1][-1]],
    ]
    assert rows[-1][-1].startswith("unreadable: eve.ipynb is not JSON (")
    page = (tmp_path / "one" / "feedback" / "=bob.html").read_text()
    assert (
        "60 of 100 points" in page and "Usual cause: Try it by hand." in page and "0 of 40" in page
    )
    assert (
        "small: ValueError: &lt;b&gt;no&lt;/b&gt;" in page
        and "<b>" not in page
        and "object at ..." in page
    )
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
    rows = {row[0]: row[1:] for row in csv.reader((tmp_path / "out" / "points.csv").open())}
    assert rows["unsolved"] == ["0", "100", "0", "0", "0", ""]
    assert rows["renamed"] == ["100", "100", "40", "40", "20", ""]
    assert rows["one_deleted"] == [
        "60",
        "100",
        "0",
        "40",
        "20",
        "not in the notebook: check_double",
    ]
    says = {
        "all_deleted": "none of this lab's answer cells was found",
        "other_lab": "notebook of another lab?",
        "truncated": "is not JSON", "empty": "is not JSON", "words": "is not JSON",
        "huge": "has 25 MB, more than 20",
        "numbers": "is not a notebook", "bytes": "is not JSON", "j\\udcf6rg": "is not JSON",
    }  # fmt: skip
    assert rows.keys() == {"student", "unsolved", "renamed", "one_deleted", *says}
    for student, why in says.items():
        assert rows[student][:5] == ["0", "100", "", "", ""] and rows[student][5].startswith(
            "unreadable: "
        )
        assert why in rows[student][5] and why in html.unescape(
            (tmp_path / "out/feedback" / f"{student}.html").read_text()
        )


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
        and "stopped" in said[1]
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
    assert [row[1] for row in csv.reader((out / "points.csv").open())] == ["points", "100", "60"]


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
    rows = {row[0]: row[1:] for row in csv.reader((tmp_path / "out" / "points.csv").open())}
    assert rows["alice"][:2] == ["", ""] and rows["alice"][-1] == "not graded: a bug of ours"
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


def test_names_and_messages_of_any_kind_stay_text():
    row = {
        "id": "a",
        "points": 1,
        "max_points": 2,
        "bonus": False,
        "status": "failed",
        "message": "<script>&",
        "hint": "",
    }
    notes = ["look by hand: cell a: =HYPERLINK()", "the last one is graded <i>"]
    result = {"lab": "lab9_toy", "points": 1, "max_points": 2, "exercises": [row], "notes": notes}
    record = {"student": '"><script>', "key": "k", "result": result, "trouble": ""}
    page = feedback.page(record["student"], result)
    assert (
        "<script>" not in page
        and "<i>" not in page
        and "HYPERLINK" not in page
        and "the last one" in page
    )
    assert (
        list(csv.reader(feedback.points_csv([record]).splitlines()))[1][-1]
        == "cell a: =HYPERLINK()"
    )
    assert (
        ElementTree.fromstring(feedback.junit([record])[39:]).find("testsuite").get("name")
        == '"><script>'
    )
