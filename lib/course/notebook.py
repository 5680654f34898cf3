"""The course's notebooks as data: where the files are, which role each cell plays, and how a
notebook is written to disk.

Each code cell has one of four roles, which only its nbgrader metadata (schema 3) decides. A text
cell always has the role "".

    role    grade  solution  locked  who writes it, and what is in it
    answer  no     yes       no      the student; in solutions/ it has our solution between two
                                     markers
    check   yes    no        yes     we; has the points; its stored output is the reference
    setup   no     no        yes     we; imports and data that answers and checks need
    ""      (no nbgrader metadata)   text, worked examples, figures: not run when a notebook is
                                     graded

An exercise is one check and the answers between it and the check before it. The answer cell whose
grade_id is "my_helpers" belongs to no exercise. It is for the student's own helper functions, has
only comments at first, and is run before the answers.
"""

import errno
import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]

FLAGS = {
    "answer": {"grade": False, "solution": True, "locked": False, "task": False},
    "check": {"grade": True, "solution": False, "locked": True, "task": False},
    "setup": {"grade": False, "solution": False, "locked": True, "task": False},
}
HELPERS = "my_helpers"  # the grade_id of the cell for a student's own helper functions
BONUS_TAG = "bonus"  # on a check: its points count, but not towards the lab's 100
CHECK_TAG = "nbval-check-output"
GO_ON_TAG = "raises-exception"  # on a student's check: Run All continues if it raises

# finds the text of a heading, without its number, "Exercise: " and a final parenthesis
TITLE = re.compile(r"^##+ (?:[\d.]+ )?(?:Exercise: )?(.*?)(?: \([^()]*\))?$", re.MULTILINE)
CELL_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# finds ids that nbformat and JupyterLab invent, which are eight hex digits or a full uuid
RANDOM_ID = re.compile(r"[0-9a-f]{8}")
GRADE_ID = re.compile(r"[A-Za-z0-9_\-]+")

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# without Python's version, so that a notebook does not change with the release that executed it
LANGUAGE_INFO = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}


# errors that say that the disk or a folder cannot be written to
REFUSALS = errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT


class CourseError(Exception):
    """An error that a person has to fix. The message says where it is, and what to do next."""


@dataclass(frozen=True)
class Exercise:
    """One graded exercise: `check` and `answers` are cells; `id` is the check's grade_id, and
    `title` the text of the heading above it."""

    id: str
    points: int
    bonus: bool
    check: NotebookNode
    answers: list[NotebookNode]
    title: str = ""


def solution_path(root: Path, lab: str) -> Path:
    return root / "solutions" / f"{lab}.ipynb"


def lab_path(root: Path, lab: str) -> Path:
    return root / "labs" / f"{lab}.ipynb"


def own_path(root: Path, lab: str) -> Path:
    """The student's own copy of a lab, which mine.py makes."""
    return root / "labs" / "mine" / f"{lab}.ipynb"


def number(lab: str) -> str:
    """ "0" for "lab0_concepts", as you write it in `make lab LAB=0`. A lab without a number keeps
    its full name."""
    found = re.match(r"lab(\d+)(_|$)", lab)
    return found[1] if found else lab


def labs(root: Path, names: list[str] | None = None, folder: str = "solutions") -> list[str]:
    """Names of the labs asked for ("0", "lab0" or "lab0_concepts"), or of every lab in
    root/`folder`.

    Raises CourseError if a name fits no notebook or several, or if the folder has none.
    """
    there = sorted(path.stem for path in (root / folder).glob("*.ipynb"))
    if not there:
        raise CourseError(f"no notebook in {root / folder}: nothing to do")
    if not names:
        return there
    chosen = []
    for name in names:
        number = name if name.startswith("lab") else f"lab{name}"
        found = [lab for lab in there if lab == number or lab.startswith(f"{number}_")]
        if len(found) != 1:
            wrong = f"{folder}/ has {'several labs' if found else 'no lab'} {name!r}"
            raise CourseError(f"{wrong}: choose one of {', '.join(there)}")
        chosen += found
    return chosen


def refusal(error: OSError, path: Path | None = None) -> CourseError:
    """The CourseError for a file that could not be opened or written: `path`, or else the file that
    `error` names."""
    way = (
        "make room on the disk, or copy the course to a folder that you can write to, and run the "
        "command there"
    )
    return CourseError(
        f"{path or error.filename or 'a file'} cannot be opened or written ({error.strerror}): "
        f"{way}"
    )


def read(path: Path) -> NotebookNode:
    """Read one of the course's own notebooks exactly as stored: nothing is upgraded or repaired.

    Raises CourseError if there is no such file, or if it is not a valid notebook of format 4.5.
    """
    try:
        nb = nbformat.v4.reads(path.read_text(encoding="utf-8"))
        version = f"{nb.nbformat}.{nb.nbformat_minor}"
        error = None if version != "4.5" else next(nbformat.validator.iter_validate(nb), None)
    except FileNotFoundError:
        raise CourseError(f"{path} does not exist") from None
    except (ValueError, AttributeError, TypeError) as problem:
        raise CourseError(f"{path} is not a notebook: {problem}") from None
    if version != "4.5":
        raise CourseError(f"{path} has notebook format {version}, must be 4.5: cells need ids")
    if error is not None:
        raise CourseError(f"{path} is not a valid notebook: {error.message[:300]}")
    return nb


def to_bytes(nb: NotebookNode) -> bytes:
    """The bytes of a notebook, always written in the same way: sorted keys, indent 1, a final
    newline."""
    return (nbformat.v4.writes(nb) + "\n").encode()


