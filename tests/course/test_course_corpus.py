"""A class of broken submissions, each with the points that it must get, graded side by side.

None affects another, none leaves anything running, none changes a file. Most are of the toy lab;
two classes, of which the larger, and the one of Lab 0, are slow.
"""

import copy
import json
import os
import socket
import tempfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import nbformat
import own_processes
import psutil
import pytest
from class_tools import RIGHT, contents, hand_in, solved, terms
from toy_lab import by_id, code

from lib.course import classroom, grade, notebook, sandbox, submissions
from lib.course.notebook import CourseError

MARK = own_processes.long_sleep()  # seconds that what is left behind sleeps: its name here
CROWD = """
import os, time
for _ in range(70):
    if os.fork() == 0: time.sleep(60)
def """
OUTSIDE = f"/tmp/lab-corpus-{own_processes.new_mark()}"
FULL, NOTHING, NO_DOUBLE = [40, 40, 20], [0, 0, 0], [0, 40, 20]

# submission: a function of the unsolved notebook; points: per exercise; says: in a message or note;
# slow: only test-all
Case = namedtuple("Case", "submission points says slow", defaults=["", True])


def double(*lines, before=""):
    """A solved lab whose `double` has this body, after this code."""
    source = f"{before}\ndef double(x):\n" + "\n".join(f"    {line}" for line in lines)
    return lambda nb: solved(nb, double=source)


def changed(change):
    """A solved lab, with `change` applied to it."""

    def apply(nb):
        nb = solved(nb)
        change(nb)
        return nb

    return apply


def wiped(nb):
    nb.metadata = nbformat.from_dict({})
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict({})


def format_4_4(nb):
    nb = json.loads(notebook.to_bytes(solved(nb)))
    for cell in nb["cells"]:
        del cell["id"]
    return json.dumps(nb | {"nbformat_minor": 4}).encode()


def format_3(nb):
    cells = [
        {"cell_type": "code", "language": "python", "input": source, "outputs": []}
        for source in RIGHT.values()
    ]
    return json.dumps(
        {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}
    ).encode()


def duplicated(nb):
    twin = copy.deepcopy(by_id(nb, "double"))
    twin.id = "twin"
    by_id(nb, "double").source = 'def double(x):\n    """Twice x."""\n    raise NotImplementedError'
    nb.cells.append(twin)


def moved(nb):
    cell = by_id(nb, "double")
    nb.cells.remove(cell)
    nb.cells.append(cell)


