"""The toy lab of toy_lab.py, executed and built once."""

import copy

import pytest
from toy_lab import toy_notebook

from lib.course import build, execute, notebook
from lib.course.__main__ import main


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
    """The book that `make book` makes, built once for all tests of a process."""
    out = tmp_path_factory.mktemp("book") / "book"
    assert main(["book", str(out)]) == 0
    return out


@pytest.fixture
def solution(toy_root):
    """The executed solution, yours to change."""
    return copy.deepcopy(notebook.read(notebook.solution_path(toy_root, "lab9_toy")))


@pytest.fixture
def unsolved(toy_root):
    """The student's notebook as generated, yours to change."""
    return copy.deepcopy(notebook.read(notebook.lab_path(toy_root, "lab9_toy")))
