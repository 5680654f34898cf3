"""Makes summary.html, which shows a class at a glance: first the notebooks that a person should
look at, then the distribution of points, the exercises with the hardest first, and how often each
hint was given."""

import html
from collections import Counter
from collections.abc import Mapping
from statistics import median

from .feedback import HEAD, NOT_TRIED, STYLE

BINS = 10  # bins of the histogram of percentages; there is one more for 100 and above
MORE = """
.bar { display: flex; height: 1em; min-width: 12em }
.bar span { display: block; height: 100% }
.full { background: #2d7a43 } .part { background: #d9972b } .zero { background: #b4472f }
.grey { background: #b9b9b9 }
.bins { display: flex; align-items: flex-end; gap: 2px; height: 10em; margin-top: 2em }
.bins div { flex: 1; background: #4a6fa5; position: relative; min-height: 1px }
.bins b { position: absolute; top: -1.5em; width: 100%; text-align: center; font-weight: normal }
.axis { display: flex; gap: 2px; text-align: center } .axis span { flex: 1 }
.legend span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }
"""
KINDS = (("full", "all points"), ("part", "some"), ("zero", "none"), ("grey", "not tried"))


def page(records: list[dict], statuses: Mapping[str, str]) -> str:
    """The page as HTML. statuses: {student: status} (tables.py)."""
    read = [r["result"] for r in records if r["result"] and "unreadable" not in r["result"]]
    lab = html.escape(next((r["result"]["lab"] for r in records if r["result"]), "the class"))
    return (
        HEAD.format(title=f"{lab}: summary", style=STYLE + MORE)
        + f"<h1>{lab}</h1>\n"
        + _attention(records, statuses)
        + (_distribution(read) + _exercises(read) + _hints(read) if read else "")
        + "</html>\n"
    )


def _attention(records, statuses):
    odd = [record for record in records if statuses[record["student"]] != "graded"]
    odd.sort(key=lambda record: statuses[record["student"]] != "unreadable")
    if not odd:
        return "<p>Every notebook was graded.</p>\n"
    rows = [[record["student"], statuses[record["student"]], _why(record)] for record in odd]
    return "<h2>What needs you</h2>\n" + _table(["Student", "Status", "Why"], rows)


def _why(record):
    result = record["result"]
    if not result:
        return record["trouble"]
    return result.get("unreadable") or "; ".join(
        [
            f"the kernel died in {row['id']}"
            for row in result["exercises"]
            if row["status"] == "kernel died"
        ]
        + result["notes"]
    )


def _distribution(read):
    shares = [100 * result["points"] / max(1, result["max_points"]) for result in read]
    counts = Counter(min(BINS, int(share * BINS / 100)) for share in shares)
    most = max(counts.values())
    bars = "".join(
        f'<div style="height:{100 * counts[i] / most:.0f}%"><b>{counts[i] or ""}</b></div>'
        for i in range(BINS + 1)
    )
    names = [f"{100 * i // BINS}" for i in range(BINS)] + ["100 and more"]
    axis = "".join(f"<span>{name}</span>" for name in names)
    return (
        f"<h2>{len(read)} notebooks, median {median(shares):.0f} %</h2>\n"
        f"<p>How many notebooks have how many percent of the points; with bonus exercises, more "
        f"than 100 are possible.</p>\n"
        f'<div class="bins">{bars}</div><div class="axis">{axis}</div>\n'
    )


def _exercises(read):
    by_exercise = list(zip(*(result["exercises"] for result in read), strict=True))
    mean = lambda rows: sum(row["points"] for row in rows) / sum(row["max_points"] for row in rows)
    lines = []
    for rows in sorted(by_exercise, key=mean):
        kinds = Counter(map(_kind, rows))
        bar = "".join(
            f'<span class="{kind}" style="width:{100 * kinds[kind] / len(rows):.4g}%" '
            f'title="{kinds[kind]} {what}"></span>'
            for kind, what in KINDS
        )
        numbers = [str(kinds[kind]) for kind, _ in KINDS]
        bonus = " (bonus)" if rows[0]["bonus"] else ""
        cells = [html.escape(rows[0]["title"]) + bonus, f"{100 * mean(rows):.0f} %", *numbers]
        lines.append(
            "<tr>" + "".join(f"<td>{one}</td>" for one in cells)
            + f'<td><div class="bar">{bar}</div></td></tr>'
        )  # fmt: skip
    legend = "".join(f'<span class="{kind}"></span>{what}' for kind, what in KINDS)
    head = "".join(f"<th>{what}</th>" for what in ("Exercise", "Points", *(w for _, w in KINDS)))
    return (
        f'<h2>The exercises, the hardest first</h2>\n<p class="legend">{legend}</p>\n'
        f"<table>\n<tr>{head}<th></th></tr>\n" + "\n".join(lines) + "\n</table>\n"
    )


def _kind(row):
    if row["points"] == row["max_points"]:
        return "full"
    if row["status"] in NOT_TRIED:
        return "grey"
    return "part" if row["points"] else "zero"


def _hints(read):
    given = Counter(
        (row["title"], one["hint"])
        for result in read
        for row in result["exercises"]
        for one in (row["parts"] or [row])
        if one["hint"]
    )
    if not given:
        return ""
    rows = [[str(count), title, hint] for (title, hint), count in given.most_common()]
    return "<h2>Hints that were given</h2>\n" + _table(["Students", "Exercise", "Hint"], rows)


def _table(head, rows):
    cells = lambda tag, row: "".join(f"<{tag}>{html.escape(one)}</{tag}>" for one in row)
    lines = [cells("th", head), *(cells("td", row) for row in rows)]
    return "<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>\n"
