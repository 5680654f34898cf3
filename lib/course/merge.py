"""The notebook that is graded: ours, with the student's answers in the places of our solutions.

    ours (solutions/)              the student's
    setup    ------------------------------------>  ours
    answer   <---- the student's answer cell ---->  theirs
    check    ------------------------------------>  ours, hidden tests included

So whatever became of the rest of their notebook (checks edited or deleted, cells moved, metadata wiped, outputs
faked), only what they wrote in answers counts. An answer is found by grade_id, else by cell id, else by the function
or class it defines. Copying a cell in JupyterLab copies its grade_id: of several, the last that is not the stub counts.
"""

import ast
import copy
import re
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from . import build, notebook

MAX_BYTES = 20_000_000
PRELUDE = """
__import__("lib.course.output_cap", fromlist=["install"]).install(get_ipython())
__import__("lib.course.tamper", fromlist=["install"]).install(get_ipython())
get_ipython().ask_exit = __import__("sys").exit  # else exit() ends the kernel in the next exercise's cell
""".strip()


@dataclass
class Merged:
    """notebook: what is run. stubs: answer's grade_id -> unsolved source. stubbed, missing: grade_ids of answers
    that are still the stub, or were not found at all. notes: what the student should know."""

    notebook: NotebookNode
    stubs: dict[str, str]
    stubbed: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def drop(self, exercise: notebook.Exercise) -> None:
        """Put the stubs back in the place of this exercise's answers."""
        ids = {notebook.nbgrader(cell)["grade_id"] for cell in exercise.answers}
        for cell in self.notebook.cells:
            if notebook.nbgrader(cell).get("grade_id") in ids:
                cell.source = self.stubs[notebook.nbgrader(cell)["grade_id"]]


