"""A student's copy of a lab is never replaced, and its work comes along when the course
changes the lab."""

import copy
import errno
import os
import re
import subprocess

import nbformat
import pytest
from toy_lab import by_id, code, toy_notebook

from lib.course import answers, build, carry, edition, grade, merge, mine, notebook
from lib.course.__main__ import main
from lib.course.notebook import ROOT, CourseError

LAB = "lab9_toy"
DOUBLE = 'def double(x):\n    """Twice x."""\n    return x + x'
TOTAL = 'def total(values):\n    """The sum of a list of numbers."""\n    return sum(values)'


@pytest.fixture
def unsolved(course):
    """The toy lab as generated, yours to change."""
    return notebook.read(notebook.lab_path(course, LAB))


@pytest.fixture
def course(tmp_path):
    """A course with the toy lab: solutions/ and what is generated from it."""
    notebook.write(toy_notebook(), notebook.solution_path(tmp_path, LAB))
    build.build(tmp_path, LAB)
    return tmp_path


def change(path, **sources):
    """Give cells of a notebook file other sources; the names are cell ids, with _ for -."""
    nb = notebook.read(path)
    for name, source in sources.items():
        by_id(nb, name.replace("_", "-")).source = source
    notebook.write(nb, path)


def new_edition(root):
    """The course rewrites its title, its example and the exercise `double`, whose docstring is a
    different one now."""
    nb = toy_notebook()
    by_id(nb, "title").source = "# A toy lab, second edition"
    by_id(nb, "example").source = 'print("a better example")'
    by_id(nb, "double").source = by_id(nb, "double").source.replace(
        "Twice x.", "Two times x, a number."
    )
    nb.cells.insert(-2, code("note", "# new in this edition"))
    notebook.write(nb, notebook.solution_path(root, LAB))
    build.build(root, LAB)


# --- the edition


def test_the_edition_depends_on_ids_types_and_sources_and_on_nothing_else(unsolved):
    def changed(edit):
        nb = copy.deepcopy(unsolved)
        edit(nb)
        edition.stamp(nb)
        return edition.of(nb) != edition.of(unsolved)

    assert re.fullmatch("[0-9a-f]{12}", edition.of(unsolved))
    assert set(edition.cells(unsolved)) == {cell.id for cell in unsolved.cells}
    assert not changed(
        lambda nb: by_id(nb, "example").update(outputs=[nbformat.v4.new_output("stream", text="1")])
    )
    assert not changed(
        lambda nb: nb.metadata.update(kernelspec={"name": "mine", "display_name": "mine"})
    )
    assert changed(lambda nb: by_id(nb, "title").update(source="# Toys"))
    assert changed(lambda nb: by_id(nb, "title").update(id="head"))
    assert changed(lambda nb: by_id(nb, "title").update(cell_type="raw"))
    assert changed(lambda nb: nb.cells.reverse())


def test_every_lab_says_which_edition_it_is_and_that_no_answer_is_in_it():
    for lab in notebook.labs(ROOT):
        nb = notebook.read(notebook.lab_path(ROOT, lab))
        again = copy.deepcopy(nb)
        edition.stamp(again)
        assert edition.of(nb) == edition.of(again) != "" and edition.answered(nb) == []


@pytest.mark.parametrize(
    "odd", [None, 3, [], {"edition": 3, "cells": []}, {"cells": {"double": None}}]
)
def test_odd_metadata_of_a_student_is_no_edition(unsolved, odd):
    unsolved.metadata["course"] = nbformat.from_dict(odd)
    assert edition.of(unsolved) == "" and set(edition.answered(unsolved)) == {
        "double",
        "total",
        "largest",
    }


# --- the copy


def test_the_copy_is_made_once_and_never_replaced_neither_by_build_nor_by_a_second_call(course):
    (said,) = mine.copy(course, LAB)
    assert (
        said
        == "labs/mine/lab9_toy.ipynb is your own copy of this lab, and no update will overwrite it."
    )
    path = notebook.own_path(course, LAB)
    given = notebook.lab_path(course, LAB).read_bytes()
    assert path.read_bytes() == mine.for_this_python(given)
    assert notebook.read(path).cells == nbformat.v4.reads(given.decode()).cells
    change(path, double=DOUBLE)
    written = path.read_bytes()
    assert mine.copy(course, LAB) == []
    new_edition(course)
    (said,) = mine.copy(course, LAB)
    assert (
        "a different edition of this lab from your copy: `make merge LAB=9` puts your answers into "
        "it" in said
    )
    assert path.read_bytes() == written and [*path.parent.iterdir()] == [path]


