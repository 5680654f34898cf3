"""The student's notebook is the solution without solutions, and a notebook that would leak
one is not built."""

import pytest
from toy_lab import by_id, code, toy_notebook

from lib.course import build, notebook
from lib.course.notebook import CourseError


def test_a_solution_becomes_a_stub_under_its_docstring():
    lab = build.student_notebook(toy_notebook())
    assert (
        by_id(lab, "double").source
        == 'def double(x):\n    """Twice x."""\n    raise NotImplementedError'
    )


def test_each_solution_of_a_class_becomes_a_stub_at_its_own_indentation():
    source = by_id(build.student_notebook(toy_notebook()), "largest").source
    assert source.count("        raise NotImplementedError") == 2
    assert "self.value = value" in source and "max(" not in source


def test_hidden_tests_stay_at_home():
    assert by_id(build.student_notebook(toy_notebook()), "check-total").source == (
        'claims = [(20, "three", lambda: total([1, 2, 3]) == 6)]\ncheck("total", claims)'
    )


def test_nothing_of_a_solution_or_a_marker_is_left(solution):
    text = notebook.to_bytes(build.student_notebook(solution)).decode()
    for secret in ("SOLUTION", "HIDDEN", "2 * x", "result", '"none"'):
        assert secret not in text


def test_outputs_go_and_ids_stay(solution):
    assert any(cell.get("outputs") for cell in solution.cells)
    lab = build.student_notebook(solution)
    assert [cell.id for cell in lab.cells] == [cell.id for cell in solution.cells]
    assert all(
        cell.outputs == [] and cell.execution_count is None
        for cell in lab.cells
        if cell.cell_type == "code"
    )


def test_locked_cells_are_locked_and_answers_can_be_edited_but_not_deleted(unsolved):
    def flags(cell_id):
        metadata = by_id(unsolved, cell_id).metadata
        return metadata.get("editable"), metadata.get("deletable")

    assert flags("tools") == flags("check-double") == (False, False)
    assert flags("double") == (None, False)
    assert flags("example") == flags("title") == (None, None)


def test_run_all_goes_on_past_a_check_and_past_nothing_else(unsolved):
    goes_on = [
        cell for cell in unsolved.cells if "raises-exception" in cell.metadata.get("tags", [])
    ]
    assert goes_on == [exercise.check for exercise in notebook.exercises(unsolved)]


def test_the_same_input_gives_the_same_bytes_and_an_unchanged_file_is_not_written(tmp_path):
    notebook.write(toy_notebook(), notebook.solution_path(tmp_path, "lab9_toy"))
    assert build.build(tmp_path, "lab9_toy") == {"lab9_toy": True}
    path = notebook.lab_path(tmp_path, "lab9_toy")
    first, written = path.read_bytes(), path.stat().st_mtime_ns
    assert build.build(tmp_path, "lab9_toy") == {"lab9_toy": False}
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (first, written)
    path.unlink()
    build.build(tmp_path, "lab9_toy")
    assert path.read_bytes() == first


def test_metadata_that_nobody_chose_is_normalised():
    nb = toy_notebook()
    nb.metadata.update(widgets={"x": {}}, kernelspec={"name": "venv", "display_name": "mine"})
    by_id(nb, "double").metadata["execution"] = {"iopub.status.busy": "2024-01-01T00:00:00Z"}
    by_id(nb, "double").metadata["collapsed"] = True
    assert notebook.to_bytes(build.student_notebook(nb)) == notebook.to_bytes(
        build.student_notebook(toy_notebook())
    )


WRONG_SOURCES = [
    (
        "double",
        "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x",
        "line|BEGIN SOLUTION without its END",
    ),
    (
        "double",
        "def double(x):\n    return 2 * x\n    ### END SOLUTION",
        "line 3: END SOLUTION without its BEGIN",
    ),
    (
        "double",
        "def f():\n    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n    ### END SOLUTION",
        "line 3: BEGIN .* still open",
    ),
    ("double", "def double(x):\n    return 2 * x", "needs '### BEGIN SOLUTION'"),
    (
        "double",
        "def f():\n    # BEGIN SOLUTION\n    return 1\n    # END SOLUTION",
        "line 2: .* looks like a marker",
    ),
    (
        "double",
        "def f():\n    ### BEGIN SOLUTIONS\n    return 1\n    ### END SOLUTIONS",
        "line 2: .* looks like a marker",
    ),
    (
        "double",
        "def f():\n    ### begin solution\n    return 1\n    ### end solution",
        "line 2: .* looks like a marker",
    ),
    (
        "double",
        "def f():\n  x = 1\n    ### BEGIN SOLUTION\n  return 1\n    ### END SOLUTION",
        "stub is no valid Python",
    ),
    (
        "double",
        "### BEGIN HIDDEN TESTS\n1\n### END HIDDEN TESTS",
        "HIDDEN TESTS marker may stand in .* check only",
    ),
    (
        "check-total",
        "### BEGIN SOLUTION\n1\n### END SOLUTION",
        "SOLUTION marker may stand in .* answer only",
    ),
    ("check-total", "### BEGIN HIDDEN TESTS\nassert 1", "BEGIN HIDDEN TESTS without its END"),
    (
        "example",
        "### BEGIN SOLUTION\n1\n### END SOLUTION",
        "SOLUTION marker may stand in .* answer only",
    ),
    ("title", "### BEGIN SOLUTION", "SOLUTION marker may stand in .* answer only"),
]


