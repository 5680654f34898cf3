"""Makes the notebook that is graded: our own, with the student's answers in place of our solutions.

    ours (solutions/)   the student's   the graded notebook
    setup    ------------------------>  ours
    answer              answer  ----->  the student's
    check    ------------------------>  ours, hidden tests included

Therefore only what a student wrote in answer cells counts. It does not matter whether checks were
edited or deleted, cells moved, metadata lost or outputs faked. answers.py finds the answers.
"""

import ast
import copy
import re
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode

from . import answers, build, notebook

PRELUDE = """
__import__("lib.course.output_cap", fromlist=["install"]).install(get_ipython())
__import__("lib.course.tamper", fromlist=["install"]).install(get_ipython())
get_ipython().ask_exit = __import__("sys").exit  # else exit() ends the kernel in the next \
exercise's cell
""".strip()


@dataclass
class Merged:
    """A notebook that is ready to be graded. notebook: what is run. stubs: {an answer's grade_id:
    its stub}. stubbed: grade_ids of answers that are still the stub. missing: grade_ids of answers
    that were not found at all. notes: what the student should know."""

    notebook: NotebookNode
    stubs: dict[str, str]
    stubbed: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def drop(self, exercise: notebook.Exercise) -> None:
        """Replace this exercise's answers by the stubs."""
        self._drop({notebook.nbgrader(cell)["grade_id"] for cell in exercise.answers})

    def drop_helpers(self) -> None:
        """Replace the cell with the student's helper functions by our empty one."""
        self._drop({notebook.HELPERS})

    def _drop(self, ids: set[str]) -> None:
        for cell in self.notebook.cells:
            if notebook.nbgrader(cell).get("grade_id") in ids:
                cell.source = self.stubs[notebook.nbgrader(cell)["grade_id"]]


def merge(canonical: NotebookNode, cells: list[NotebookNode]) -> Merged:
    """The notebook to run for a student whose notebook has `cells`. Neither argument is
    changed."""
    ours = [copy.deepcopy(cell) for cell in canonical.cells if notebook.role(cell)]
    ours_to_answer = [cell for cell in ours if notebook.role(cell) == "answer"]
    stubs = {notebook.grade_id(cell): build.student_source(cell) for cell in ours_to_answer}
    merged = Merged(_with_prelude(canonical, ours), stubs)
    merged.notes += _edited(canonical, cells)
    for cell in ours_to_answer:
        name = notebook.grade_id(cell)
        found = answers.find(cell, canonical, cells, stubs[name])
        is_helpers = notebook.is_for_helpers(cell)  # a notebook may lack this cell
        merged.notes += [] if is_helpers and found.missing else found.notes
        if not found.written and not is_helpers:
            (merged.missing if found.missing else merged.stubbed).add(name)
        cell.source = found.source
        cell.outputs, cell.execution_count = [], None
    return merged


def _with_prelude(canonical: NotebookNode, cells: list[NotebookNode]) -> NotebookNode:
    prelude = nbformat.v4.new_code_cell(PRELUDE, id="grading-prelude")
    return nbformat.v4.new_notebook(
        cells=[prelude, *cells], metadata=copy.deepcopy(canonical.metadata)
    )


def _edited(canonical: NotebookNode, cells: list[NotebookNode]) -> list[str]:
    """A note for each locked cell that is missing from the student's notebook, or was edited."""
    theirs = {}
    for cell in cells:
        key = notebook.nbgrader(cell).get("grade_id") or cell.get("id")
        theirs.setdefault(str(key), []).append(cell.source.strip())
    notes = []
    for cell in canonical.cells:
        if notebook.role(cell) in ("check", "setup"):
            copies = theirs.get(notebook.grade_id(cell), theirs.get(cell.id))
            if copies is None:
                notes.append(
                    f"{notebook.grade_id(cell)}: locked cell not found in your notebook; the "
                    f"course's own is used"
                )
            elif set(copies) - {cell.source.strip(), build.student_source(cell).strip()}:
                notes.append(
                    f"{notebook.grade_id(cell)}: locked cell was edited; the course's own is used"
                )
    return notes


def loop_at(source: str, number: int, where: str) -> str:
    """ "line 2 of f: while True:", the line where the outermost loop around line `number` of
    `source` begins, or this line itself if no loop is around it. Returns "" if `where` does not end
    with this line."""
    lines, tree = source.splitlines(), answers.tree_of(source)
    if tree is None or number > len(lines) or not where.endswith(lines[number - 1].strip()):
        return ""
    loops = (
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.While, ast.For)) and _has(node, number)
    )
    first = min(loops, default=number)
    return re.sub(r"^line \d+(.*?): .*", rf"line {first}\1: ", where) + lines[first - 1].strip()


def _has(node: ast.stmt, number: int) -> bool:
    return node.lineno <= number <= node.end_lineno