def test_answers_that_were_written_into_labs_come_along(course):
    change(notebook.lab_path(course, LAB), double=DOUBLE)
    (said,) = mine.copy(course, LAB)
    assert said.endswith("with your answers from labs/lab9_toy.ipynb (double).")
    assert by_id(notebook.read(notebook.own_path(course, LAB)), "double").source == DOUBLE
    change(notebook.lab_path(course, LAB), double=DOUBLE, total=TOTAL)
    (course / ".git").mkdir()
    (said,) = mine.copy(course, LAB)
    assert (
        "has answers that are missing from your copy (total): `make merge LAB=9` adds them" in said
    )
    said = mine.merge_edition(course, LAB)
    assert said[1] == "These answers from labs/lab9_toy.ipynb are now in your copy: total."
    merged = notebook.read(notebook.own_path(course, LAB))
    assert by_id(merged, "total").source == TOTAL and by_id(merged, "double").source == DOUBLE
    notebook.own_path(course, LAB).unlink()
    assert (
        "; `git checkout labs/lab9_toy.ipynb` restores the course's own file."
        in mine.copy(course, LAB)[0]
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_one_sentence_says_what_to_do_and_no_part_is_left(
    course, monkeypatch, number
):
    def refuses(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuses)
    with pytest.raises(
        CourseError,
        match=rf"cannot be opened or written \({os.strerror(number)}\): make room on the disk, or",
    ):
        mine.copy(course, LAB)
    assert [*notebook.own_path(course, LAB).parent.iterdir()] == []


def test_a_lab_that_is_not_there_and_a_folder_that_is_a_file(course, capsys):
    assert mine.main(["open", "7"], course) == 1
    assert capsys.readouterr().err == "error: labs/ has no lab '7': choose one of lab9_toy\n"
    assert mine.main(["merge", "9"], course) == 1
    assert (
        "there is no labs/mine/lab9_toy.ipynb to merge: `make lab LAB=9` creates it"
        in capsys.readouterr().err
    )
    (course / "labs" / "mine").write_text("")
    assert mine.main(["copy"], course) == 1
    assert "cannot be opened or written (" in capsys.readouterr().err


def test_a_file_that_is_no_notebook_is_named_with_the_next_move(course):
    mine.copy(course, LAB)
    path = notebook.lab_path(course, LAB)
    path.write_text(path.read_text().replace('"cells"', "\n<<<<<<< HEAD\n"))
    (said,) = mine.copy(course, LAB)
    assert (
        "labs/lab9_toy.ipynb contains a merge conflict: restore your file with `git merge --abort`"
        in said
    )
    path.unlink()
    build.build(course, LAB)
    notebook.own_path(course, LAB).write_text("{")
    (said,) = mine.copy(course, LAB)
    assert "is not JSON" in said and said.endswith("rename it, and `make lab` makes a new copy")


def test_jupyterlab_opens_the_copy_and_its_kernels_use_the_lib_next_to_it(course, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    begun = []
    monkeypatch.setattr(os, "execve", lambda *given: begun.append(given))
    monkeypatch.setattr(os, "chdir", begun.append)
    mine.main(["open", "9", "--no-browser"], course)
    mine.main(["open"], course)
    (_, one, environment), (_, every, _) = begun[1], begun[3]
    assert one[1:3] == ["-m", "jupyterlab"] and one[-1] == "--no-browser" and begun[0] == course
    assert (
        f"--ServerApp.root_dir={course}" in one
        and "--LabApp.default_url=/lab/tree/labs/mine/lab9_toy.ipynb" in one
    )
    assert "--LabApp.default_url=/lab/tree/labs/mine" in every
    assert environment["PYTHONPATH"] == f"{course}{os.pathsep}/elsewhere"


def test_git_ignores_the_copies():
    done = subprocess.run(
        ["git", "check-ignore", "labs/mine/lab0_concepts.ipynb"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0 or not (ROOT / ".git").exists()


# --- the merge


@pytest.fixture
def worked(course):
    """A student's copy with two answers, a note, a changed example, outputs and a
    docstring; then a new edition."""
    mine.copy(course, LAB)
    path = notebook.own_path(course, LAB)
    nb = notebook.read(path)
    by_id(nb, "double").source, by_id(nb, "total").source = DOUBLE, TOTAL
    by_id(nb, "check-total").outputs = [nbformat.v4.new_output("stream", text="40 of 40 points\n")]
    nb.cells.insert(4, nbformat.v4.new_markdown_cell("my note on double", id="3fa94b1c"))
    nb.cells.append(code("ab12cd34-0000-4000-8000-0123456789ab", "helper = 1"))
    notebook.write(nb, path)
    return course


def graded(root, path):
    """The answers in `path` that are graded, as of the solution that there is now."""
    solution = notebook.read(notebook.solution_path(root, LAB))
    merged = merge.merge(solution, answers.read_submission(path)[0])
    return {
        cell.id: cell.source for cell in merged.notebook.cells if notebook.role(cell) == "answer"
    }


def test_answers_and_own_cells_are_in_the_new_edition_and_the_same_is_graded(worked):
    path = notebook.own_path(worked, LAB)
    before, answers = path.read_bytes(), graded(worked, path)
    new_edition(worked)
    first, changed, kept = mine.merge_edition(worked, LAB)
    assert "with 2 answers, 2 cells of your own;" in first
    assert changed.endswith(
        "compare your answers with their new text in labs/lab9_toy.ipynb: double."
    )
    assert kept == "Your copy from before the merge is labs/mine/lab9_toy_before_merge.ipynb."
    assert (path.parent / "lab9_toy_before_merge.ipynb").read_bytes() == before
    nb, ours = notebook.read(path), notebook.read(notebook.lab_path(worked, LAB))
    assert edition.of(nb) == edition.of(ours) and edition.answered(nb) == ["double", "total"]
    assert [cell.id for cell in nb.cells if cell.id in edition.cells(ours)] == [
        cell.id for cell in ours.cells
    ]
    ids = [cell.id for cell in nb.cells]
    assert ids[4] == "3fa94b1c" and ids[3] == "double" and ids[-1].startswith("ab12cd34")
    assert by_id(nb, "title").source == "# A toy lab, second edition" and by_id(nb, "note").source
    assert by_id(nb, "check-total").outputs and by_id(nb, "largest") == by_id(ours, "largest")
    assert graded(worked, path) == answers and answers["double"] == DOUBLE
    (again,) = mine.merge_edition(worked, LAB)
    assert again.endswith("already has the edition of labs/, so there is nothing to merge.")


def rename_an_exercise(root, monkeypatch):
    """In the next edition the exercise `double` is called `twice`, and its argument is `value`."""
    nb = toy_notebook()
    for cell in nb.cells:
        cell.source = cell.source.replace("double", "twice").replace("(x)", "(value)")
        cell.source = cell.source.replace("2 * x", "2 * value")
        cell.id = cell.id.replace("double", "twice")
        if given := cell.metadata.get("nbgrader"):
            given["grade_id"] = given["grade_id"].replace("double", "twice")
    notebook.write(nb, notebook.solution_path(root, LAB))
    build.build(root, LAB)
    monkeypatch.setitem(answers.RENAMED, "twice", {"double": "twice", "x": "value"})


@pytest.mark.parametrize("with_ids", [True, False])
def test_an_answer_to_an_exercise_that_was_renamed_is_carried_over_and_graded(
    worked, monkeypatch, with_ids
):
    path = notebook.own_path(worked, LAB)
    if not with_ids:
        nb = notebook.read(path)
        for number, cell in enumerate(nb.cells):
            cell.id, cell.metadata = f"other-{number}", nbformat.from_dict({})
        notebook.write(nb, path)
    rename_an_exercise(worked, monkeypatch)
    renamed = 'def twice(value):\n    """Twice x."""\n    return value + value'
    assert graded(worked, path)["twice"] == renamed
    mine.merge_edition(worked, LAB)
    nb = notebook.read(path)
    assert by_id(nb, "twice").source == renamed and edition.answered(nb) == ["twice", "total"]
    assert sum("def double" in cell.source for cell in nb.cells) == 0


def test_a_stub_of_an_exercise_that_was_renamed_is_no_answer(worked, monkeypatch):
    stub = by_id(build.student_notebook(toy_notebook()), "double").source
    change(notebook.own_path(worked, LAB), double=stub)
    rename_an_exercise(worked, monkeypatch)
    mine.merge_edition(worked, LAB)
    assert edition.answered(notebook.read(notebook.own_path(worked, LAB))) == ["total"]


@pytest.mark.slow
def test_the_points_are_the_same_before_and_after_a_merge(worked):
    path = notebook.own_path(worked, LAB)
    before = grade.grade_notebook("9", path, worked)
    new_edition(worked)
    mine.merge_edition(worked, LAB)
    assert grade.grade_notebook("9", path, worked) == before and before["points"] == 80


def test_no_earlier_backup_is_replaced(worked):
    path = notebook.own_path(worked, LAB)
    (path.parent / "lab9_toy_before_merge.ipynb").write_text("the first")
    new_edition(worked)
    assert mine.merge_edition(worked, LAB)[-1].endswith(
        " is labs/mine/lab9_toy_before_merge_2.ipynb."
    )
    assert (path.parent / "lab9_toy_before_merge.ipynb").read_text() == "the first"


def test_an_old_stub_does_not_replace_the_new_one_nor_a_new_example_be_taken_for_an_answer(worked):
    change(
        notebook.own_path(worked, LAB),
        double=by_id(build.student_notebook(toy_notebook()), "double").source,
    )
    new_edition(worked)
    mine.merge_edition(worked, LAB)
    assert (
        '"""Two times x, a number."""'
        in by_id(notebook.read(notebook.own_path(worked, LAB)), "double").source
    )


def test_another_cell_that_the_student_changed_stays_changed_unless_the_course_changed_it_too(
    worked,
):
    change(
        notebook.own_path(worked, LAB),
        example="print('mine')",
        title="# My toys",
        tools="import os",
    )
    nb = toy_notebook()
    by_id(nb, "title").source = "# Toys"
    notebook.write(nb, notebook.solution_path(worked, LAB))
    build.build(worked, LAB)
    said = mine.merge_edition(worked, LAB)
    assert "1 other cell that you changed," in said[0]
    assert said[1] == "Some cells that you had changed now have the course's text: title, tools."
    merged = notebook.read(notebook.own_path(worked, LAB))
    assert (
        by_id(merged, "example").source == "print('mine')"
        and by_id(merged, "title").source == "# Toys"
    )
    assert by_id(merged, "tools") == by_id(nb, "tools") | {
        "metadata": by_id(merged, "tools").metadata
    }


def carried(unsolved, student):
    new = copy.deepcopy(unsolved)
    by_id(new, "title").source = "# Second edition"
    edition.stamp(new)
    return carry.carry_over(new, student)


def test_a_draft_and_a_changed_cell_that_the_course_dropped_stay_as_cells_of_the_students_own(
    unsolved,
):
    student = copy.deepcopy(unsolved)
    by_id(student, "double").source = "def double(x):\n    return 3 * x"
    student.cells.insert(4, copy.deepcopy(by_id(student, "double")))
    student.cells[4].update(id="copy-of-it", source=DOUBLE)
    by_id(student, "example").source = "changed"
    new = copy.deepcopy(unsolved)
    new.cells.remove(by_id(new, "example"))
    result = carry.carry_over(new, student)
    sources = [cell.source for cell in result.notebook.cells]
    assert (
        sources[3:5] == ["def double(x):\n    return 3 * x", DOUBLE] and sources.count(DOUBLE) == 1
    )
    assert result.notebook.cells[3].metadata == {} and result.notes == [
        "double: 2 answer cells; the last one is graded"
    ]
    assert sources[6] == "changed" and result.own == 2
    assert list(nbformat.validator.iter_validate(result.notebook)) == []


@pytest.mark.parametrize("lost", ["metadata", "ids", "both"])
def test_without_an_edition_or_ids_answers_and_own_cells_are_found_and_nothing_comes_twice(
    unsolved, lost
):
    student = copy.deepcopy(unsolved)
    by_id(student, "double").source = DOUBLE
    student.cells.append(code("3fa94b1c", "helper = 1"))
    if lost != "ids":
        del student.metadata["course"]
    if lost != "metadata":
        for cell in student.cells:
            del cell["id"]
    result = carried(unsolved, student)
    assert result.answers == ["double"]
    # of an edition that is unknown: the old title may be the student's
    titles = 1 + (lost == "both")
    assert [cell.source for cell in result.notebook.cells].count(
        "helper = 1"
    ) == 1 and result.own == titles
    assert list(nbformat.validator.iter_validate(result.notebook)) == []


def test_another_labs_notebook_is_refused_and_nothing_is_changed(worked):
    path = notebook.own_path(worked, LAB)
    notebook.write(nbformat.v4.new_notebook(cells=[code("hello", "print(1)")]), path)
    with pytest.raises(
        CourseError, match="none of this lab's answer cells: is it the notebook of another lab"
    ):
        mine.merge_edition(worked, LAB)
    assert [*path.parent.iterdir()] == [path]


# --- build and grade


def test_build_does_not_replace_a_notebook_with_answers_and_writes_no_other_one_either(
    course, capsys
):
    notebook.write(toy_notebook(), notebook.solution_path(course, "lab8_other"))
    path = notebook.lab_path(course, LAB)
    change(path, double=DOUBLE)
    written = path.read_bytes()
    new = toy_notebook()
    by_id(new, "title").source = "# New"
    notebook.write(new, notebook.solution_path(course, LAB))
    assert main(["--root", str(course), "build"]) == 1
    told = capsys.readouterr().err
    assert told == (
        "error: labs/lab9_toy.ipynb has answers in it, which this would overwrite (double): run "
        "`make lab LAB=9`, which copies them into labs/mine, delete labs/lab9_toy.ipynb, and build "
        "again\n"
    )
    assert path.read_bytes() == written and not notebook.lab_path(course, "lab8_other").exists()
    mine.copy(course, LAB)
    assert main(["--root", str(course), "build"]) == 1
    assert "run `make merge LAB=9`" in capsys.readouterr().err
    path.unlink()
    assert main(["--root", str(course), "build"]) == 0
    assert by_id(notebook.read(notebook.own_path(course, LAB)), "double").source == DOUBLE


def test_build_replaces_a_lab_of_an_earlier_edition_whatever_else_was_changed_in_it(course):
    path = notebook.lab_path(course, LAB)
    change(path, example="print(1)")
    new_edition(course)
    assert "second edition" in path.read_text()


def test_of_a_lab_from_before_editions_what_differs_from_todays_stub_is_an_answer(course):
    path = notebook.lab_path(course, LAB)
    nb = notebook.read(path)
    del nb.metadata["course"]
    notebook.write(nb, path)
    assert build.build(course, LAB) == {LAB: True}
    by_id(nb, "total").source = TOTAL
    notebook.write(nb, path)
    with pytest.raises(CourseError, match=r"has answers in it, .* \(total\)"):
        build.build(course, LAB)


def test_build_does_not_replace_what_it_cannot_read(course):
    path = notebook.lab_path(course, LAB)
    path.write_text("<<<<<<< mine")
    with pytest.raises(
        CourseError,
        match=r"is not a notebook.*it may hold answers, so move it away if you need them",
    ):
        build.build(course, LAB)
    assert path.read_text() == "<<<<<<< mine"


def test_grade_takes_the_copy_where_there_is_one(course, capsys, monkeypatch):
    paths = []
    monkeypatch.setattr(
        grade,
        "grade_notebook",
        lambda lab, path, root, *_: paths.append(path) or grade.nothing(lab, root, ""),
    )
    main(["--root", str(course), "grade", "--lab", "9"])
    mine.copy(course, LAB)
    main(["--root", str(course), "grade", "--lab", "9"])
    assert paths == [notebook.lab_path(course, LAB), notebook.own_path(course, LAB)]
    assert "grading labs/mine/lab9_toy.ipynb" in capsys.readouterr().out


def test_a_submission_is_read_with_its_metadata(course):
    nb, trouble = answers.read_notebook(notebook.lab_path(course, LAB))
    assert trouble == "" and edition.of(nb) == edition.of(
        notebook.read(notebook.lab_path(course, LAB))
    )