def write(nb: NotebookNode, path: Path) -> bool:
    """Write `nb` to `path` atomically, and only if the bytes differ. Returns True if they did."""
    return write_bytes(to_bytes(nb), path)


def write_bytes(new: bytes, path: Path) -> bool:
    """Like `write`, for the bytes of a notebook."""
    if path.exists() and path.read_bytes() == new:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(new)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return True


def normalise(nb: NotebookNode) -> None:
    """Remove from the metadata of `nb`, in place, what an editor or an execution has added, and set
    the format, the kernel and the language to the course's."""
    nb.nbformat, nb.nbformat_minor = 4, 5
    nb.metadata.pop("widgets", None)
    nb.metadata.update(
        nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO})
    )
    for cell in nb.cells:
        for key in ("execution", "ExecuteTime", "collapsed", "scrolled"):
            cell.metadata.pop(key, None)


def nbgrader(cell: NotebookNode) -> dict:
    """The cell's nbgrader metadata; {} if it has none. Also works for a student's notebook, where
    the metadata may be anything."""
    metadata = cell.get("metadata")
    found = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def grade_id(cell: NotebookNode) -> str:
    """The grade_id of one of our own answer, check or set-up cells."""
    return nbgrader(cell)["grade_id"]


def role(cell: NotebookNode) -> str:
    """ "answer", "check", "setup", or "" for every other cell."""
    flags = {key: nbgrader(cell).get(key) for key in FLAGS["answer"]}
    return next(
        (name for name, want in FLAGS.items() if cell.cell_type == "code" and flags == want), ""
    )


def is_for_helpers(cell: NotebookNode) -> bool:
    """Whether this answer cell is the one for helper functions, which no exercise asks for."""
    return role(cell) == "answer" and nbgrader(cell).get("grade_id") == HELPERS


def exercises(nb: NotebookNode) -> list[Exercise]:
    """The graded exercises of one of our notebooks, in order."""
    found, answers, title = [], [], ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            title = next(reversed(TITLE.findall(cell.source)), title)
        if role(cell) == "answer":
            answers += [] if is_for_helpers(cell) else [cell]
        elif role(cell) == "check":
            data = nbgrader(cell)
            bonus = BONUS_TAG in cell.metadata.get("tags", [])
            name = f"{title[:1].upper()}{title[1:]}" or data["grade_id"]
            found.append(Exercise(data["grade_id"], data["points"], bonus, cell, answers, name))
            answers, title = [], ""
    return found


def problems(nb: NotebookNode) -> list[tuple[str, str]]:
    """What has to be fixed before a lab can be generated: [(cell id, what is wrong and what to
    do), ...]."""
    found = []
    cell_ids = Counter(cell.id for cell in nb.cells)
    grade_ids = Counter(
        str(nbgrader(cell)["grade_id"]) for cell in nb.cells if "grade_id" in nbgrader(cell)
    )
    for what, counts in (("cell id", cell_ids), ("grade_id", grade_ids)):
        for name, count in counts.items():
            if count > 1:
                found.append(
                    (name, f"{what} {name!r} is used {count} times: give each cell its own")
                )
    for cell in nb.cells:
        found += [(cell.id, text) for text in _id_problems(cell.id) + _metadata_problems(cell)]
    if not found:
        orphans = [exercise for exercise in exercises(nb) if not exercise.answers]
        found += [
            (e.check.id, "no answer cell between this check and the one before") for e in orphans
        ]
    return found


def is_invented(cell_id: str) -> bool:
    """Whether an editor has made up this cell id. The course's own ids are words."""
    return bool(RANDOM_ID.match(cell_id)) and (len(cell_id) == 8 or cell_id.count("-") == 4)


def _id_problems(cell_id: str) -> list[str]:
    if is_invented(cell_id):
        return ["the id was invented by an editor: choose one that says what the cell does"]
    if not CELL_ID.fullmatch(cell_id):
        return ["a cell id is lowercase words with hyphens"]
    return []


def _metadata_problems(cell: NotebookNode) -> list[str]:
    if "nbgrader" not in cell.metadata:
        return []
    data = nbgrader(cell)
    flags = {key: data.get(key) for key in FLAGS["answer"]}
    kind = next((name for name, want in FLAGS.items() if flags == want), None)
    if kind is None:
        return [
            f"nbgrader metadata {json.dumps(data, sort_keys=True)} is neither an answer, a check "
            f"nor a set-up cell"
        ]
    if cell.cell_type != "code" and kind != "setup":
        return [f"only code cells can be {kind} cells, this is {cell.cell_type}"]
    want = {*flags, "grade_id", "schema_version", *(["points"] if kind == "check" else [])}
    wrong = [f"nbgrader metadata lacks {key!r}" for key in sorted(want - set(data))]
    wrong += [
        f"nbgrader metadata has {key!r}, which has no place on {kind} cells"
        for key in sorted(set(data) - want)
    ]
    if data.get("schema_version", 3) != 3:
        wrong.append(f"schema_version is {data['schema_version']}, must be 3")
    if not GRADE_ID.fullmatch(str(data.get("grade_id", "x"))):
        wrong.append(f"grade_id {data['grade_id']!r}: letters, digits, _ and - only")
    if kind == "check" and not (type(data.get("points", 1)) is int and data.get("points", 1) > 0):
        wrong.append(f"points is {data['points']!r}, must be a whole number above 0")
    return wrong
