"""Finds the cells of a student's notebook that answer an exercise. merge.py grades them, and
carry.py puts them into a new edition.

An answer is found by grade_id, else by cell id, else by the function or class that it defines. If a
student copies a cell in JupyterLab, its grade_id is copied too, so there may be several such cells.
The last one that is not the stub counts. If an exercise has been renamed since the edition that the
student began with, the old identifiers in the answer are replaced with the help of the table
lib/check/renamed.json.
"""

import ast
import io
import json
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from . import edition, notebook

MAX_BYTES = 20_000_000
OLDER = (1, 2, 3)  # notebook formats that are converted to 4
RENAMED = json.loads(
    (Path(__file__).parents[1] / "check" / "renamed.json").read_text(encoding="utf-8")
)["exercises"]  # {exercise: {old identifier: new identifier}}


@dataclass(frozen=True)
class Found:
    """The answer in one answer cell. source: the answer, or the stub if there is none. written:
    True if the student wrote it. theirs: its text in the student's file, or "" if there is none.
    missing: True if no cell for it was found, not even the stub. notes: what the student should
    know."""

    source: str
    written: bool
    theirs: str
    missing: bool
    notes: list[str]


def read_submission(path: Path) -> tuple[list[NotebookNode], str]:
    """The cells of a student's notebook, and why it cannot be read ("" if it can).

    The file may contain anything, so we leave out what is not a cell. Raises OSError if there is no
    such file.
    """
    nb, trouble = read_notebook(path)
    return nb.cells, trouble


def read_notebook(path: Path) -> tuple[NotebookNode, str]:
    """Like read_submission, but returns the notebook with its metadata; it has no cells if the file
    cannot be read."""
    size, nothing = path.stat().st_size, nbformat.v4.new_notebook()
    if size > MAX_BYTES:
        text = (
            f"{path.name} has {size / 1e6:.0f} MB, more than {MAX_BYTES // 10**6}: clear its "
            f"outputs and save it again"
        )
        return nothing, text
    try:
        text = path.read_bytes().decode("utf-8")
        if _major(text) in OLDER:
            nb = nbformat.reads(text, as_version=4)
        else:
            nb = nbformat.v4.reads(text)
        nb.cells = [
            cell
            for cell in nb.cells
            if isinstance(cell, dict) and isinstance(cell.get("source"), str)
        ]
    except (ValueError, RecursionError) as error:
        return nothing, f"{path.name} is not JSON ({error}): was it saved or downloaded in full?"
    except Exception as error:  # nbformat catches no exception that an odd value causes
        return (
            nothing,
            f"{path.name} is not a notebook ({type(error).__name__}: {error}): save it in "
            f"JupyterLab as .ipynb",
        )
    return nb, ""


def _major(text: str) -> object:
    """The notebook format that a file says it has."""
    data = json.loads(text)
    return data.get("nbformat") if isinstance(data, dict) else None


def outside(cells: list[NotebookNode], name: str) -> str:
    """Says where the student defines `name` outside of the graded cells. Returns "" if they do not,
    or if a graded cell defines it as well."""
    graded = [notebook.nbgrader(cell).get("grade_id") for cell in cells]
    defining = [
        (number, cell, grade_id)
        for number, (cell, grade_id) in enumerate(zip(cells, graded, strict=True), 1)
        if _is_code(cell) and name in binds(cell.source)
    ]
    if not defining or any(grade_id for *_, grade_id in defining):
        return ""
    number, cell, _ = defining[-1]
    pattern = re.compile(rf"^.*\b{re.escape(name)}\b.*$", re.MULTILINE)
    return f"cell {number} (`{pattern.search(cell.source)[0].strip()[:60]}`)"


def binds(source: str) -> set[str]:
    """Names that the top level of `source` defines, assigns or imports."""
    tree = tree_of(source)
    names = _defines(source)
    for node in tree.body if tree else ():
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        names |= {
            leaf.id
            for one in targets
            if one
            for leaf in ast.walk(one)
            if isinstance(leaf, ast.Name)
        }
    return names


