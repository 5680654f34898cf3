"""The toy lab of toy_lab.py, executed and built once."""

import copy

import pytest
import sweeps
from toy_lab import toy_notebook

from lib.course import build, execute, notebook
from lib.course.__main__ import main
from lib.course.book import explorers


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory):
    """A course with one lab, lab9_toy, executed and built once for all tests; do not write into it."""
    root = tmp_path_factory.mktemp("toy-course")
    notebook.write(toy_notebook(), notebook.solution_path(root, "lab9_toy"))
    execute.execute(root, "lab9_toy", cell_timeout=300)
    build.build(root, "lab9_toy")
    return root


@pytest.fixture(scope="session")
def book_folder(tmp_path_factory):
    """The book, built once for all tests of a process; each slider has two stops: where it begins, and one end.

    With WHOLE_SWEEPS, as in `make test-all`, the book that `make book` makes.
    """
    at, write = tmp_path_factory.mktemp("book"), explorers.write
    with pytest.MonkeyPatch.context() as patched:
        if not sweeps.WHOLE:
            patched.setattr(explorers, "GRID", {name: few_stops(name) for name in explorers.GRID})
            patched.setattr(explorers, "write", lambda folder, names, _: write(folder, names, at / "kept"))
        assert main(["book", str(at / "book")]) == 0
    return at / "book"


def few_stops(name):
    """What GRID has of an explorer, of each control two stops."""
    starts = {one["name"]: [*one["stops"].values()][one["start"]] for one in explorers.controls(name)}
    return {
        control: [stop for stop in stops if stop in (starts[control], stops[-1 if stops[0] == starts[control] else 0])]
        for control, stops in explorers.GRID[name].items()
    }


@pytest.fixture
def solution(toy_root):
    """The executed solution, yours to change."""
    return copy.deepcopy(notebook.read(notebook.solution_path(toy_root, "lab9_toy")))


@pytest.fixture
def unsolved(toy_root):
    """The student's notebook as generated, yours to change."""
    return copy.deepcopy(notebook.read(notebook.lab_path(toy_root, "lab9_toy")))
