"""Finds the core path of a lab: what is left if a student skips its optional sections.

    ## 6. What it costs                                         core
    ### Exercise: predict, and choose                           core
    ### All-to-all (bonus)                                      optional, up to the next ### or ##
    ## 9. The same hang on a cluster (optional)                 optional, up to the next ##
    ### Which rank is missing?                                  optional, like its section

A heading that ends with "optional", "bonus" or "outside the core path" in parentheses makes
everything up to the next heading of the same or a higher level optional. In the students' notebooks
such a section is collapsed when the notebook opens.
"""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

HEADING = re.compile(r"(?P<level>#{1,6}) (?P<text>.+)")
OPTIONAL = re.compile(r"\([^()]*\b(?:optional|bonus|outside the core path)\b[^()]*\)\s*$")
# the key with which JupyterLab collapses a heading, in the metadata of its cell
COLLAPSED = "jp-MarkdownHeadingCollapsed"


def is_optional(heading: str) -> bool:
    """Whether a line such as "## 9. Scaling (optional)" begins an optional section."""
    return bool(HEADING.fullmatch(heading) and OPTIONAL.search(heading))


def parts(nb: NotebookNode) -> Iterator[tuple[NotebookNode, str, bool]]:
    """Yield each cell with its source, and whether the source belongs to the core.

    A text cell with several headings is split before each of them, and yielded once for each part.
    """
    optional = None  # the level of the heading that made this part optional
    for cell in nb.cells:
        if cell.cell_type != "markdown":
            yield cell, cell.source, optional is None
            continue
        for text in _by_heading(cell.source):
            heading = HEADING.fullmatch(text.split("\n", 1)[0])
            if heading:
                level = len(heading["level"])
                if optional is not None and level <= optional:
                    optional = None
                if optional is None and is_optional(heading[0]):
                    optional = level
            yield cell, text, optional is None


def cells(nb: NotebookNode) -> list[NotebookNode]:
    """The cells of the core, in order. A text cell is among them if any part of it is."""
    found = {cell.id: cell for cell, _, is_core in parts(nb) if is_core}
    return list(found.values())


def collapse(nb: NotebookNode) -> None:
    """Collapse the optional sections of `nb`, in place: JupyterLab then shows only their
    headings."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and is_optional(cell.source.split("\n", 1)[0]):
            cell.metadata[COLLAPSED] = True


def _by_heading(source: str) -> list[str]:
    """The source, split before each heading. A line in a fenced block of code is not a heading."""
    found, fenced = [[]], False
    for line in source.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and HEADING.fullmatch(line) and found[-1]:
            found.append([])
        found[-1].append(line)
    return ["\n".join(lines) for lines in found]
