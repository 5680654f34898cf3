"""Lays out a verdict as a card in the notebook. The words are those of the printed text, arranged
so that they can be read at a glance.

    what holds      green, with a tick
    what fails      red, with a cross, and below it what was observed
    the advice      set apart on a tinted background
    your own line   highlighted
    the foot        the points of the lab so far, and the next exercise after one that passed

A card is shown only to a person in front of a notebook (lib/frontend.py). Its output also carries
the text, for readers of the file who have no browser. The card is HTML with its own style sheet and
follows the theme of JupyterLab, VS Code and Colab. If a front end removes the style, as JupyterLab
does in a notebook that is not trusted, the words remain in order.
"""

import itertools
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape

# finds a line of the answer, with its position, in a sentence of a verdict
POSITION = re.compile(
    r"(?P<where>\bline \d+(?: of \w+)?: )(?P<line>.+?)"
    r"(?P<rest>; ranks? [\d, and]+ ha(?:s|ve) not .*| \((?:its partner|every member) .*|)$"
)
MARKS = {
    "ok": ("&#10003;", "holds: "),
    "fails": ("&#10007;", "fails: "),
    "stopped": ("&#9632;", ""),
}
STYLE = """
.verdict{--ok:#116329;--bad:#a40e26;--soft:#57606a;--edge:#d0d7de;--mark:#fff1a8;--ink:#1f2328;
--tip:rgba(9,105,218,.09);border-left:4px solid var(--edge);padding:.2em 0 .2em .9em;margin:.3em 0;
line-height:1.45;overflow-wrap:normal;word-break:normal;hyphens:manual;max-width:60em}
[data-jp-theme-light=false] .verdict,.vscode-dark .verdict,.vscode-high-contrast .verdict,
html[theme=dark] .verdict{--ok:#7ee787;--bad:#ffa198;--soft:#b1bac4;--edge:#444c56;--mark:#5c4a00;
--ink:#fff6d1;--tip:rgba(110,170,255,.16)}
.verdict.passed{border-color:var(--ok)}.verdict.failed{border-color:var(--bad)}
.verdict p,.verdict ul{margin:.25em 0;padding:0!important}
.verdict .seen{padding-left:var(--in,0)!important}.verdict .tip{padding:.35em .7em!important}
.verdict ul{list-style:none!important}.verdict .arrow{white-space:nowrap}
.verdict li{margin:.15em 0;padding-left:1.5em}
.verdict .mark{float:left;margin-left:-1.5em;font-weight:bold}
.verdict .ok .mark,.verdict .ok b{color:var(--ok)}
.verdict .fails>.mark,.verdict .fails>b{color:var(--bad)}
.verdict .soft{color:var(--soft)}
.verdict code,.verdict pre{font-family:var(--jp-code-font-family,monospace);font-size:.93em;
word-break:normal;overflow-wrap:normal;background:none;border:0;color:inherit}
.verdict code.line{background:var(--mark)!important;color:var(--ink)!important;
padding:.1em .35em;border-radius:3px;
-webkit-box-decoration-break:clone;box-decoration-break:clone;white-space:pre-wrap}
.verdict pre{white-space:pre!important;overflow-x:auto;margin:.1em 0;padding:0}
.verdict .seen{overflow-x:auto}
.verdict .tip{background:var(--tip);border-radius:4px;margin:.4em 0}
.verdict .unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
"""
# JupyterLab marks a cell that has been edited since it last ran. The kernel does not know of the
# mark, so this script runs in the browser.
EDITED = """<script>(() => {
const card = document.getElementById("@ID"), here = card && card.closest(".jp-CodeCell");
if (!here) return;
const cells = [...document.querySelectorAll(".jp-CodeCell")];
const before = cells[cells.indexOf(here) - 1];
const defines = new RegExp("\\\\b(def|class)\\\\s+(@NAMES)\\\\b");
const edited = cell => cell !== here && cell.classList.contains("jp-mod-dirty") &&
  (cell === before || defines.test((cell.querySelector(".cm-content") || cell).textContent));
if (cells.some(edited)) card.querySelector(".edited").hidden = false;
})()</script>"""
EDITED_TEXT = (
    "The cell above has been edited since it last ran, so this verdict is about the earlier code. "
    "Run that cell, and then this one."
)


