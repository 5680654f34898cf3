"""A lab as the book shows it: the student's sources, with what the solution's run printed and drew.

Left out are the outputs of checks and answers. A Predict cell, which takes a number, gets the tag `predict`; a cell
whose output tells that number gets `waits-NAME` for each of its names, and book.js hides it until there is a guess.
"""

import re
from collections.abc import Iterator
from html import escape

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from lib.course import build, notebook

from .formulas import in_html

GUESS = re.compile(r"^(?P<names>\w+(, \w+)*) = .*# Predict", re.MULTILINE)
ANSWER = "<details><summary>Answer</summary>"
EXPLORER = re.compile(r"^explore\.(\w+)\(\)$", re.MULTILINE)
GLOSSARY = re.compile(r"^\| English \|.*?\n(?=\n|\Z)", re.MULTILINE | re.DOTALL)


def page(solution: NotebookNode, animated: dict[str, tuple[str, str]] | None = None) -> NotebookNode:
    """The notebook that becomes a page. Raises CourseError for what would stop the build of a lab.

    animated: {cell id: (name, alt text) of the figure that moves below it}.
    """
    lab = build.student_notebook(solution)
    awaited, cells = set(), []
    for cell, solved in zip(lab.cells, solution.cells, strict=True):
        cells.append(cell)
        if cell.cell_type == "markdown":
            cell.source = _text(cell.source)
            continue
        if cell.cell_type != "code":
            continue
        cell.metadata.tags = cell.metadata.get("tags", [])
        if guess := GUESS.search(cell.source):
            awaited |= set(guess["names"].split(", "))
            cell.metadata.tags.append("predict")
            continue
        if notebook.role(cell) in ("answer", "check"):
            continue
        cell.outputs = solved.outputs
        cell.metadata.tags += [f"waits-{name}" for name in sorted(awaited) if re.search(rf"\b{name}\b", cell.source)]
        awaited -= {tag.removeprefix("waits-") for tag in cell.metadata.tags}
        cells += [moving(name) for name in EXPLORER.findall(cell.source)]
        if cell.id in (animated or {}):
            cells.append(moving(*animated[cell.id]))
    lab.cells = cells
    return lab


def moving(name: str, alt: str = "") -> NotebookNode:
    """The cell in which book.js makes a figure move, by figures/NAME.js: the one above, or with alt NAME.svg."""
    still = f'<img src="_static/figures/{name}.svg" alt="{escape(alt)}">' if alt else ""
    source = f'<div class="moving" data-figure="{name}">{still}</div>'
    return new_markdown_cell(source, id=f"moving-{name.replace('_', '-')}")


def _text(source: str) -> str:
    """A text cell's source: an answer that follows a Predict is marked, formulas inside of folded parts are written."""
    if "**Predict" in source:
        source = source.replace(ANSWER, ANSWER.replace("<details>", '<details class="predict">'))
    return re.sub(r"<details.*?</details>", lambda part: in_html(part[0]), source, flags=re.DOTALL)


def pictures(nb: NotebookNode) -> Iterator[NotebookNode]:
    """The figures among the outputs, in order."""
    for cell in nb.cells:
        yield from (output for output in cell.get("outputs", []) if "image/png" in output.get("data", {}))


def glossary(nb: NotebookNode) -> list[str]:
    """The rows of the notebook's glossary, as Markdown, head and rule first; [] if it has none."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and (found := GLOSSARY.search(cell.source + "\n")):
            return found[0].strip().splitlines()
    return []