FORGE = (
    "import json, os\nline = json.dumps({'id': 'x', 'points': 40, 'max_points': 40, 'message': "
    "''})\n"
)
FORGE += "forge = lambda: open(os.environ['LAB_REPORT'], 'a').write(line + '\\n')"
HIDDEN = """
import pathlib
found = [*pathlib.Path().rglob("*.ipynb")]
try:
    found += pathlib.Path({!r}).glob("*.ipynb")
except PermissionError:
    pass
"""
CORPUS = {
    "correct": Case(solved, FULL, slow=False),
    "unsolved": Case(lambda nb: nb, NOTHING, "not written yet", False),
    "invalid_json": Case(lambda nb: b'{"cells": [', NOTHING, "is not JSON", False),
    "empty_file": Case(lambda nb: b"", NOTHING, "is not JSON", False),
    "not_a_notebook": Case(lambda nb: b"[1, 2]", NOTHING, "is not a notebook", False),
    "format_3": Case(format_3, FULL, "", False),
    "format_4_4_without_ids": Case(format_4_4, FULL, "", False),
    "metadata_wiped": Case(changed(wiped), FULL, "", False),
    "sys_exit": Case(double("import sys; sys.exit(0)"), NO_DOUBLE, "SystemExit: 0", False),
    "os_exit": Case(double("import os; os._exit(0)"), NO_DOUBLE, "the kernel died"),
    "reads_the_hidden_tests": Case(
        double("return 2 * x if found else 0", before=HIDDEN), NO_DOUBLE, "small", False
    ),
    "forges_a_report": Case(
        double("forge()", "return 0", before=FORGE), NO_DOUBLE, "something else than", False
    ),
    "forges_and_leaves": Case(
        double("forge()", "raise SystemExit", before=FORGE), NO_DOUBLE, "did not end well"
    ),
    "endless_loop": Case(double("while True: pass"), NO_DOUBLE, "ran longer than 6 s"),
    "kills_itself": Case(
        double("import os; os.kill(os.getpid(), 9)"), NO_DOUBLE, "the kernel died"
    ),
    "kills_all": Case(double("import os; os.kill(-1, 9)"), NO_DOUBLE, "was killed"),
    "check_deleted": Case(
        changed(lambda nb: nb.cells.remove(by_id(nb, "check-total"))), FULL, "course's own"
    ),
    "check_edited": Case(
        changed(lambda nb: by_id(nb, "check-total").update(source="1/0")), FULL, "was edited"
    ),
    "answer_duplicated": Case(changed(duplicated), FULL),
    "answer_deleted": Case(
        changed(lambda nb: nb.cells.remove(by_id(nb, "double"))), NO_DOUBLE, "not in your notebook"
    ),
    "answer_moved": Case(changed(moved), FULL),
    "answer_as_text": Case(
        changed(lambda nb: by_id(nb, "double").update(cell_type="markdown")), NO_DOUBLE, "missing"
    ),
    "extra_cells": Case(
        changed(lambda nb: nb.cells.insert(0, code("mine", "import os; os._exit(1)"))), FULL
    ),
    "other_kernel": Case(
        changed(lambda nb: nb.metadata.update(kernelspec={"name": "julia-1.9"})), FULL
    ),
    "prints_100_MB": Case(
        double("for _ in range(1000): print('x' * 100_000)", "return 2 * x"), NO_DOUBLE, "printed"
    ),
    "exit": Case(double("exit()"), NO_DOUBLE, "SystemExit"),
    "exit_in_its_cell": Case(double("return 2 * x", before="exit()"), NO_DOUBLE, "SystemExit"),
    "sleeps": Case(double("import time", "time.sleep(100_000)"), NO_DOUBLE, "ran longer than 6 s"),
    "fills_the_disk": Case(
        double("for n in range(100): open(f'big{n}', 'wb').write(b'x' * 10**7)", "return 2 * x"),
        NO_DOUBLE,
        "No space",
    ),
    "deletes_its_notebook": Case(
        double(
            "for path in pathlib.Path().rglob('*'): path.unlink() if path.is_file() else None",
            "return 2 * x",
            before="import pathlib",
        ),
        FULL,
    ),
    "writes_50_MB_to_its_streams": Case(
        double("import os", "for _ in range(100): os.write(1, b'x' * 500_000)", "return 2 * x"),
        FULL,
    ),
    "fork_bomb": Case(
        double(
            "import os, time",
            "for _ in range(200):",
            "    if os.fork() == 0: time.sleep(60)",
            "return 2 * x",
        ),
        NO_DOUBLE,
        "BlockingIOError",
    ),
    "crowds_the_next_exercise": Case(
        lambda nb: solved(
            nb,
            double=CROWD + "double(x): return 2 * x",
            total=CROWD + "total(values): return sum(values)",
        ),
        FULL,
    ),
    "writes_outside": Case(
        double(
            "try: open(path, 'w').write('x')",
            "except OSError: pass",
            "return 2 * x",
            before=f"path = {OUTSIDE!r}",
        ),
        FULL,
    ),
    "patches_builtins": Case(
        double(
            "return 2 * x",
            before="import builtins\nbuiltins.sum = lambda values: 6 if values else 0",
        ),
        FULL,
        "builtins.sum was replaced",
    ),
    "blanks_later_cells": Case(
        double(
            "return 2 * x", before="get_ipython().input_transformers_post.append(lambda lines: [])"
        ),
        NOTHING,
        "an input transformer",
    ),
    "takes_500_MB": Case(
        double("y = bytearray(500_000_000)", "return 2 * x"), NO_DOUBLE, "MemoryError"
    ),
    "leaves_processes": Case(
        double(
            *("subprocess.Popen(['sleep', mark], start_new_session=True, env={})", "return 2 * x"),
            before=f"import subprocess\nmark = {MARK!r}",
        ),
        FULL,
    ),
}
# Prevented there; on machines that are open, what is tried succeeds.
LINUX_SEALED = (
    "reads_the_hidden_tests",
    "kills_all",
    "writes_outside",
    "fills_the_disk",
)


