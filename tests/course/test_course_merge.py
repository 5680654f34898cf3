"""Which of a student's cells is graded as which answer, and what the student is told about it."""

import copy

import nbformat
import pytest
from toy_lab import by_id, code

from lib.course import answers, merge, notebook

MINE = 'def double(x):\n    """Twice x."""\n    return x + x'


def merged(solution, student):
    return merge.merge(solution, copy.deepcopy(student.cells))


def answer(result, cell_id="double"):
    return by_id(result.notebook, cell_id).source


def copied(cell, source):
    """What JupyterLab's copy and paste makes of a cell: the same metadata, another id."""
    twin = copy.deepcopy(cell)
    twin.update(id=f"{cell.id}-copy", source=source)
    return twin


def forget_metadata(nb):
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict({})


def test_only_answers_come_from_the_student(solution, unsolved):
    by_id(unsolved, "double").source = MINE
    by_id(unsolved, "check-double").source = 'print("40 of 40 points")'
    by_id(unsolved, "check-total").metadata.nbgrader.points = 4000
    by_id(unsolved, "check-largest").outputs = by_id(solution, "check-double").outputs
    by_id(unsolved, "tools").source = "check = print"
    result = merged(solution, unsolved)
    assert [cell.id for cell in result.notebook.cells] == [
        "grading-prelude", "tools", "my-helpers", "double", "check-double", "total",
            "check-total", "largest",
        "check-largest",
    ]  # fmt: skip
    for cell_id in ("tools", "check-double", "check-total", "check-largest"):
        assert by_id(result.notebook, cell_id) == by_id(solution, cell_id)
    assert answer(result) == MINE
    assert '"none"' in by_id(result.notebook, "check-total").source  # the hidden test is back
    assert result.notes == [
        "tools: locked cell was edited; the course's own is used",
        "check_double: locked cell was edited; the course's own is used",
    ]


def test_neither_notebook_is_changed(solution, unsolved):
    before = copy.deepcopy((solution, unsolved))
    merged(solution, unsolved)
    assert (solution, unsolved) == before


def test_an_untouched_lab_is_all_stubs(solution, unsolved):
    by_id(unsolved, "double").source += "  # I shall do this tomorrow\n"
    result = merged(solution, unsolved)
    assert (
        result.stubbed == {"double", "total", "largest"}
        and result.missing == set()
        and result.notes == []
    )


def test_the_solution_itself_is_taken_without_a_note(solution):
    result = merged(solution, solution)
    assert result.stubbed == result.missing == set() and result.notes == []
    assert answer(result) == by_id(solution, "double").source


def test_of_two_copies_the_one_that_is_not_the_stub_is_graded(solution, unsolved):
    stub = by_id(unsolved, "double")
    for copies in ([MINE, stub.source], [stub.source, MINE]):
        nb = copy.deepcopy(unsolved)
        by_id(nb, "double").source = copies[0]
        nb.cells.append(copied(stub, copies[1]))
        result = merged(solution, nb)
        assert answer(result) == MINE and result.notes == []


def test_of_two_edited_copies_the_last_is_graded_and_that_is_said(solution, unsolved):
    by_id(unsolved, "double").source = "def double(x):\n    return 3 * x"
    unsolved.cells.append(copied(by_id(unsolved, "double"), MINE))
    result = merged(solution, unsolved)
    assert answer(result) == MINE
    assert result.notes == ["double: 2 answer cells; the last one is graded"]


def test_without_metadata_an_answer_is_found_by_its_cell_id(solution, unsolved):
    by_id(unsolved, "double").source = "double = lambda x: x + x"  # defines no function by def
    forget_metadata(unsolved)
    result = merged(solution, unsolved)
    assert answer(result) == "double = lambda x: x + x" and result.missing == set()
    assert result.notes == ["double: the answer was found in a cell without its grade_id"]


def test_without_metadata_and_ids_an_answer_is_found_by_what_it_defines(solution, unsolved):
    by_id(unsolved, "double").source = MINE
    by_id(unsolved, "largest").source = "import math\n\nclass Largest:\n    pass"
    forget_metadata(unsolved)
    for number, cell in enumerate(unsolved.cells):
        cell.id = f"other-{number}"
    unsolved.cells.reverse()
    result = merged(solution, unsolved)
    assert answer(result) == MINE and answer(result, "largest").startswith("import math")
    assert result.stubbed == {"total"} and result.missing == set()


def test_an_answer_written_in_a_new_cell_beside_the_stub_is_found(solution, unsolved):
    unsolved.cells.append(code("mine", MINE))
    result = merged(solution, unsolved)
    assert answer(result) == MINE
    assert result.notes == ["double: the answer was found in a cell without its grade_id"]


def test_a_draft_in_another_cell_does_not_replace_the_answer(solution, unsolved):
    by_id(unsolved, "double").source = MINE
    unsolved.cells.append(code("draft", "def double(x):\n    return 5"))
    assert answer(merged(solution, unsolved)) == MINE


