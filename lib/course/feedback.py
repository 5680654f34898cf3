"""Makes the page that a student receives: each exercise with its points, the claim that failed, the
hint, and the student's own code, in which the line that the claim names is marked.

The page depends only on the name and the grading result and has no date, so the same result gives
the same bytes. Whatever a notebook has put into a message is escaped, so that the browser shows it
as text.
"""

import html
import re

from .grade import LOOK, NOT_WRITTEN

# finds a line of the answer that a message names
LINE = re.compile(r"\bline (\d+)(?: of \w+)?: (.+)")
GREY = ' class="none"'
NOT_TRIED = (NOT_WRITTEN, "missing")
STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222;
  background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4em .8em; border-bottom: 1px solid #ccc }
td:last-child { overflow-wrap: anywhere }
td.points { white-space: nowrap }
pre { background: #f6f6f6; color: #222; padding: .6em; overflow-x: auto }
mark { background: #ffe08a; display: inline-block; min-width: 100% }
ul.parts { margin: .3em 0; padding-left: 1.2em }
.hint { border-left: 3px solid #777; padding-left: .6em }
.all { color: #1a6e2e } .some { color: #9c2b00 } .none { color: #5f5f5f }
"""
HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
"""


def page(name: str, result: dict) -> str:
    """The page of one student as HTML. name: the student's name. result: what grade.grade_notebook
    returned."""
    rows = "\n".join(map(_row, result["exercises"]))
    mine = [note for note in result["notes"] if not note.startswith(LOOK)]
    notes = "".join(f"<li>{html.escape(note)}</li>\n" for note in mine)
    lab, name = html.escape(result["lab"]), html.escape(name)
    return (
        HEAD.format(title=f"{lab}: {name}", style=STYLE)
        + f"<h1>{lab}</h1>\n"
        + f"<p>{name}: <strong>{result['points']:g} of {result['max_points']} points</strong></p>\n"
        + "<table>\n<tr><th>Exercise</th><th>Points</th><th>What happened</th></tr>\n"
        + f"{rows}\n</table>\n"
        + (f"<ul>\n{notes}</ul>\n" if notes else "")
        + "</html>\n"
    )


def _row(row):
    style = "all" if row["points"] == row["max_points"] else "some"
    if row["status"] in NOT_TRIED:
        style = "none"
    score = f"{row['points']:g} of {row['max_points']}{' bonus' if row['bonus'] else ''}"
    told = [row["status"], *([row["message"]] if row["message"] != row["status"] else [])]
    text = "<br>".join(html.escape(part) for part in told if part)
    if row["parts"]:  # each with its own message; the row's is the first of them
        parts = "".join(map(_part, row["parts"]))
        text = f'{html.escape(row["status"])}\n<ul class="parts">{parts}</ul>'
    else:
        text += _hint(row["hint"])
    if row["code"] and style == "some":
        text += _code(row)
    function = html.escape(row["id"].removeprefix("check_")).replace("_", "_<wbr>")
    name = f"<br><small>{function}</small>" if row["title"] != row["id"] else ""
    return (
        f"<tr{GREY if style == 'none' else ''}><td>{html.escape(row['title'])}{name}</td>"
        f'<td class="points {style}">{score}</td><td>{text}</td></tr>'
    )


def _part(part):
    good = part["points"] == part["max_points"]
    score = f"{part['points']:g} of {part['max_points']:g}"
    told = "" if good else f": {html.escape(part['message'])}{_hint(part['hint'])}"
    style = "all" if good else "none" if part["message"] == NOT_WRITTEN else "some"
    return f'<li class="{style}">{html.escape(part["id"])}, {score}{told}</li>'


def _hint(hint):
    return f'<p class="hint">{html.escape(hint)}</p>' if hint else ""


def _code(row):
    """The student's answer, in which the lines that the messages name are marked."""
    told = " ".join([row["message"], *(part["message"] for part in row["parts"])])
    named = {(int(number), text) for number, text in LINE.findall(told)}
    cells = []
    for source in row["code"]:
        lines = []
        for number, line in enumerate(source.splitlines(), 1):
            said = any(n == number and _is_named(line, text) for n, text in named)
            text = html.escape(line)
            lines.append(f"<mark>{text}</mark>" if said else text)
        cells.append("<pre>" + "\n".join(lines) + "</pre>")
    return "".join(cells)


def _is_named(line, text):
    """True if `text`, from a message, quotes this line. The message may continue after the line, or
    may have been truncated within it."""
    line = line.strip()
    return bool(line) and (text.startswith(line) or line.startswith(text.removesuffix("...")))