@dataclass(frozen=True)
class Told:
    """One part of a verdict.

    kind: "ok", "fails" or "stopped", where head names a claim or a part of a bundle, and text says
        something about it; or "text", "tip", "printed" or "note", which have only a text and
        belong to the item before them, or to the whole verdict if there is none.
    depth: 1 inside a part of a bundle, else 0.
    """

    kind: str
    text: str = ""
    head: str = ""
    depth: int = 0


def html(
    name: str, told: Iterable[Told], state: str, score: str, foot: str, names: Iterable[str] = ()
) -> str:
    """The card as HTML. state: "passed", "failed" or "neutral". score, foot: texts; foot may be "".
    names: the functions that the exercise asks for, by which the card's script finds their
    cells."""
    made, card = [], f"verdict-{uuid.uuid4().hex[:12]}"
    made.append(f'<div class="verdict {state}" id="{card}" role="group" ')
    made.append(f'aria-label="Verdict on {escape(name)}"><style>{STYLE}</style>')
    made.append(f'<p class="edited" hidden><b>{EDITED_TEXT}</b></p>')
    made.append(f"<p><b>{escape(name)}</b> <span class=soft>{escape(score)}</span></p>")
    made.append(_items([*told]))
    if foot:
        made.append(f"<p class=soft>{escape(foot)}</p>")
    edited = EDITED.replace("@ID", card).replace("@NAMES", "|".join(map(re.escape, names)) or name)
    return "".join([*made, "</div>", edited])


def _items(told):
    """The introductory parts, and then a list of what holds and what fails. Each item includes the
    parts that belong below it."""
    starts = [i for i, one in enumerate(told) if one.kind in MARKS and one.depth == 0]
    first = starts[0] if starts else len(told)
    made = [BELOW[one.kind](one.text) for one in told[:first]]
    items = [told[i:j] for i, j in itertools.pairwise([*starts, len(told)])]
    made += ["<ul>", *map(_item, items), "</ul>"] if items else []
    return "".join(made)


def _item(told):
    (one, *below), (mark, unseen) = told, MARKS[told[0].kind]
    said = _items([replace(each, depth=each.depth - 1) if each.depth else each for each in below])
    return (
        f'<li class={one.kind}><span class=mark aria-hidden="true">{mark}</span>'
        f"<span class=unseen>{unseen}</span><b>{escape(one.head)}</b> "
        f"<span>{escape(one.text)}</span>{said}</li>"
    )


def _text(text):
    """One line of what was observed: a sentence, or columns, which must not be wrapped."""
    indent = len(text) - len(text.lstrip())
    if "  " in text.strip():
        return f"<pre tabindex=0>{escape(text)}</pre>"
    said = escape(text.strip())
    if found := POSITION.search(text.strip()):
        before, line, rest = text.strip()[: found.start()], found["line"], found["rest"]
        said = f"{escape(before)}{escape(found['where'])}<code class=line>{escape(line)}</code>"
        said += escape(rest)
    said = said.replace(" -&gt; ", " <span class=arrow>-&gt;</span> ")  # no line break inside
    return f'<p class=seen style="--in:{indent / 2:g}em">{said}</p>'


def _tip(text):
    label, colon, rest = text.partition(": ")
    said = f"<b>{escape(label)}{colon}</b>{escape(rest)}" if len(label) < 20 else escape(text)
    return f"<p class=tip>{said}</p>"


BELOW = {
    "text": _text,
    "tip": _tip,
    "note": lambda text: f"<p class=soft>{escape(text)}</p>",
    "printed": lambda text: (
        f'<p class=soft>It printed:</p><pre tabindex=0 aria-label="What the answer printed">'
        f"{escape(text)}</pre>"
    ),
}