def test_our_own_example_of_the_same_name_is_not_taken_for_an_answer(solution, unsolved):
    for nb in (solution, unsolved):
        by_id(nb, "example").source = "def double(x):\n    return 'an example'"
    result = merged(solution, unsolved)
    assert result.stubbed == {"double", "total", "largest"}


def test_one_exercises_cell_is_not_taken_for_anothers_answer(solution, unsolved):
    by_id(unsolved, "total").source = f"{MINE}\n\ndef total(values):\n    return sum(values)"
    unsolved.cells.remove(by_id(unsolved, "double"))
    result = merged(solution, unsolved)
    assert result.missing == {"double"} and "raise NotImplementedError" in answer(result)
    assert result.notes == [
        "double: answer cell missing (looked for its grade_id, its cell id and what it defines)"
    ]


def test_an_answer_turned_into_text_or_emptied_is_missing(solution, unsolved):
    by_id(unsolved, "double").cell_type = "markdown"
    by_id(unsolved, "total").source = "  \n"
    assert merged(solution, unsolved).missing == {"double", "total"}


def test_a_deleted_check_is_noted_once_and_put_back(solution, unsolved):
    unsolved.cells.remove(by_id(unsolved, "check-total"))
    result = merged(solution, unsolved)
    assert result.notes == [
        "check_total: locked cell not found in your notebook; the course's own is used"
    ]
    assert by_id(result.notebook, "check-total") == by_id(solution, "check-total")


def test_a_notebook_of_another_lab_is_recognised(solution):
    assert merge.merge(solution, [code("hello", "print(1)")]).missing == {
        "double",
        "total",
        "largest",
    }


def test_an_answer_that_does_not_parse_is_graded_as_it_is(solution, unsolved):
    by_id(unsolved, "double").source = "def double(x)\n    return"
    assert answer(merged(solution, unsolved)) == "def double(x)\n    return"


def test_text_that_cannot_be_encoded_is_no_obstacle(solution, unsolved, tmp_path):
    by_id(unsolved, "double").source = "double = '\ud800'"
    assert notebook.write(merged(solution, unsolved).notebook, tmp_path / "x.ipynb")


def test_dropping_an_exercise_puts_its_stub_back_and_leaves_the_others(solution):
    result = merged(solution, solution)
    result.drop(notebook.exercises(result.notebook)[1])
    assert answer(result, "total").endswith("    raise NotImplementedError")
    assert answer(result) == by_id(solution, "double").source


UNREADABLE = {
    "empty": (b"", "not JSON"),
    "half a file": (b'{"cells": [', "not JSON"),
    "bytes": (b"\xff\xfe\x00", "not JSON"),
    "deep": (b"[" * 100_000, "not JSON"),
    "a list": (b"[1, 2]", "not a notebook"),
    "a number": (b"3", "not a notebook"),
    "no cells": (b'{"metadata": {}}', "not a notebook"),
    "cells of the wrong type": (b'{"cells": 3, "metadata": {}}', "not a notebook"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name):
    content, message = UNREADABLE[name]
    path = tmp_path / "mine.ipynb"
    path.write_bytes(content)
    cells, trouble = answers.read_submission(path)
    assert cells == [] and message in trouble and "mine.ipynb" in trouble


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "mine.ipynb"
    with path.open("wb") as file:
        file.truncate(answers.MAX_BYTES + 1)
    assert "clear its outputs" in answers.read_submission(path)[1]


def test_odd_metadata_and_odd_cells_do_not_stop_a_merge(solution, tmp_path):
    path = tmp_path / "mine.ipynb"
    odd = (
        '{"metadata": {}, "nbformat": 4, "nbformat_minor": 5, "cells": [{"cell_type": "code", '
        '"metadata": {"nbgrader": [1]}, "source": ["x = 1"]},{"cell_type": "code", "metadata": '
        '{"nbgrader": {"grade_id": ["double"]}}, "source": "y = 1"},{"cell_type": "code", '
        '"metadata": {"nbgrader": {"grade_id": "double"}}, "source": 3},{"metadata": {}, "source": '
        '""},{"cell_type": "code", "metadata": {}, "source": "def total(v):\\n    return sum(v)"}]}'
    )
    path.write_text(odd)
    cells, trouble = answers.read_submission(path)
    assert trouble == "" and len(cells) == 4
    assert answer(merge.merge(solution, cells), "total") == "def total(v):\n    return sum(v)"


def test_where_an_answer_did_not_end_is_told_by_its_outermost_loop():
    source = "def f(x):\n    while x:\n        for y in x:\n            y += 1\n    return g(x)\n"
    for number, text in ((2, "while x:"), (3, "for y in x:"), (4, "y += 1")):
        assert (
            merge.loop_at(source, number, f"line {number} of f: {text}") == "line 2 of f: while x:"
        )
    assert merge.loop_at(source, 5, "line 5 of f: return g(x)") == "line 5 of f: return g(x)"
    assert merge.loop_at(source, 3, "line 3 of h: return 1") == ""  # of another cell
    assert (
        merge.loop_at("no Python", 1, "line 1 of f: no Python")
        == ""
        == merge.loop_at(source, 9, "line 9 of f: x")
    )
