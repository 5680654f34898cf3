"""Finds the submissions of a class, and computes the key that says whether one has to be graded
again.

    submissions/alice.ipynb                              alice
    submissions/bob/.../lab1_data_parallel.ipynb         bob: any depth, so nbgrader's layout, too

The key is a hash of what the points depend on: the notebook's bytes, the lab's solution, the
limits, and the Python files of lib, among them the checks and the grader. It does not depend on
when or in which folder a class is graded.
"""

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from . import notebook
from .notebook import CourseError
from .sandbox import Limits


@dataclass(frozen=True)
class Submission:
    """What one student has handed in. student: a name. path: the notebook, or None if there is none
    to grade, in which case `trouble` says why."""

    student: str
    path: Path | None
    trouble: str = ""


@dataclass(frozen=True)
class Terms:
    """The terms on which a class is graded: the lab's name, the course's folder, seconds for a cell
    and for a notebook, limits, and the sandbox (None: the strongest; see sandbox.held)."""

    lab: str
    root: Path
    cell_timeout: float
    total_timeout: float
    limits: Limits = Limits()  # noqa: RUF009  (frozen)
    sandbox: str | None = None


def find(folder: Path, lab: str) -> list[Submission]:
    """The submissions in `folder`, sorted by name: each notebook in it, and each sub-folder, in
    which the notebook may be at any depth. Hidden files and folders are ignored.

    Raises CourseError if there are none, or if two have the same name.
    """
    found = []
    for entry in sorted(folder.iterdir(), key=lambda entry: os.fsencode(entry)):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            found.append(_in_folder(entry, lab))
        elif entry.suffix == ".ipynb":
            found.append(_file(_text(entry.stem), entry))
    names = [one.student for one in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise CourseError(
            f"{folder} has both a file and a folder for {', '.join(sorted(twice))}: remove one of "
            f"each"
        )
    if not found:
        raise CourseError(
            f"no notebook in {folder}: give a folder with NAME.ipynb or NAME/...ipynb per student"
        )
    return found


def _text(name: str) -> str:
    """`name` in valid UTF-8, because names from an archive may contain other bytes."""
    return name.encode("utf-8", "backslashreplace").decode()


def _file(student: str, path: Path) -> Submission:
    if path.is_symlink() or not path.is_file():
        return Submission(student, None, f"{_text(path.name)} is a link, not a file")
    if not os.access(path, os.R_OK):
        return Submission(
            student, None, f"{_text(path.name)} may not be read by the user who grades: chmod +r"
        )
    return Submission(student, path)


def _in_folder(folder: Path, lab: str) -> Submission:
    """The submission in one student's folder: the notebook with the lab's name, or else the only
    one."""
    every = [
        path for path in sorted(folder.rglob("*.ipynb")) if path.is_file() and not path.is_symlink()
    ]
    every = [
        path
        for path in every
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    named = [path for path in every if path.stem == lab] or every
    if len(named) == 1:
        return _file(_text(folder.name), named[0])
    which = ", ".join(_text(str(path.relative_to(folder))) for path in named)
    return Submission(
        _text(folder.name),
        None,
        f"{len(named)} notebooks ({which}); name one {lab}.ipynb"
        if named
        else "no notebook in the folder",
    )


def version(terms: Terms) -> str:
    """The hash of what all students of a class share: the solution, lib, and the limits."""
    total = hashlib.sha256(
        f"{terms.cell_timeout} {terms.total_timeout} {asdict(terms.limits)}".encode()
    )
    solution = notebook.solution_path(terms.root, terms.lab)
    for file in [solution, *sorted((notebook.ROOT / "lib").rglob("*.py"))]:
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def key(one: Submission, version: str) -> str:
    """The hash of all that this student's points depend on; `version` is that of the class."""
    total = hashlib.sha256(f"{version} {one.trouble}".encode())
    if one.path:
        with one.path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
