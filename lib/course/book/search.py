"""Writes the index of the search: one entry for each heading, with the text below it.

    book.sections("...")         a list of [page, anchor, title, text], compressed like the figures

A browser does not let a page that was opened as a file read other pages. Therefore the index is a
script that contains all the text, from which excerpts are taken. Outputs and folded answers are
left out, because a search should not reveal what the reader is asked to predict.
"""

import base64
import html
import json
import re
import zlib
from pathlib import Path

from docutils import nodes

from . import formulas
from .sections import MINUTES

LAB = re.compile(r"(lab)(\d+)_.*-")
FRACTION = re.compile(r"\\[td]?frac\{([^{}]*)\}\{([^{}]*)\}")
SKIPPED = (nodes.section, nodes.raw, nodes.image, nodes.comment, nodes.title)


def write(app, failure):
    """Write _static/search-index.js when Sphinx has finished without an error."""
    if failure is None:
        (Path(app.outdir) / "_static" / "search-index.js").write_text(
            script(entries(app.env)), encoding="utf-8"
        )


def entries(env) -> list[tuple[str, str, str, str]]:
    """[(page, anchor, title, text), ...] of all headings, page by page, except for the lists of a
    lab's sections."""
    found = []
    for page in sorted(env.found_docs):
        document = env.get_doctree(page)
        lab = LAB.match(page)  # a page of a section
        where = f"{lab[1].title()} {lab[2]}: " if lab else ""
        where += env.titles[page].astext()
        for section in document.findall(nodes.section):
            title = MINUTES.sub("", section.next_node(nodes.title).astext())
            anchor = "" if section.parent is document else section["ids"][0]
            name = f"{title} · {where}" if anchor else where
            if title != "Sections":  # a lab's list of them
                found.append((page, anchor, name, " ".join(_words(section).split())))
    return found


def _words(section) -> str:
    """The text of a section without its subsections, its outputs and its folded answers."""
    parts = []
    for node in section.children:
        if isinstance(node, SKIPPED) or "toctree-wrapper" in node.get("classes", []):
            continue
        if "cell" in node.get("classes", []):  # only its input
            node = node.next_node(nodes.literal_block) or nodes.Text("")
        parts.append(_text(node))
    return " ".join(parts)


def _text(node) -> str:
    """The text of a node, without HTML, and with a space between its blocks."""
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, nodes.raw):
        return ""
    if isinstance(node, nodes.math | nodes.math_block):
        return _spoken(node.astext())
    text = "".join(map(_text, node.children))
    return text if isinstance(node, nodes.Inline) else f"{text} "


def _spoken(tex: str) -> str:
    r"""A formula as plain text: "\alpha + \frac{n-1}{N}\beta" -> "α+((n−1)/N)β"."""
    return html.unescape(re.sub(r"<[^>]*>", "", formulas.mathml(FRACTION.sub(_divided, tex))))


def _divided(fraction: re.Match) -> str:
    """A fraction as a/b, with parentheses around a sum, and around the fraction if a factor
    follows."""
    sides = (
        f"({side})" if re.search(r"[-+ ]", re.sub(r"\([^()]*\)", "", side)) else side
        for side in fraction.groups()
    )
    divided, after = "/".join(sides), fraction.string[fraction.end() :].strip()
    # the space separates it from a TeX command before it
    return f" ({divided})" if re.match(r"[\w\\(]", after) else f" {divided}"


def script(found) -> str:
    """The script that contains the index."""
    packed = zlib.compress(json.dumps(found, ensure_ascii=False).encode(), 9)
    return f'book.sections("{base64.b64encode(packed).decode()}");\n'


def unpacked(text: str) -> list:
    """The entries in a text that `script` has made."""
    return json.loads(zlib.decompress(base64.b64decode(re.search(r'"(.*)"', text)[1])))
