"""`make validate` passes a sound lab, and each of its checks is proved able to fail."""

import shutil

import pytest
from toy_lab import by_id, toy_notebook

from lib.course import notebook, validate
from lib.course.__main__ import main

LAB = "lab9_toy"


@pytest.fixture
def course(toy_root, tmp_path):
    """A copy of the toy course, yours to spoil."""
    return shutil.copytree(toy_root, tmp_path / "course")


def spoil(path, cell_id, change):
    """Apply `change` to one cell of the notebook at `path`."""
    nb = notebook.read(path)
    change(by_id(nb, cell_id))
    notebook.write(nb, path)


@pytest.mark.slow
def test_a_sound_lab_passes_all(toy_root, capsys):
    assert main(["--root", str(toy_root), "validate", "--whole"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines() if line.startswith("  ok")] == [
        ["ok", "lint"], ["ok", "generated"], ["ok", "solution"], ["ok", "planted"],
        ["ok", "unsolved"], ["ok", "graded"]
    ]  # fmt: skip
    assert "3 of 3 noticed; all points" in shown.out and "--" not in shown.out and shown.err == ""


def test_an_unexecuted_lab_fails_and_every_failure_is_listed(tmp_path, capsys):
    notebook.write(toy_notebook(), notebook.solution_path(tmp_path, LAB))
    notebook.write(toy_notebook(), notebook.lab_path(tmp_path, "lab7_gone"))
    assert main(["--root", str(tmp_path), "validate", "9"]) == 1
    shown = capsys.readouterr().out
    assert "not executed, so that nbval compares nothing" in shown
    assert shown.count("its stored output lacks the line") == 3
    assert (
        "labs/lab9_toy.ipynb is missing" in shown
        and "labs/lab7_gone.ipynb has no solution" in shown
    )
    assert "not run: solution, planted errors, unsolved" in shown


def test_a_notebook_of_the_student_that_no_solution_generates_fails_alone(tmp_path, monkeypatch):
    notebook.write(toy_notebook(), notebook.solution_path(tmp_path, LAB))
    monkeypatch.setattr(validate, "validate", lambda root, lab, **options: True)
    assert main(["--root", str(tmp_path), "validate"]) == 0
    notebook.write(toy_notebook(), notebook.lab_path(tmp_path, "lab7_gone"))
    assert main(["--root", str(tmp_path), "validate"]) == 1


def test_no_lab_and_a_notebook_that_cannot_be_read_are_failures(tmp_path, capsys):
    assert main(["--root", str(tmp_path), "validate"]) == 1
    assert "no notebook in" in capsys.readouterr().err
    path = notebook.solution_path(tmp_path, LAB)
    path.parent.mkdir()
    path.write_text("{")
    assert main(["--root", str(tmp_path), "validate"]) == 1
    assert "is not a notebook" in capsys.readouterr().out


def test_a_lab_that_was_edited_or_not_rebuilt_is_stale(course):
    assert validate.stale(course, LAB) == []
    spoil(notebook.lab_path(course, LAB), "title", lambda cell: cell.update(source="# Edited"))
    assert validate.stale(course, LAB) == [
        "labs/lab9_toy.ipynb is not what solutions/ generates: run `make notebooks`"
    ]


def test_a_solution_that_nbval_fails_is_named(course):
    path = notebook.solution_path(course, LAB)
    spoil(path, "check-total", lambda cell: cell.outputs[0].update(text="other text\n"))
    raises = "raise ValueError('odd')"
    spoil(path, "largest", lambda cell: cell.update(source=f"{cell.source}\n{raises}"))
    assert validate.solved(course, LAB, 60) == (
        ["cell 'check-total': Cell outputs differ",
         f"cell 'largest': ValueError: odd, line 18: {raises}"],
        [],
    )  # fmt: skip


def test_a_cell_that_hangs_is_named_even_if_it_swallows_the_interrupt(course):
    path = notebook.solution_path(course, LAB)
    hang = "try:\n    while True: pass\nexcept BaseException:\n    pass"
    spoil(path, "example", lambda cell: cell.update(source=hang))
    (failure,), _ = validate.solved(course, LAB, 2)
    assert failure.startswith("cell 'example': timeout") and "later cells did not run" in failure


def test_an_unsolved_lab_that_raises_elsewhere_or_scores_is_named(course):
    path = notebook.lab_path(course, LAB)
    spoil(path, "example", lambda cell: cell.update(source="double(2)"))
    spoil(path, "total", lambda cell: cell.update(source="def total(values):\n    return 6"))
    spoil(path, "largest", lambda cell: cell.update(source="class Largest:\n    pass"))
    wrong = validate.unsolved(course, LAB, 60)
    assert len(wrong) == 3
    assert wrong[0].startswith(
        "cell 'example' raises while the lab is unsolved (use(fn)?): NotImplementedError"
    )
    assert wrong[1].startswith("check 'check-total' passes on the stub")
    assert wrong[2].startswith(
        "check 'check-largest' must report 0 points, 'not written yet'; it says"
    )


def test_a_check_that_nbval_does_not_compare_and_one_that_reports_wrongly_are_named(course):
    path = notebook.solution_path(course, LAB)
    spoil(path, "check-double", lambda cell: cell.metadata.update(tags=[]))
    few = "check('total', [(10, 'none', lambda: total([]) == 0)])"
    spoil(
        path,
        "check-total",
        lambda cell: cell.update(source=few, metadata={**cell.metadata, "tags": []}),
    )
    wrong, dead = validate.solved(course, LAB, 60)
    assert wrong == []
    assert [text.split(", reports")[0] for text in dead] == [
        "check 'check-double': nbval does not notice a wrong output",
        "check 'check-total': nbval does not notice a wrong output",
        "check 'check-total' must report 40 of 40 points",
    ]


def test_what_only_grading_would_miss_is_named_before_and_when_graded(solution):
    by_id(solution, "example").source = "helper = 3"
    by_id(solution, "largest").source = "### BEGIN SOLUTION\nlargest_of = helper\n### END SOLUTION"
    assert validate.lost(solution) == [
        "cell 'largest' reads helper, which cell 'example' makes: grading runs set-up, answers and "
        "checks alone"
    ]
    assert [text.split(", reports")[0] for text in validate.graded(solution, 60)] == [
        "cell 'largest': NameError: name 'helper' is not defined, line 2: largest_of = helper",
        "cell 'check-largest': CheckFailed: falling: NameError: name 'Largest' is not defined",
    ]


@pytest.mark.slow
def test_several_labs_are_told_one_by_one_and_one_that_is_not_sound_fails_the_command(
    tmp_path, capsys
):
    """Each in a process of its own. Neither notebook is executed, so that this test runs none."""
    for lab in ("lab8_toy", "lab9_toy"):
        notebook.write(toy_notebook(), notebook.solution_path(tmp_path, lab))
    notebook.write(toy_notebook(), notebook.lab_path(tmp_path, "lab7_gone"))
    assert main(["--root", str(tmp_path), "validate"]) == 1
    lines = capsys.readouterr().out.splitlines()
    *first, gone, last = (i for i, line in enumerate(lines) if not line.startswith(" "))
    assert sorted(lines[i] for i in first) == ["lab8_toy", "lab9_toy"]  # whichever is done first
    assert lines[gone] == "labs/lab7_gone.ipynb has no solution: delete it"
    assert lines[last] == "not sound, see above: lab8_toy, lab9_toy"
    assert first[1] - first[0] == gone - first[1] > 1, "each lab's lines stand together"
    assert sum("not executed" in line for line in lines) >= 2
