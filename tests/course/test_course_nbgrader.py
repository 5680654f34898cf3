"""nbgrader takes our notebooks as they are: generate_assignment, autograde, validate; and it gives
the points we give.

One difference is meant: nbgrader gives a graded cell that raises no points at all, `python -m
lib.course grade` gives those of the claims that hold. Every lab and a toy one, in `make test-all`.
"""

import copy
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from lib.course import build, grade, merge, notebook
from lib.course.notebook import ROOT

if find_spec("nbgrader") is None:  # its import takes a second, in every worker
    pytest.skip(
        "not run: nbgrader is not installed (pip install -e '.[nbgrader]')", allow_module_level=True
    )

pytestmark = pytest.mark.slow
TOY = "lab9_toy"
# of these a wrong exercise has functions that are right
IN_PARTS = ("lab0_concepts", "lab3_tensor_parallel")
CONFIG = """
c = get_config()
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}
c.ExecutePreprocessor.timeout = 600  # seconds a cell; its own 30 are too few \
where tests run beside each other
c.ExecutePreprocessor.iopub_timeout = 300
"""


def nbgrader(folder, *arguments, timeout=900):
    """Run `nbgrader ...` in the course's folder, with CONFIG; returns what it says. It starts
    alembic by name."""
    (folder / "nbgrader_config.py").write_text(CONFIG)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {
        "LAB_STATIC": "1",
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "PYTHONPATH": str(ROOT),
    }
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env["PATH"]])
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def submission(root, lab):
    """A student's notebook: the first exercise not written, one function of a later one
    wrong, all others right."""
    solution = notebook.read(notebook.solution_path(root, lab))
    student = notebook.read(notebook.lab_path(root, lab))
    right = {cell.id: cell.source for cell in solution.cells}
    first, *later = notebook.exercises(solution)
    unwritten = {cell.id for cell in first.answers}
    wrong = next((e for e in later if len(e.answers) > 1), later[0]).answers[-1].id
    for cell in student.cells:
        if notebook.role(cell) == "answer" and cell.id == wrong:
            cell.source = cell.source.replace("raise NotImplementedError", "return None")
        elif notebook.role(cell) == "answer" and cell.id not in unwritten:
            cell.source = right[cell.id]
    return student


def scores(folder, lab):
    """{check's grade_id: (points, of)} that nbgrader gave student ada."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        graded = book.find_submission_notebook(lab, lab, "ada")
        return {grade.cell.name: (grade.auto_score, grade.max_score) for grade in graded.grades}


def plain(nb):
    """A notebook without what nbgrader adds to each of its cells, and without our tag with which
    Run All goes on."""
    for cell in nb.cells:
        if notebook.role(cell) == "check":
            cell.metadata.tags = [tag for tag in cell.metadata.tags if tag != notebook.GO_ON_TAG]
        for key in ("checksum", "cell_type"):
            cell.metadata.get("nbgrader", {}).pop(key, None)
    return nb


@pytest.fixture(scope="class")
def course(request, toy_root, tmp_path_factory):
    """(root, folder, lab): an nbgrader course of one assignment, generated, with one
    submission, autograded."""
    lab, folder = request.cls.lab, tmp_path_factory.mktemp("nbgrader")
    root = toy_root if lab == TOY else ROOT
    notebook.write(
        notebook.read(notebook.solution_path(root, lab)), folder / "source" / lab / f"{lab}.ipynb"
    )
    nbgrader(folder, "generate_assignment", lab, "--create")
    notebook.write(submission(root, lab), folder / "submitted" / "ada" / lab / f"{lab}.ipynb")
    nbgrader(folder, "autograde", lab, "--create")
    return root, folder, lab


class Course:
    """What holds of each lab. A class for each lab, so that several of them can be
    tested at a time."""

    def test_generate_assignment_gives_what_make_notebooks_gives(self, course):
        root, folder, lab = course
        theirs, ours = (folder / "release" / lab / f"{lab}.ipynb", notebook.lab_path(root, lab))
        theirs, ours = plain(notebook.read(theirs)), plain(notebook.read(ours))
        assert ours.metadata.pop("course")["edition"]  # ours alone say which edition they are
        assert theirs == ours

    def test_autograde_gives_the_points_that_grade_gives(self, course, tmp_path):
        root, folder, lab = course
        path = tmp_path / f"{lab}.ipynb"
        notebook.write(submission(root, lab), path)
        ours = grade.grade_notebook(lab, path, root)
        rows = ours["exercises"]
        told = json.dumps(ours, indent=1)  # whole, and not as short as pytest makes a dict
        assert (
            rows[0]["status"] == "not written yet"
            and len([r for r in rows if r["status"] != "passed"]) == 2
        ), told
        if lab in IN_PARTS:  # ours has points for what is right
            assert any(0 < row["points"] < row["max_points"] for row in rows), told
        want = {
            r["id"]: (r["points"] if r["status"] == "passed" else 0, r["max_points"]) for r in rows
        }
        assert scores(folder, lab) == want

    def test_validate_passes_the_solved_cells_and_names_the_check_of_an_unsolved_one(
        self, course, tmp_path
    ):
        """Of the whole notebook what is graded, as `grade` runs it; autograde has run the rest. See
        the next test."""
        root, _, lab = course
        solution = notebook.read(notebook.solution_path(root, lab))
        graded = merge.merge(solution, [copy.deepcopy(cell) for cell in solution.cells]).notebook
        graded.cells = graded.cells[1:]  # the prelude of our own grader
        notebook.write(graded, tmp_path / "solved.ipynb")
        assert "Success! Your notebook passes all the tests." in nbgrader(
            tmp_path, "validate", "solved.ipynb"
        )
        first = notebook.exercises(graded)[0]
        for cell in first.answers:
            cell.source = build.student_source(cell)
        graded.cells = graded.cells[: graded.cells.index(first.check) + 1]
        notebook.write(graded, tmp_path / "unsolved.ipynb")
        told = nbgrader(tmp_path, "validate", "unsolved.ipynb")
        assert "VALIDATION FAILED ON 1 CELL(S)" in told and re.search(
            r"CheckFailed: not written yet", told
        )


for lab in (TOY, *notebook.labs(ROOT)):
    globals()[f"Test_{lab}"] = type(f"Test_{lab}", (Course,), {"lab": lab})


@pytest.mark.parametrize("lab", notebook.labs(ROOT))
def test_validate_passes_the_whole_solution(lab, tmp_path):
    notebook.write(notebook.read(notebook.solution_path(ROOT, lab)), tmp_path / f"{lab}.ipynb")
    assert "Success! Your notebook passes all the tests." in nbgrader(
        tmp_path, "validate", f"{lab}.ipynb"
    )