def find(
    cell: NotebookNode,
    canonical: NotebookNode,
    cells: list[NotebookNode],
    stub: str,
    older: frozenset[str] = frozenset(),
) -> Found:
    """Find in the student's `cells` the answer to `cell`, an answer cell of our notebook
    `canonical`.

    stub: the source of `cell` before anything is written. older: the fingerprints of the edition
    that the student began with. The student has not changed a cell that still has one of them.
    """
    name = notebook.grade_id(cell)
    theirs = {}  # {source in today's names: as it is in the student's file}
    if name in RENAMED:
        today = [_renamed(one, name) if _is_code(one) else one for one in cells]
        theirs = {new.source: one.source for new, one in zip(today, cells, strict=True)}
        cells = today
    tiers = _candidates(cell, canonical, cells)
    old = lambda source: (
        _same_code(source, stub) or edition.fingerprint(theirs.get(source, source)) in older
    )
    written = [[source for source in tier if not old(source)] for tier in tiers]
    best = next((tier for tier in written if tier), [])
    notes = []
    if not any(tiers):
        notes.append(
            f"{name}: answer cell missing (looked for its grade_id, its cell id and what it "
            f"defines)"
        )
    if len(best) > 1:
        notes.append(f"{name}: {len(best)} answer cells; the last one is graded")
    elif best and not written[0]:
        notes.append(f"{name}: the answer was found in a cell without its grade_id")
    source = best[-1].encode("utf-8", "replace").decode() if best else stub
    as_written = theirs.get(best[-1], best[-1]) if best else ""
    return Found(source, bool(best), as_written, not any(tiers), notes)


def _todays_names(source: str, exercise: str) -> str:
    """`source` with the identifiers that this exercise has today. It is changed only if it defines
    the exercise by its present name, or one of the old identifiers."""
    names = RENAMED[exercise]
    if not _defines(source) & {exercise, *names}:
        return source
    lines = source.split("\n")
    for token in reversed([*tokenize.generate_tokens(io.StringIO(source).readline)]):
        if token.type == tokenize.NAME and token.string in names:
            (row, begin), (_, end) = token.start, token.end
            line = lines[row - 1]
            lines[row - 1] = line[:begin] + names[token.string] + line[end:]
    return "\n".join(lines)


def _renamed(cell: NotebookNode, exercise: str) -> NotebookNode:
    """A copy of `cell` with today's names, in the source and, if the grade_id was the exercise's
    old name, in the grade_id."""
    cell = nbformat.from_dict({**cell, "source": _todays_names(cell.source, exercise)})
    given = notebook.nbgrader(cell)
    if RENAMED[exercise].get(str(given.get("grade_id"))) == exercise:
        cell.metadata.nbgrader = {**given, "grade_id": exercise}
    return cell


def _is_code(cell: NotebookNode) -> bool:
    return cell.get("cell_type") == "code" and bool(cell.source.strip())


def _candidates(
    cell: NotebookNode, canonical: NotebookNode, cells: list[NotebookNode]
) -> list[list[str]]:
    """Sources that may answer `cell`, in three tiers: by grade_id, by cell id, by
    what they define."""
    others = [other for other in canonical.cells if other.id != cell.id]
    taken = {notebook.nbgrader(other).get("grade_id") for other in others} - {None}
    given = {other.source.strip() for other in others}  # a copy of our example is no answer
    free = [c for c in cells if _is_code(c)]
    free = [c for c in free if not _claims(c, taken) and c.source.strip() not in given]
    names = _defines(cell.source)
    by_grade_id = [c for c in free if _claims(c, {notebook.grade_id(cell)})]
    by_cell_id = [c for c in free if c.get("id") == cell.id]
    by_name = [c for c in free if names & _defines(c.source)]
    return [[c.source for c in tier] for tier in (by_grade_id, by_cell_id, by_name)]


def _claims(cell: NotebookNode, grade_ids: set) -> bool:
    claimed = notebook.nbgrader(cell).get("grade_id")
    return isinstance(claimed, str) and claimed in grade_ids


def tree_of(source: str) -> ast.Module | None:
    """The syntax tree of `source`; None if it does not parse."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defines(source: str) -> set[str]:
    """Names of the functions and classes at the top level of `source`; none if it
    does not parse."""
    tree = tree_of(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)} if tree else set()


def _same_code(source: str, stub: str) -> bool:
    """Whether `source` is still the stub, apart from comments and layout."""
    tree, of_stub = tree_of(source), tree_of(stub)
    return None not in (tree, of_stub) and ast.dump(tree) == ast.dump(of_stub)
