"""Makes the pages of a lab: the student's sources, with what the run of the solution printed and
drew.

Outputs of checks and answers are left out. A reader should predict before seeing a result, so a
cell that takes a prediction gets the tag `predict`. A cell whose output contains the result gets
the tag `waits-NAME` for each prediction, and book.js hides the output until there is a guess. In
our run no guess was made, so the line that `show_prediction` printed gets a slot for the reader's:
"rows: formula 75" becomes "rows: you ‹my_rows›, formula 75". In labs that print "you 0", the slot
replaces the 0.
"""

import copy
import itertools
import re
from collections.abc import Iterator
from html import escape

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from lib.course import build, notebook

from .formulas import in_html

GUESS = re.compile(
    r"^(?P<names>\w+(, \w+)*) = (?:.*# Predict|None *# your prediction)", re.MULTILINE
)
# finds the first two arguments of the call: the text before the colon, and the guess's name
SHOWN = r'show_prediction\(\s*f?"(?P<what>[^"]*)",\s*{name}\b'
# finds what the notebook has in place of a guess that was not made
UNMADE = re.compile(r"(?<![\d.])(?:0|0\.0|1\.00)(?![.,]?\d)|\((?:0, )*0\)|\.{6}|tp0 pp0|-(?=,|$)")
ANSWER = "<details><summary>Answer"  # to a Predict; "to (b)" may follow
EXPLORER = re.compile(r"^explore\.(\w+)\(\)$", re.MULTILINE)
NOTE = """```{note}
This page is for reading. Its cells have run, and what they printed stands below them; what an \
exercise prints is left
out. To run them, and to have what you write checked, take the notebook: [how](index.md).
```"""
CHINESE = re.compile(r"^(?P<English>\|[^|]*)\| *(?P<Hans>[^|]*?) *\| *(?P<Hant>[^|]*?) *\|")
GLOSSARY = re.compile(r"^\| English \|.*?\n(?=\n|\Z)", re.MULTILINE | re.DOTALL)


def page(
    solution: NotebookNode, animated: dict[str, tuple[str, str]] | None = None
) -> NotebookNode:
    """The notebook from which a lab's pages are made. Raises CourseError if the lab itself cannot
    be built.

    animated: {cell id: (name, alt text) of the animated figure below that cell}.
    """
    lab = build.student_notebook(solution)
    awaited, cells = [], []
    for cell, solved, following in zip(
        lab.cells, solution.cells, [*lab.cells[1:], None], strict=True
    ):
        cells.append(cell)
        if cell.cell_type == "markdown":
            shown = (
                following is not None
                and following.cell_type == "code"
                and not notebook.role(following)
            )
            cell.source = _text(cell.source, shown and not GUESS.search(following.source))
            continue
        if cell.cell_type != "code":
            continue
        cell.metadata.tags = cell.metadata.get("tags", [])
        if guesses := [*GUESS.finditer(cell.source)]:
            awaited += [name for guess in guesses for name in guess["names"].split(", ")]
            cell.metadata.tags.append("predict")
            if "show_prediction" not in cell.source:
                continue
        if notebook.role(cell) in ("answer", "check"):
            continue
        told = [name for name in awaited if re.search(rf"\b{name}\b", cell.source)]
        shown = [name for name in told if re.search(SHOWN.format(name=name), cell.source)]
        cell.outputs = _with_slots(solved.outputs, cell.source, shown)
        cell.outputs = _without_guesses(cell.outputs, [n for n in told if n not in shown])
        cell.metadata.tags += [f"waits-{name}" for name in told]
        awaited = [name for name in awaited if name not in told]
        cells += [explored(name) for name in EXPLORER.findall(cell.source)]
        if cell.id in (animated or {}):
            cells.append(replayed(*animated[cell.id]))
    cells.insert(1, new_markdown_cell(NOTE, id="for-reading"))
    lab.cells = cells
    return lab


def _with_slots(outputs: list[NotebookNode], source: str, names: list[str]) -> list[NotebookNode]:
    """The outputs with "you ‹name›, " in the lines that `show_prediction` printed."""
    outputs = copy.deepcopy(outputs)
    for name in names:
        what = re.search(SHOWN.format(name=name), source)["what"]
        line = ".*?".join(map(re.escape, re.split(r"\{[^}]*\}", what)))
        for output in outputs:
            if output.output_type == "stream":
                output.text = re.sub(
                    rf"^({line}: )", rf"\1you ‹{name}›, ", output.text, count=1, flags=re.MULTILINE
                )
    return outputs


def _without_guesses(outputs: list[NotebookNode], names: list[str]) -> list[NotebookNode]:
    """The outputs with ‹name› in place of what the run printed after "you", because that only
    stands for a guess that was not made."""
    if not names:
        return outputs
    outputs, slots = copy.deepcopy(outputs), itertools.cycle(f"‹{name}›" for name in names)
    for output in outputs:
        if output.output_type == "stream":
            parts = re.split(r"(\byou\b.*)", output.text)
            parts[1::2] = [
                UNMADE.sub(lambda _: next(slots), part, count=len(names)) for part in parts[1::2]
            ]
            output.text = "".join(parts)
    return outputs


def replayed(name: str, alt: str) -> NotebookNode:
    """The cell in which book.js replays a recorded run, which is in figures/NAME.js."""
    source = f'<div class="moving" data-replay="{name}">{still(name, alt)}</div>'
    return new_markdown_cell(source, id=f"replay-{name.replace('_', '-')}")


def still(name: str, alt: str) -> str:
    """The last frame of a run, as HTML. Readers without scripts see only this."""
    return f'<img src="_static/figures/{name}.svg" alt="{escape(alt)}">'


def explored(name: str) -> NotebookNode:
    """The cell in which explorers.js shows the figure above with sliders."""
    source = f'<div class="moving" data-explorer="{name}"></div>'
    return new_markdown_cell(source, id=f"explorer-{name.replace('_', '-')}")


def _text(source: str, shown: bool) -> str:
    """The source of a text cell, in which the answer to a Predict is marked, and formulas in folded
    parts are MathML.

    shown: True if the cell below shows the right answer. A Predict without an answer then gets a
    mark, and so does a text that refers to an earlier prediction.
    """
    if "**Predict" in source:
        if shown and ANSWER not in source:
            source += '\n\n<p class="predict"></p>'
        source = source.replace(ANSWER, ANSWER.replace("<details>", '<details class="predict">'))
    elif shown and re.search(r"\bprediction", source, re.IGNORECASE):
        source += '\n\n<p class="predicted"></p>'
    return re.sub(r"<details.*?</details>", lambda part: in_html(part[0]), source, flags=re.DOTALL)


def pictures(nb: NotebookNode) -> Iterator[NotebookNode]:
    """Yield the outputs that are figures, in order."""
    for cell in nb.cells:
        yield from (
            output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
        )


def glossary(text: str) -> list[str]:
    """The rows of the glossary in a Markdown file, beginning with its head and rule; [] if it has
    none.

    Each Chinese word is marked with its language, so that screen readers pronounce it, and browsers
    choose the font of its script.
    """
    if not (found := GLOSSARY.search(text + "\n")):
        return []
    head, rule, *rows = found[0].strip().splitlines()
    return [head, rule, *(CHINESE.sub(_in_chinese, row) for row in rows)]


def _in_chinese(row: re.Match) -> str:
    simplified, traditional = (
        f'<span lang="zh-{script}">{row[script]}</span>' for script in ("Hans", "Hant")
    )
    return f"{row['English']}| {simplified} | {traditional} |"