def read_submission(path: Path) -> tuple[list[NotebookNode], str]:
    """The code and text cells of a student's notebook, and why it cannot be read ("" if it can).

    Anything may stand in the file; cells that are no cells are left out. Raises OSError if there is no such file.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        return (
            [],
            f"{path.name} has {size / 1e6:.0f} MB, more than {MAX_BYTES // 10**6}: clear its outputs and save it again",
        )
    try:
        cells = list(nbformat.v4.reads(path.read_bytes().decode("utf-8")).cells)
    except (ValueError, RecursionError) as error:
        return [], f"{path.name} is not JSON ({error}): was it saved or downloaded in full?"
    except Exception as error:  # nbformat raises whatever the first odd value makes Python raise
        return [], f"{path.name} is not a notebook ({type(error).__name__}: {error}): save it in JupyterLab as .ipynb"
    return [cell for cell in cells if isinstance(cell, dict) and isinstance(cell.get("source"), str)], ""


def merge(canonical: NotebookNode, cells: list[NotebookNode]) -> Merged:
    """The notebook to run for a student whose notebook has `cells`. Pure: neither argument is changed."""
    ours = [copy.deepcopy(cell) for cell in canonical.cells if notebook.role(cell)]
    answers = [cell for cell in ours if notebook.role(cell) == "answer"]
    merged = Merged(_with_prelude(canonical, ours), {_grade_id(cell): build.student_source(cell) for cell in answers})
    merged.notes += _edited(canonical, cells)
    for cell in answers:
        cell.source = _answer(cell, canonical, cells, merged)
        cell.outputs, cell.execution_count = [], None
    return merged


def _with_prelude(canonical: NotebookNode, cells: list[NotebookNode]) -> NotebookNode:
    prelude = nbformat.v4.new_code_cell(PRELUDE, id="grading-prelude")
    return nbformat.v4.new_notebook(cells=[prelude, *cells], metadata=copy.deepcopy(canonical.metadata))


def _answer(cell: NotebookNode, canonical: NotebookNode, cells: list[NotebookNode], merged: Merged) -> str:
    """The source that the student gave for our answer `cell`; the stub where there is none."""
    grade_id = _grade_id(cell)
    stub = merged.stubs[grade_id]
    found = _candidates(cell, canonical, cells)
    written = [[source for source in tier if not _same_code(source, stub)] for tier in found]
    best = next((tier for tier in written if tier), [])
    if not any(found):
        merged.missing.add(grade_id)
        merged.notes.append(
            f"{grade_id}: answer cell missing (looked for its grade_id, its cell id and what it defines)"
        )
    elif not best:
        merged.stubbed.add(grade_id)
    if len(best) > 1:
        merged.notes.append(f"{grade_id}: {len(best)} answer cells; the last one is graded")
    elif best and not written[0]:
        merged.notes.append(f"{grade_id}: the answer was found in a cell without its grade_id")
    return best[-1].encode("utf-8", "replace").decode() if best else stub


def _candidates(cell: NotebookNode, canonical: NotebookNode, cells: list[NotebookNode]) -> list[list[str]]:
    """Sources that may answer `cell`, in three tiers: by grade_id, by cell id, by what they define."""
    others = [other for other in canonical.cells if other.id != cell.id]
    taken = {notebook.nbgrader(other).get("grade_id") for other in others} - {None}
    given = {other.source.strip() for other in others}  # our worked examples are nobody's answer
    free = [c for c in cells if c.get("cell_type") == "code" and c.source.strip()]
    free = [c for c in free if not _claims(c, taken) and c.source.strip() not in given]
    names = _defines(cell.source)
    by_grade_id = [c for c in free if _claims(c, {_grade_id(cell)})]
    by_cell_id = [c for c in free if c.get("id") == cell.id]
    by_name = [c for c in free if names & _defines(c.source)]
    return [[c.source for c in tier] for tier in (by_grade_id, by_cell_id, by_name)]


def _edited(canonical: NotebookNode, cells: list[NotebookNode]) -> list[str]:
    """A note for each locked cell that the student's notebook lacks or holds in another wording."""
    theirs = {}
    for cell in cells:
        key = notebook.nbgrader(cell).get("grade_id") or cell.get("id")
        theirs.setdefault(str(key), []).append(cell.source.strip())
    notes = []
    for cell in canonical.cells:
        if notebook.role(cell) in ("check", "setup"):
            copies = theirs.get(_grade_id(cell), theirs.get(cell.id))
            if copies is None:
                notes.append(f"{_grade_id(cell)}: locked cell not found in your notebook; the course's own is used")
            elif set(copies) - {cell.source.strip(), build.student_source(cell).strip()}:
                notes.append(f"{_grade_id(cell)}: locked cell was edited; the course's own is used")
    return notes


def _grade_id(cell: NotebookNode) -> str:
    return notebook.nbgrader(cell)["grade_id"]


def _claims(cell: NotebookNode, grade_ids: set) -> bool:
    claimed = notebook.nbgrader(cell).get("grade_id")
    return isinstance(claimed, str) and claimed in grade_ids


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def loop_at(source: str, number: int, where: str) -> str:
    """ "line 2 of f: while True:", the outermost loop around line `number` of `source`; "" if that is not `where`."""
    lines, tree = source.splitlines(), _tree(source)
    if tree is None or number > len(lines) or not where.endswith(lines[number - 1].strip()):
        return ""
    loops = (node.lineno for node in ast.walk(tree) if isinstance(node, (ast.While, ast.For)) and _has(node, number))
    first = min(loops, default=number)
    return re.sub(r"^line \d+(.*?): .*", rf"line {first}\1: ", where) + lines[first - 1].strip()


def _has(node: ast.stmt, number: int) -> bool:
    return node.lineno <= number <= node.end_lineno


def _defines(source: str) -> set[str]:
    """Names of the functions and classes at the top level of `source`; none if it does not parse."""
    tree = _tree(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)} if tree else set()


def _same_code(source: str, stub: str) -> bool:
    """Whether `source` is still the stub: equal but for comments and layout."""
    tree = _tree(source)
    return tree is not None and ast.dump(tree) == ast.dump(_tree(stub))
