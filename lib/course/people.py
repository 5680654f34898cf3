"""Finds out who handed in a notebook, and when, from the name that the learning platform gives to
the file.

    Moodle     Lee Ann_1234_assignsubmission_file/lab.ipynb     Lee Ann, participant 1234
    Canvas     leeann_LATE_4711_90210_lab.ipynb                 leeann, user 4711, late
    nbgrader   alice/lab0_concepts/lab0_concepts.ipynb          alice; timestamp.txt says when
    else       alice.ipynb                                      alice

If nbgrader's timestamp.txt is next to the file, it says when the file was handed in. Otherwise the
file's modification time does, which the archives of Moodle and nbgrader preserve.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MOODLE = re.compile(r"(?P<name>.+)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)(?:_.*)?")
CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_\d+_.+")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Person:
    """A student. platform: "Moodle", "Canvas" or "". late: how late the notebook is, in words; ""
    if neither --due nor Canvas says that it is late."""

    id: str
    name: str
    platform: str = ""
    late: str = ""


def person(student: str, path: Path | None = None, due: datetime | None = None) -> Person:
    """The person behind a file or a folder of this name. due: when the lab was due."""
    found = MOODLE.fullmatch(student) or CANVAS.fullmatch(student)
    late = _late(path, due) if path and due else ""
    if not found:
        return Person(student, "", "", late)
    platform = "Moodle" if found.re is MOODLE else "Canvas"
    if platform == "Canvas" and found["late"] and not late:
        late = "late, says Canvas"
    return Person(found["id"], found["name"], platform, late)


def _late(path: Path, due: datetime) -> str:
    after = (_handed_in(path) - due).total_seconds()
    if after <= 0:
        return ""
    days, minutes = divmod(int(after // 60), 24 * 60)
    parts = [(days, "d"), (minutes // 60, "h"), (minutes % 60, "min")]
    return "late by " + (" ".join(f"{n} {unit}" for n, unit in parts if n) or "less than 1 min")


def _handed_in(path: Path) -> datetime:
    """The time in timestamp.txt, which nbgrader writes in UTC, or else the file's modification
    time."""
    stamp = path.parent / "timestamp.txt"
    found = STAMP.search(stamp.read_text(errors="replace")) if stamp.is_file() else None
    if found:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
