"""Executing a solution stores what the same sources give again, and nothing that an
execution adds by chance."""

import os
import sys

import nbformat
import pytest
from toy_lab import by_id, code

from lib.course import execute, notebook
from lib.course.notebook import CourseError

WHERE_AM_I = "import os, pathlib\nprint(os.environ['LAB_STATIC'], pathlib.Path.cwd().name)"
TWO_STREAMS = (
    "import sys\nfor i in range(3):\n    print(i)\n    print('e', i, file=sys.stderr)\n    "
    "sys.stdout.flush()"
)
WIDGET = "import ipywidgets\nipywidgets.IntSlider()"
INTERPRETER = "import sys\nprint(sys.executable)"


def store(root, *cells):
    """Write a notebook of these cells as solution "lab8" and return its path."""
    path = notebook.solution_path(root, "lab8")
    notebook.write(nbformat.v4.new_notebook(cells=list(cells)), path)
    return path


def test_executing_again_gives_the_same_bytes(toy_root):
    path = notebook.solution_path(toy_root, "lab9_toy")
    before = path.read_bytes()
    assert execute.execute(toy_root, "lab9_toy", cell_timeout=300) is False
    assert path.read_bytes() == before


def test_what_is_stored_after_an_execution(tmp_path):
    cells = [
        code("where", WHERE_AM_I),
        code("streams", TWO_STREAMS),
        code("slider", WIDGET),
        code("python", INTERPRETER),
    ]
    cells[2].execution_count = 7
    cells[2].metadata["execution"] = {"iopub.status.busy": "2024-01-01T00:00:00Z"}
    path = store(tmp_path, *cells)
    assert execute.execute(tmp_path, "lab8", cell_timeout=300) is True
    nb = notebook.read(path)
    assert by_id(nb, "where").outputs[0].text == "1 solutions\n"
    assert {o.name: o.text for o in by_id(nb, "streams").outputs} == {
        "stdout": "0\n1\n2\n",
        "stderr": "e 0\ne 1\ne 2\n",
    }
    assert by_id(nb, "python").outputs[0].text.strip() == sys.executable
    assert [cell.execution_count for cell in nb.cells] == [1, 2, 3, 4]
    assert by_id(nb, "slider").outputs[0].execution_count == 3
    assert "widgets" not in nb.metadata and nb.metadata.language_info == notebook.LANGUAGE_INFO
    assert all(set(cell.metadata) == set() for cell in nb.cells)


def test_a_cell_that_raises_is_named_with_its_traceback_and_the_file_stays(tmp_path):
    path = store(
        tmp_path,
        code("fine", "print(1)"),
        code("half", "def half(x):\n    return x / 0\nhalf(3)"),
        code("late", "2"),
    )
    before = path.read_bytes()
    with pytest.raises(CourseError, match=r"lab8.ipynb, cell 'half'") as caught:
        execute.execute(tmp_path, "lab8", cell_timeout=300)
    assert "ZeroDivisionError" in str(caught.value) and "half(3)" in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["lab8.ipynb"]


def test_a_notebook_is_written_in_one_step_or_not_at_all(tmp_path, monkeypatch):
    path = store(tmp_path, code("old", "1"))
    before = path.read_bytes()
    # the machine stops before the last step
    monkeypatch.setattr(os, "replace", lambda part, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store(tmp_path, code("new", "2"))
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == [
        "lab8.ipynb"
    ]


def test_a_cell_that_hangs_or_kills_the_kernel_is_named(tmp_path):
    store(tmp_path, code("endless", "while True: pass"))
    with pytest.raises(CourseError, match=r"cell 'endless'.*timed out"):
        execute.execute(tmp_path, "lab8", cell_timeout=1)
    store(tmp_path, code("fatal", "import os\nos._exit(1)"))
    with pytest.raises(CourseError, match="cell 'fatal': the kernel died"):
        execute.execute(tmp_path, "lab8", cell_timeout=300)
