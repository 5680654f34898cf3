"""The core path is what is not optional; its hours are computed, said in the lab, and it runs
alone."""

import json
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lib.course import build, core, execute, hours, notebook

ROOT = Path(__file__).parents[2]
LABS = notebook.labs(ROOT)
TEXT = """
# Lab
two words
## 1. Walls
### Exercise: a wall (20 minutes, about 5 lines)
```
## not a heading (optional)
```
### Deeper (bonus, 10 minutes)
#### Deeper still
### Back
## 9. Scaling (optional)
### Exercise: more (30 minutes)
## Summary
### Another (optional, 5 minutes) way of reading (this)
"""


def text(source, name="text"):
    return new_markdown_cell(source.strip("\n"), id=name)


def cores_of(nb):
    return [part.split("\n")[0] for _, part, is_core in core.parts(nb) if is_core]


def test_an_optional_heading_ends_at_the_next_of_its_level_or_above():
    want = ["# Lab", "## 1. Walls", "### Exercise: a wall (20 minutes, about 5 lines)", "### Back"]
    want += ["## Summary", "### Another (optional, 5 minutes) way of reading (this)"]
    assert cores_of(new_notebook(cells=[text(TEXT)])) == want


def test_code_belongs_to_the_heading_above_it():
    cells = [text("## A"), new_code_cell("1", id="a"), text("## B (optional)", "b")]
    cells += [new_code_cell("2", id="c"), text("## C", "d"), new_code_cell("3", id="e")]
    nb = new_notebook(cells=cells)
    assert [cell.source for cell in core.cells(nb)] == ["## A", "1", "## C", "3"]


def test_only_optional_headings_are_collapsed():
    nb = new_notebook(cells=[text("## A", "a"), text("## B (bonus, 5 minutes)\nwords", "b")])
    core.collapse(nb)
    assert [cell.metadata for cell in nb.cells] == [{}, {core.COLLAPSED: True}]


ANSWER = """def double(x):
    \"\"\"Twice x.\"\"\"

    ### BEGIN SOLUTION
    y = x

    return y + x
    ### END SOLUTION"""


def small():
    answer = new_code_cell(ANSWER, id="double")
    answer.metadata.nbgrader = {
        **notebook.FLAGS["answer"], "grade_id": "double", "schema_version": 3
    }  # fmt: skip
    cells = [
        text("# Lab\n" + 127 * "word " + "| - |", "a"),
        text("### E (20 minutes)", "e"),
        answer,
    ]
    return new_notebook(cells=[*cells, text("## More (optional, 12 minutes)", "m")])


def test_the_hours_follow_the_formula():
    nb = small()
    nb.metadata["course"] = {"seconds": {"core": 60, "whole": 180}}
    # words: "Lab" and 127, "E (20 minutes)"; the stub has three lines; "raise" stands for two
    found = hours.of(nb, only_core=True)
    assert found == hours.Hours(words=131, lines=3, written=2, minutes=20, seconds=60)
    assert found.hours == pytest.approx((131 / 130 + 3 / 12 + 1.25 * 20 + 1) / 60)
    whole = hours.of(nb, only_core=False)
    assert (whole.words, whole.minutes, whole.seconds) == (135, 32, 180)
    assert hours.sentence(nb) == (
        "The core path takes about **0.5 hours**, and the whole lab about **0.5 hours**."
    )


def test_minutes_may_stand_below_the_heading_and_nowhere_else():
    below = (
        "### Exercise: a sharded optimizer\n\n*40 minutes, about 20 lines.*\n\nIn 10 minutes ..."
    )
    nb = new_notebook(
        cells=[text(below), text("It took 90 minutes.\n### E\nit took 5 minutes", "b")]
    )
    assert hours.of(nb, only_core=True).minutes == 40


@pytest.mark.parametrize(("again", "kept"), [(96, 100), (124, 100), (131, 130), (50, 50)])
def test_running_times_are_stored_rounded_and_change_only_with_the_lab(again, kept):
    nb = small()
    for took in (102, again):
        hours.store(nb, {"double": took})
    assert nb.metadata["course"] == {"seconds": {"core": kept, "whole": kept}}


def test_an_execution_stores_how_long_the_cells_ran(tmp_path):
    nb = new_notebook(cells=[new_code_cell("import time; time.sleep(0.3)", id="sleeps")])
    assert 0.3 <= execute.run(nb, tmp_path, 60)["sleeps"] < 60


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_says_its_hours(lab):
    solution = notebook.read(notebook.solution_path(ROOT, lab))
    assert hours.sentence(solution) in solution.cells[0].source


@pytest.mark.parametrize("lab", LABS)
def test_optional_sections_are_collapsed_in_the_students_notebook(lab):
    student = json.loads(notebook.lab_path(ROOT, lab).read_text(encoding="utf-8"))
    heads = {
        cell["id"]: "".join(cell["source"]).split("\n")[0]
        for cell in student["cells"]
        if cell["cell_type"] == "markdown"
    }
    collapsed = {c["id"] for c in student["cells"] if c["metadata"].get(core.COLLAPSED)}
    assert collapsed == {name for name, head in heads.items() if core.is_optional(head)}
    assert build.of_lab(ROOT, lab).metadata["course"].keys() == {"edition", "cells"}


@pytest.mark.parametrize("lab", LABS)
def test_an_optional_section_begins_a_cell(lab):
    """Else it could not be collapsed."""
    solution = notebook.read(notebook.solution_path(ROOT, lab))
    for cell, part, _ in core.parts(solution):
        head = part.split("\n")[0]
        assert not core.is_optional(head) or cell.source.startswith(head), (cell.id, head)


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS)
def test_the_core_path_runs_alone(lab):
    """Nothing on it reads what an optional cell makes."""
    solution = notebook.read(notebook.solution_path(ROOT, lab))
    solution.cells = core.cells(solution)
    execute.run(solution, ROOT / "solutions", cell_timeout=600, claims="once")