@pytest.fixture(scope="module", autouse=True)
def temporary():
    """All graders work below this folder, whose path is therefore in the environment of
    what they start."""
    with tempfile.TemporaryDirectory(prefix="lab-") as at, pytest.MonkeyPatch.context() as patched:
        os.chmod(at, 0o755)  # a notebook runs as a user of its own
        patched.setenv("TMPDIR", at)
        yield at


@pytest.fixture(scope="module")
def graded(request, toy_root, tmp_path_factory):
    """A function that grades the quick or the slow class, once: {student: result}."""
    done = {}

    def grade_once(slow):
        if slow not in done:
            unsolved = notebook.read(notebook.lab_path(toy_root, "lab9_toy"))
            at = tmp_path_factory.mktemp("corpus")
            solutions = str(toy_root / "solutions")
            chosen = {
                name: case
                for name, case in CORPUS.items()
                if case.slow == slow or name == "correct"
            }
            chosen = {
                n: case
                for n, case in chosen.items()
                if sandbox.held().how != "open" or n not in LINUX_SEALED
            }
            made = {name: case.submission(unsolved) for name, case in chosen.items()}
            if "reads_the_hidden_tests" in made:
                cell = by_id(made["reads_the_hidden_tests"], "double")
                cell.source = cell.source.replace("{!r}", repr(solutions))
            before = (
                contents(hand_in(at / "in", **made)),
                contents(toy_root),
                contents(notebook.ROOT / "lib" / "course"),
            )
            records = classroom.grade_class(at / "in", at / "out", terms(toy_root), jobs=2)
            after = (
                contents(at / "in"),
                contents(toy_root),
                contents(notebook.ROOT / "lib" / "course"),
            )
            done[slow] = {record["student"]: record["result"] for record in records}
            assert before[:2] == after[:2] and set(before[2]) <= set(after[2])
        return done[slow]

    return grade_once


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if case.slow else [])
        for name, case in CORPUS.items()
    ],
)
def test_a_broken_submission_gets_its_points(graded, name):
    if name in LINUX_SEALED and sandbox.held().how == "open":
        pytest.skip(f"not prevented on this machine: {sandbox.held().says}")
    case = CORPUS[name]
    result = graded(case.slow)[name]
    assert [row["points"] for row in result["exercises"]] == case.points, result
    told = [row["message"] for row in result["exercises"]] + result["notes"]
    assert case.says in " ".join(told)
    looks = any(note.startswith(grade.LOOK) for note in result["notes"])
    assert looks == (name.startswith(("forges", "patches", "blanks")))


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_others_keep_all_their_points_and_nothing_is_left(graded, temporary, slow):
    assert graded(slow)["correct"]["points"] == 100
    assert own_processes.left(MARK) == [] == own_processes.left(temporary) and not os.path.exists(
        OUTSIDE
    )
    assert not [
        child
        for child in psutil.Process().children(recursive=True)
        if "pytest" in " ".join(child.cmdline())
    ]


SPY = """
import os, pathlib, socket

def tried(act):
    try:
        act()
        return True
    except OSError:
        return False

def may_write():
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders \
if (folder, name) not in {("/", "proc"), ("/", "sys")}]
        paths = [folder, *(f"{folder}/{name}" for name in names)]
        yield from (path for path in paths if os.access(path, os.W_OK) and not os.path.islink(path))

def double(x):
    own = os.getcwd(), os.environ["LAB_REPORT"], os.environ["LAB_CELLS"]
    found = [f"reads {path}" for path in READS \
if os.path.isfile(path) or os.path.isdir(path) and os.listdir(path)]
    free = (*own, "/dev/")
    found += [f"writes {path}" for path in may_write() if not path.startswith(free)]
    found += [f"connects to {place}" for place in PLACES \
if tried(lambda: socket.create_connection(place, timeout=5))]
    found += [f"kills {pid}" for pid in PIDS if tried(lambda: os.kill(pid, 0))]
    found += [] if len([name for name in os.listdir("/proc") if name.isdigit()]) < 9 \
else ["sees processes"]
    assert not found, found
    assert not [*pathlib.Path().rglob("*.ipynb")]  # no check is there to be read either
    return x + x
"""


