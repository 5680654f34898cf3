"""A class's records as files: points as CSV and JSON, JUnit XML, and a page for each student.

    points.csv          student, points, max_points, one column per exercise, what to check by hand
    points.json         the same with statuses, failing claims and hints;
                        the keys under which all was graded
    junit.xml           a suite per student, a case per exercise
    feedback/NAME.html  for the student: points, the failing claim and its hint

Plain functions of the records: the same records give the same bytes, and nothing is dated.
"""

import csv
import html
import io
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

from . import report
from .classroom import write
from .grade import LOOK

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{lab}: {student}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; \
color: #222; background: #fff }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .4em .8em; \
border-bottom: 1px solid #ccc }}
td.points {{ white-space: nowrap }}
.all {{ color: #1a6e2e }} .some {{ color: #9c2b00 }}
</style>
<h1>{lab}</h1>
<p>{student}: <strong>{points:g} of {max_points} points</strong></p>
<table>
<tr><th>Exercise</th><th>Points</th><th>What happened</th></tr>
{rows}
</table>
{notes}
</html>
"""


def write_all(records: list[dict], out: Path, says: str) -> None:
    """Write all files into `out`; what an earlier class left in feedback/ goes. says: how
    notebooks were shut in."""
    write(out / "points.csv", points_csv(records))
    write(
        out / "points.json",
        json.dumps({"isolation": says, "students": records}, indent=1, sort_keys=True) + "\n",
    )
    write(out / "junit.xml", junit(records))
    shutil.rmtree(out / "feedback", ignore_errors=True)
    (out / "feedback").mkdir()
    for record in records:
        if record["result"]:
            write(
                out / "feedback" / f"{record['student']}.html",
                page(record["student"], record["result"]),
            )


def points_csv(records: list[dict]) -> str:
    """One row per student. Of a notebook that cannot be read, the exercises stay empty, and the
    last column says why; of one that could not be graded, the points too."""
    graded = [record["result"] for record in records if record["result"]]
    exercises = [row["id"] for row in graded[0]["exercises"]] if graded else []
    table = io.StringIO()
    to = csv.writer(table, lineterminator="\n")
    to.writerow(["student", "points", "max_points", *exercises, "look"])
    for record in records:
        name, result = _cell(record["student"]), record["result"]
        if result:
            points = [f"{row['points']:g}" for row in result["exercises"]]
            looks = [note.removeprefix(LOOK) for note in result["notes"] if note.startswith(LOOK)]
            lacking = [row["id"] for row in result["exercises"] if row["status"] == "missing"]
            looks += [f"not in the notebook: {', '.join(lacking)}"] if lacking else []
            if "unreadable" in result:
                points, looks = [""] * len(points), [f"unreadable: {result['unreadable']}"]
            to.writerow(
                [
                    name,
                    f"{result['points']:g}",
                    result["max_points"],
                    *points,
                    _cell("; ".join(looks)),
                ]
            )
        else:
            to.writerow(
                [name, "", "", *[""] * len(exercises), _cell(f"not graded: {record['trouble']}")]
            )
    return table.getvalue()


def _cell(text: str) -> str:
    """A spreadsheet takes text that begins so for a formula, and runs it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def junit(records: list[dict]) -> str:
    """JUnit XML of the class; a student who could not be graded is one case with an error."""
    suites = ElementTree.Element("testsuites")
    for record in records:
        if record["result"]:
            suites.append(report.suite(record["result"], record["student"]))
        else:
            name = report.xml_safe(record["student"])
            suite = ElementTree.SubElement(
                suites, "testsuite", name=name, tests="1", failures="0", errors="1"
            )
            case = ElementTree.SubElement(suite, "testcase", classname=name, name="grading")
            ElementTree.SubElement(
                case, "error", type="not graded", message=report.xml_safe(record["trouble"])
            )
    return report.to_text(suites)


def page(student: str, result: dict) -> str:
    """One student's page. Whatever a notebook made a message say is text here, not markup."""
    rows = []
    for row in result["exercises"]:
        parts = [row["status"]]
        parts += [row["message"]] if row["message"] != row["status"] else []
        parts += [f"Usual cause: {row['hint']}"] if row["hint"] else []
        text = "<br>".join(html.escape(part) for part in parts if part)
        score = f"{row['points']:g} of {row['max_points']}{' bonus' if row['bonus'] else ''}"
        style = "all" if row["points"] == row["max_points"] else "some"
        rows.append(
            f'<tr><td>{html.escape(row["id"])}</td><td class="points '
            f'{style}">{score}</td><td>{text}</td></tr>'
        )
    mine = [note for note in result["notes"] if not note.startswith(LOOK)]
    notes = "".join(f"<li>{html.escape(note)}</li>\n" for note in mine)
    return PAGE.format(
        lab=html.escape(result["lab"]), student=html.escape(student), points=result["points"],
        max_points=result["max_points"], rows="\n".join(rows),
        notes=f"<ul>\n{notes}</ul>" if notes else "",
    )  # fmt: skip
