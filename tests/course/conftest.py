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
    """A course with one lab, lab9_toy, executed and built once for all tests; do
    not write into it."""
    root = tmp_path_factory.mktemp("toy-course")
    notebook.write(toy_notebook(), notebook.solution_path(root, "lab9_toy"))
    execute.execute(root, "lab9_toy", cell_timeout=300)
    build.build(root, "lab9_toy")
    return root


@pytest.fixture(scope="session")
def book_folder(tmp_path_factory):
    """The book, built once for all tests of a process; in each figure one slider and one menu have
    a second stop.

    With WHOLE_SWEEPS, as in `make test-all`, the book that `make book` makes.
    """
    at, write = tmp_path_factory.mktemp("book"), explorers.write
    with pytest.MonkeyPatch.context() as patched:
        if not sweeps.WHOLE:
            patched.setattr(explorers, "GRID", {name: few_stops(name) for name in explorers.GRID})
            patched.setattr(
                explorers, "write", lambda folder, names, _: write(folder, names, at / "kept")
            )
        assert main(["book", str(at / "book")]) == 0
    return at / "book"


def few_stops(name):
    """What GRID has for an explorer: two stops for its first slider and its first menu, one for
    each other control."""
    found, kinds = {}, set()
    for one in explorers.controls(name):
        start, stops = [*one["stops"].values()][one["start"]], explorers.GRID[name][one["name"]]
        end = stops[-1 if stops[0] == start else 0]
        found[one["name"]] = (
            [start] if one["menu"] in kinds else [stop for stop in stops if stop in (start, end)]
        )
        kinds.add(one["menu"])
    return found


@pytest.fixture
def solution(toy_root):
    """The executed solution, yours to change."""
    return copy.deepcopy(notebook.read(notebook.solution_path(toy_root, "lab9_toy")))


@pytest.fixture
def unsolved(toy_root):
    """The student's notebook as generated, yours to change."""
    return copy.deepcopy(notebook.read(notebook.lab_path(toy_root, "lab9_toy")))