@pytest.mark.parametrize(("cell_id", "source", "message"), WRONG_SOURCES)
def test_a_wrong_marker_stops_the_build_and_the_old_lab_stays(tmp_path, cell_id, source, message):
    nb = toy_notebook()
    by_id(nb, cell_id).source = source
    notebook.write(nb, notebook.solution_path(tmp_path, "lab9_toy"))
    old = notebook.lab_path(tmp_path, "lab9_toy")
    old.parent.mkdir()
    old.write_text("old")
    with pytest.raises(CourseError, match=message) as caught:
        build.build(tmp_path, "lab9_toy")
    assert f"cell {cell_id!r}" in str(caught.value) and "lab9_toy.ipynb" in str(caught.value)
    assert old.read_text() == "old"


def change(cell_id, **values):
    """A function that sets (or with None deletes) keys in the nbgrader metadata of a cell."""

    def apply(nb):
        data = by_id(nb, cell_id).metadata["nbgrader"]
        for key, value in values.items():
            if value is None:
                del data[key]
            else:
                data[key] = value

    return apply


def rename(cell_id, new):
    """A function that gives a cell another id."""
    return lambda nb: by_id(nb, cell_id).update(id=new)


WRONG_NOTEBOOKS = {
    "duplicate grade_id": (change("total", grade_id="double"), "grade_id 'double' is used 2 times"),
    "duplicate cell id": (rename("total", "double"), "cell id 'double' is used 2 times"),
    "random id": (rename("total", "3fa94b1c"), "invented by an editor"),
    "random id, a letter first": (rename("total", "fa94b1c3"), "invented by an editor"),
    "uuid": (rename("total", "ab12cd34-0000-4000-8000-0123456789ab"), "invented by an editor"),
    "capitals in id": (rename("total", "Total_sum"), "lowercase words with hyphens"),
    "key missing": (change("double", task=None), "neither an answer, a check nor a set-up cell"),
    "grade_id missing": (change("double", grade_id=None), "lacks 'grade_id'"),
    "key too many": (change("double", checksum="abc"), "has 'checksum'"),
    "points on an answer": (
        change("double", points=3),
        "has 'points', which has no place on answer cells",
    ),
    "check without points": (change("check-double", points=None), "lacks 'points'"),
    "points as text": (change("check-double", points="40"), "points is '40'"),
    "no points at all": (change("check-double", points=0), "points is 0"),
    "unlocked check": (change("check-double", locked=False), "neither an answer, a check nor"),
    "old schema": (change("double", schema_version=1), "schema_version is 1, must be 3"),
    "odd grade_id": (change("double", grade_id="a b"), "letters, digits"),
    "check without answer": (
        lambda nb: nb.cells.remove(by_id(nb, "total")),
        "no answer cell between",
    ),
    "text as an answer": (
        lambda nb: by_id(nb, "double").update(cell_type="markdown"),
        "only code cells",
    ),
}


@pytest.mark.parametrize("name", WRONG_NOTEBOOKS)
def test_a_notebook_with_wrong_metadata_is_not_built(name):
    spoil, message = WRONG_NOTEBOOKS[name]
    nb = toy_notebook()
    spoil(nb)
    with pytest.raises(CourseError, match=message):
        build.student_notebook(nb)


def test_every_problem_is_named_at_once():
    nb = toy_notebook()
    by_id(nb, "double").source = "def double(x): return 2 * x"
    by_id(nb, "total").metadata["nbgrader"]["checksum"] = "abc"
    with pytest.raises(CourseError) as caught:
        build.student_notebook(nb)
    assert "'double'" in str(caught.value) and "'total'" in str(caught.value)


def test_a_file_that_is_no_notebook_of_format_4_5_is_refused(tmp_path):
    for text, message in (
        ("not json", "is not a notebook"),
        ("[]", "is not a notebook"),
        (
            '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}',
            "format 4.4, must be 4.5",
        ),
        (
            '{"cells": [{"id": "a"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
            "is not a notebook|not a valid",
        ),
    ):
        (tmp_path / "x.ipynb").write_text(text)
        with pytest.raises(CourseError, match=message):
            notebook.read(tmp_path / "x.ipynb")
    with pytest.raises(CourseError, match="does not exist"):
        notebook.read(tmp_path / "y.ipynb")


def test_labs_are_named_by_number_or_name(tmp_path):
    with pytest.raises(CourseError, match="no notebook"):
        notebook.labs(tmp_path)
    for name in ("lab0_concepts", "lab1_data_parallel", "lab10_more"):
        notebook.write(toy_notebook(), notebook.solution_path(tmp_path, name))
    assert notebook.labs(tmp_path) == ["lab0_concepts", "lab10_more", "lab1_data_parallel"]
    assert notebook.labs(tmp_path, ["1", "lab0", "lab10_more"]) == [
        "lab1_data_parallel",
        "lab0_concepts",
        "lab10_more",
    ]
    with pytest.raises(CourseError, match=r"solutions/ has no lab '7': .*lab0_concepts"):
        notebook.labs(tmp_path, ["7"])


def test_bonus_points_are_marked_by_a_tag():
    nb = toy_notebook()
    by_id(nb, "check-total").metadata["tags"].append("bonus")
    assert [(e.id, e.points, e.bonus) for e in notebook.exercises(nb)] == [
        ("check_double", 40, False),
        ("check_total", 40, True),
        ("check_largest", 20, False),
    ]
    assert [[cell.id for cell in e.answers] for e in notebook.exercises(nb)] == [
        ["double"],
        ["total"],
        ["largest"],
    ]


def test_an_exercise_may_have_two_answers():
    nb = toy_notebook()
    extra = code(
        "forward", "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION", "answer"
    )
    nb.cells.insert(4, extra)
    assert [cell.id for cell in notebook.exercises(nb)[0].answers] == ["double", "forward"]
