"""Turns a grading result (the dict that grade.grade_notebook returns) into a table, and into JUnit
XML for programs.

JSON needs no code here, because the result is plain data.
"""

import re
from xml.etree import ElementTree

NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def table(result: dict) -> str:
    """The result as text: for each exercise its points, status and message, then the notes. The
    last line is `X of Y points`."""
    rows = result["exercises"]
    scores = [
        f"{row['points']:g} of {row['max_points']}" + (" bonus" if row["bonus"] else "")
        for row in rows
    ]
    wide, far = (
        max(map(len, column), default=0) for column in ([row["id"] for row in rows], scores)
    )
    lines = [result["lab"]]
    for row, score in zip(rows, scores, strict=True):
        lines.append(f"  {row['id']:{wide}}  {score:>{far}}   {row['status']}")
        if row["message"] and row["message"] != row["status"]:
            lines.append(f"      {row['message']}")
    lines += [f"  note: {note}" for note in result["notes"]]
    lines.append(f"{result['points']:g} of {result['max_points']} points")
    return "\n".join(lines)


def junit(result: dict) -> str:
    """JUnit XML of one result."""
    return to_text(suite(result, result["lab"]))


def suite(result: dict, name: str) -> ElementTree.Element:
    """A JUnit test suite: one test case per exercise, with a failure or an error unless it earned
    all its points.

    The points are properties of the suite and of each case, because JUnit itself has no points.
    """
    rows = result["exercises"]
    broken = [row for row in rows if row["status"] not in ("passed", "failed", "not written yet")]
    failed = [row for row in rows if row["status"] in ("failed", "not written yet")]
    counts = {"tests": len(rows), "failures": len(failed), "errors": len(broken)}
    whole = ElementTree.Element(
        "testsuite", name=xml_safe(name), **{key: str(n) for key, n in counts.items()}
    )
    _properties(whole, points=result["points"], max_points=result["max_points"])
    for row in rows:
        case = ElementTree.SubElement(whole, "testcase", classname=result["lab"], name=row["id"])
        _properties(case, points=row["points"], max_points=row["max_points"])
        if row["status"] != "passed":
            kind = "error" if row in broken else "failure"
            ElementTree.SubElement(case, kind, type=row["status"], message=xml_safe(row["message"]))
    if result["notes"]:
        ElementTree.SubElement(whole, "system-out").text = xml_safe("\n".join(result["notes"]))
    return whole


def xml_safe(text: str) -> str:
    """`text` with a question mark for each character that XML cannot contain."""
    return NOT_IN_XML.sub("?", text)


def to_text(element: ElementTree.Element) -> str:
    """XML as it is written to a file."""
    ElementTree.indent(element)
    return ElementTree.tostring(element, encoding="unicode", xml_declaration=True) + "\n"


def _properties(element: ElementTree.Element, **values: float) -> None:
    properties = ElementTree.SubElement(element, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=f"{value:g}")
