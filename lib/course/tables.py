"""Writes the results of a class into files: for the teacher, for learning platforms, and for each
student.

    points.csv       a row per student: id, name, points, bonus, max_points, percent, status,
                     minutes, a column per exercise, notes
    points.json      the records of all students (classroom.py), with failing claims and hints
    summary.html     the class at a glance (summary.py)
    junit.xml        a suite per student, a case per exercise
    canvas.csv       for Canvas's Gradebook > Import, if the files have Canvas's names
    moodle.csv       for Moodle's "Upload grading worksheet", if the files have Moodle's names
    feedback/NAME.html       for the student (feedback.py)
    gradescope/NAME.json     results.json of Gradescope (gradescope.py)

The statuses are: graded; unreadable (0 points, and "notes" says why); killed (the kernel died
during an exercise); tampered with (somebody should look at it); not graded (the grader failed).
", late by ..." follows if the notebook was handed in after --due, and ", late" if only Canvas says
that it is late.
"""

import csv
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from . import feedback, gradescope, report, summary
from .classroom import write
from .grade import LOOK
from .people import Person

# a byte order mark, without which Excel does not read the file as UTF-8
MARK = "\ufeff"


def write_all(records: list[dict], people: Mapping[str, Person], out: Path, says: str) -> None:
    """Write all files into `out`, and remove those of an earlier run. says: the sandbox that was
    used, in words."""
    texts = {
        "points.csv": points_csv(records, people),
        "points.json": json.dumps(
            {"isolation": says, "students": records}, indent=1, sort_keys=True
        )
        + "\n",
        "summary.html": summary.page(records, {r["student"]: status(r) for r in records}),
        "junit.xml": junit(records),
        "canvas.csv": canvas_csv(records, people),
        "moodle.csv": moodle_csv(records, people),
    }
    for name, text in texts.items():
        if text:
            write(out / name, text)
        else:
            (out / name).unlink(missing_ok=True)
    for folder, ending, text in (
        ("feedback", "html", lambda r, name: feedback.page(name, r["result"])),
        ("gradescope", "json", lambda r, _: gradescope.results(r["result"])),
    ):
        shutil.rmtree(out / folder, ignore_errors=True)
        (out / folder).mkdir()
        for record in records:
            if record["result"]:
                one = people[record["student"]]
                to = out / folder / f"{record['student']}.{ending}"
                write(to, text(record, one.name or one.id))


def points_csv(records: list[dict], people: Mapping[str, Person]) -> str:
    """The text of points.csv. If a notebook cannot be read, its columns of exercises stay empty. If
    it could not be graded, so do the columns of points."""
    graded = [record["result"] for record in records if record["result"]]
    exercises = [row["id"] for row in graded[0]["exercises"]] if graded else []
    head = ["id", "name", "points", "bonus", "max_points", "percent", "status", "minutes"]
    rows = [[*head, *exercises, "notes"]]
    for record in records:
        one, result = people[record["student"]], record["result"]
        points = [""] * 4
        if result:
            bonus = sum(row["points"] for row in result["exercises"] if row["bonus"])
            share = 100 * result["points"] / max(1, result["max_points"])
            points = [f"{result['points']:g}", f"{bonus:g}", result["max_points"], f"{share:.1f}"]
        by_exercise = [""] * len(exercises)
        if result and "unreadable" not in result:
            by_exercise = [f"{row['points']:g}" for row in result["exercises"]]
        late = f", {one.late.split(',')[0]}" if one.late else ""
        rows.append(
            [_cell(one.id), _cell(one.name), *points, status(record) + late, record["minutes"],
             *by_exercise, _cell("; ".join(_notes(record)))]
        )  # fmt: skip
    return MARK + _csv(rows)


def status(record: dict) -> str:
    """The status of this notebook, one of those in the module's docstring."""
    result = record["result"]
    if not result:
        return "not graded"
    if "unreadable" in result:
        return "unreadable"
    if any(note.startswith(LOOK) for note in result["notes"]):
        return "tampered with"
    return "killed" if _died(result) else "graded"


def _died(result):
    return [row["id"] for row in result["exercises"] if row["status"] == "kernel died"]


def _notes(record):
    """What a teacher should know about a student's notebook."""
    result = record["result"]
    if not result:
        return [f"not graded: {record['trouble']}"]
    if "unreadable" in result:
        return [f"unreadable: {result['unreadable']}"]
    notes = [note.removeprefix(LOOK) for note in result["notes"] if note.startswith(LOOK)]
    missing = [row["id"] for row in result["exercises"] if row["status"] == "missing"]
    notes += [f"not in the notebook: {', '.join(missing)}"] if missing else []
    died = _died(result)
    return notes + ([f"the kernel died in: {', '.join(died)}"] if died else [])


def _cell(text: str) -> str:
    """The text, quoted if a spreadsheet would take it for a formula and run it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _csv(rows) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue()


def canvas_csv(records: list[dict], people: Mapping[str, Person]) -> str:
    """The text of canvas.csv; "" if no graded file has one of Canvas's names. Canvas finds a
    student by ID, and creates the assignment's column if there is none with the lab's name."""
    mine = _of(records, people, "Canvas")
    if not mine:
        return ""
    lab, most = mine[0][1]["result"]["lab"], mine[0][1]["result"]["max_points"]
    rows = [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", lab],
        ["    Points Possible", "", "", "", "", most],
    ]
    for one, record in mine:
        rows.append([_cell(one.name), one.id, "", "", "", f"{record['result']['points']:g}"])
    return _csv(rows)


def moodle_csv(records: list[dict], people: Mapping[str, Person]) -> str:
    """The text of moodle.csv, with the columns of Moodle's grading worksheet that an upload needs;
    "" if no graded file has one of Moodle's names."""
    mine = _of(records, people, "Moodle")
    if not mine:
        return ""
    rows = [["Identifier", "Full name", "Grade", "Maximum Grade", "Feedback comments"]]
    for one, record in mine:
        result = record["result"]
        told = [
            f"{row['title']}: {row['message']}"
            for row in result["exercises"]
            if row["points"] < row["max_points"] and row["message"]
        ]
        rows.append(
            [f"Participant {one.id}", _cell(one.name), f"{result['points']:g}",
             result["max_points"], _cell("\n".join(told))]
        )  # fmt: skip
    return MARK + _csv(rows)


def _of(records, people, platform):
    both = [(people[record["student"]], record) for record in records if record["result"]]
    return [(one, record) for one, record in both if one.platform == platform]


def junit(records: list[dict]) -> str:
    """JUnit XML of the class. A student who could not be graded becomes one case with an error."""
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