@pytest.mark.parametrize("how", ["bubblewrap", pytest.param("sealed", marks=pytest.mark.slow)])
def test_what_a_submission_can_still_reach_is_its_folder_its_report_and_lib(
    toy_root, tmp_path, unsolved, how
):
    try:
        sandbox.held(how)
    except CourseError as error:
        pytest.skip(f"not run: {error}")
    folder, out, earlier = tmp_path / "in", tmp_path / "out", tmp_path / "last year" / "points.csv"
    hand_in(folder, another=b"{")
    (out / "students").mkdir(parents=True)
    for path in (out / "points.csv", out / "students" / "ada.json", earlier):
        path.parent.mkdir(exist_ok=True)
        path.write_text("70")
    beside = [
        root / name
        for root in (toy_root, notebook.ROOT)
        for name in ("solutions", "labs", "tests", ".git")
    ]
    reads = [
        folder / "another.ipynb",
        folder,
        out,
        out / "points.csv",
        earlier,
        *beside,
        Path.home() / ".ssh",
    ]
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = [server.getsockname(), ("192.0.2.1", 80)]
        known = (
            f"READS, PLACES = {[str(path) for path in reads]!r}, {places!r}\nPIDS = "
            f"{[os.getpid()]!r}\n"
        )
        hand_in(folder, spy=solved(unsolved, double=known + SPY))
        by = replace(terms(toy_root, cell_timeout=100.0), sandbox=how)
        records = classroom.grade_class(folder, out, by, jobs=2)
    assert [row["message"] for row in records[1]["result"]["exercises"]] == ["", "", ""]
    assert records[1]["result"]["points"] == 100


MEDDLE = """
import torch.distributed, lib.check.framework
torch.distributed.get_backend = lambda group=None: "mine"
lib.check.framework._score = lambda exercise, points: "100 of 100 points"
"""
EQUAL = """
class Equal:
    __eq__ = lambda self, other: True
    __hash__ = None
def model_state_bytes(parameters, precision):
    return Equal()
"""


@pytest.mark.slow
def test_lab_0_by_a_class(tmp_path, temporary):
    """The whole of it, none of it, and one who meddles: an answer equal to everything, patches, a
    rank left behind."""
    lab = "lab0_concepts"
    solution = notebook.read(notebook.solution_path(notebook.ROOT, lab))
    meddled = copy.deepcopy(solution)
    by_id(meddled, "model-state-bytes-answer").source = EQUAL
    by_id(meddled, "training-days-answer").source += MEDDLE
    cell = by_id(meddled, "send-recv-answer")
    daemon = (
        f"    __import__('subprocess').Popen(['sleep', {MARK!r}], start_new_session=True, "
        f"env={{}})\n"
    )
    cell.source = cell.source.replace("    ### BEGIN SOLUTION\n", daemon, 1)
    folder = hand_in(tmp_path / "in", all=solution, meddler=meddled)
    hand_in(folder, none=notebook.read(notebook.lab_path(notebook.ROOT, lab)))
    before = contents(folder)
    by = submissions.Terms(lab, notebook.ROOT, 180.0, 600.0)
    records = classroom.grade_class(folder, tmp_path / "out", by, jobs=2)
    every, meddler, none = (record["result"] for record in records)
    points = {row["id"]: row["points"] for row in every["exercises"]}
    assert (
        all(row["points"] == row["max_points"] for row in every["exercises"])
        and every["max_points"] == 100
    )
    assert none["points"] == 0 and {row["status"] for row in none["exercises"]} == {
        "not written yet"
    }
    assert {row["id"]: row["points"] for row in meddler["exercises"]} == points | {
        "check_model_state_bytes": 0
    }
    seen = " ".join(note for note in meddler["notes"] if note.startswith(grade.LOOK))
    assert (
        "torch.distributed.get_backend was replaced" in seen
        and "lib.check.framework._score was replaced" in seen
    )
    assert not any(note.startswith(grade.LOOK) for note in every["notes"] + none["notes"])
    assert contents(folder) == before and own_processes.left(MARK) == [] == own_processes.left(
        temporary
    )
