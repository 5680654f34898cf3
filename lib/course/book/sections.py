"""Splits a lab's notebook into one page per section.

    lab0_concepts.ipynb          the title, what the lab is about, its sections, the imports
    lab0_concepts-ranks.ipynb    "## 2. Ranks" and all cells up to the next section

The headings of a section move up by one level, because its title becomes the title of the page.
"""

import copy
import re
from collections.abc import Iterator

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

SECTION = re.compile(r"## (?P<title>.+)")
NUMBER = re.compile(r"^\d+\. ")
OPTIONAL = re.compile(r" \(optional\)$")
GOAL = re.compile(r"^\*(?:Goal: )?(?P<goal>[^*]+)\*$", re.MULTILINE)
# finds what the heading of an exercise says about its length
MINUTES = re.compile(r" \((?:bonus, )?[^()]*\b(?:minutes|no code needed)\b[^()]*\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def split(lab: str, page: NotebookNode) -> dict[str, NotebookNode]:
    """{name of a page: its notebook}, with the lab's own page first."""
    starts = [
        place
        for place, cell in enumerate(page.cells)
        if cell.cell_type == "markdown" and SECTION.match(cell.source)
    ]
    if not starts:
        return {lab: page}
    ends = [*starts[1:], len(page.cells)]
    parts = {}
    for start, end in zip(starts, ends, strict=True):
        title = SECTION.match(page.cells[start].source)["title"]
        parts[f"{lab}-{slug(title)}"] = _notebook(page, map(_raised, page.cells[start:end]))
    opening, setup = page.cells[:2], page.cells[2 : starts[0]]
    entries = [_entry(name, part.cells[0].source, part) for name, part in parts.items()]
    first = [*opening, *_contents(entries, [*parts]), *setup]
    return {lab: _notebook(page, first)} | parts


def slug(title: str) -> str:
    """A title as a part of an address: "2. Ranks (optional)" -> "ranks"."""
    words = OPTIONAL.sub("", NUMBER.sub("", title)).lower()
    return "-".join(re.findall(r"[a-z0-9]+", words))


def description(part: NotebookNode) -> str:
    """The goal of a section, in one sentence, from its first cell; "" if there is none."""
    found = GOAL.search(part.cells[0].source)
    return found["goal"].strip() if found else ""


def _entry(name: str, source: str, part: NotebookNode) -> str:
    title = source.splitlines()[0].removeprefix("# ")
    told = description(part)
    told = told[0].upper() + told[1:] if told else ""
    return f"- **[{title}]({name}.ipynb)** {told}".rstrip()


def _contents(entries: list[str], names: list[str]) -> Iterator[NotebookNode]:
    """Yield a cell with two lists of the sections, one that is shown and one by which Sphinx orders
    the pages, and then the heading above the lab's imports."""
    tree = "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])
    yield new_markdown_cell("\n".join(["## Sections", "", *entries, "", tree]), id="sections")
    yield new_markdown_cell(
        "## Imports of this lab\n\nEach lab begins with these cells, and the code of all its "
        "sections uses what they import.",
        id="imports",
    )


def _raised(cell: NotebookNode) -> NotebookNode:
    """The cell with its headings one level higher, outside of code."""
    if cell.cell_type != "markdown":
        return cell
    cell = copy.deepcopy(cell)
    parts = FENCE.split(cell.source)
    parts[::2] = [re.sub(r"^#(#+ )", r"\1", part, flags=re.MULTILINE) for part in parts[::2]]
    cell.source = "".join(parts)
    return cell


def _notebook(page: NotebookNode, cells) -> NotebookNode:
    return NotebookNode({**copy.deepcopy({k: v for k, v in page.items() if k != "cells"}),
                         "cells": list(cells)})  # fmt: skip
