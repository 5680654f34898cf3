"""Grades a class. Each submission is graded once, in a process of its own, several at a time.

    submissions/  --one `python -m lib.course grade` each-->  out/students/alice.json  (result, key)
                                                              out/points.csv, ...      (tables.py)

The key of a record is a hash of all that the points depend on (submissions.py). A student whose
record has the current key is not graded again. An interrupted run therefore continues where it
stopped, and after a check has been corrected, all students are graded again. The records contain no
paths or process ids, and the only time in them is how many minutes grading took, rounded up.
Therefore two runs on the same folder nearly always give the same bytes. Submissions are only read.
"""

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from . import grade, notebook, sandbox, submissions, temporary
from .notebook import CourseError
from .submissions import Submission, Terms

AFTER_LIMIT = 120  # seconds that a grading process may take beyond its notebook's total limit
RUNNING = ".running-"  # prefix of a folder in `out` for results that are not stored yet
POLL = 0.1  # seconds between two checks of the running processes


def grade_class(folder: Path, out: Path, terms: Terms, jobs: int) -> list[dict]:
    """Grade all submissions in `folder`, `jobs` at a time; returns their records, by student.

    A record is {"student", "key", "result" (see grade.grade_notebook), "trouble", "minutes" (that
    grading took, rounded up)}. If the grader itself failed, "result" is None, "trouble" says why,
    and the next run tries again. Raises CourseError if `out` is inside `folder`, or if
    `submissions.find` does.
    """
    folder, out = folder.resolve(), out.resolve()
    if out.is_relative_to(folder):
        raise CourseError(f"--out {out} lies inside the submissions: choose another folder")
    for killed in out.glob(f"{RUNNING}*"):
        shutil.rmtree(killed, ignore_errors=True)
    class_ = submissions.find(folder, terms.lab)
    version = submissions.version(terms)
    keys = {one.student: submissions.key(one, version) for one in class_}
    students = out / "students"
    students.mkdir(parents=True, exist_ok=True)
    records = {one.student: _finished(students, one.student, keys[one.student]) for one in class_}
    waiting = [one for one in class_ if records[one.student] is None]
    with tqdm(
        total=len(class_), initial=len(class_) - len(waiting), desc=terms.lab, unit=" notebooks"
    ) as bar:
        for one, result, trouble, minutes in _graded(waiting, folder, out, terms, jobs):
            record = {
                "student": one.student,
                "key": keys[one.student],
                "result": result,
                "trouble": trouble,
                "minutes": minutes,
            }
            records[one.student] = record
            if result is not None:
                write(
                    students / f"{one.student}.json",
                    json.dumps(record, indent=1, sort_keys=True) + "\n",
                )
            bar.update()
    return [records[one.student] for one in class_]


def write(path: Path, text: str) -> None:
    """Write `text` in one step, so that no other process sees a file that is half written."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8", newline="")
    os.replace(part, path)


def _finished(students: Path, student: str, wanted: str) -> dict | None:
    """The record of a student who was graded under this key, else None."""
    try:
        record = json.loads((students / f"{student}.json").read_text(encoding="utf-8"))
        return record if record["key"] == wanted and record["student"] == student else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class _Job:
    """One notebook that is being graded. answer: the file for its result; what the process prints
    to stderr goes to a file next to it."""

    one: Submission
    answer: Path
    process: subprocess.Popen
    deadline: float


def _graded(
    waiting: list[Submission], folder: Path, out: Path, terms: Terms, jobs: int
) -> Iterator[tuple[Submission, dict | None, str, int]]:
    """Yield (submission, result or None, trouble, minutes) as gradings finish. If an error occurs,
    the processes that are still running are ended."""
    for one in waiting:
        if one.path is None:
            yield one, grade.nothing(terms.lab, terms.root, one.trouble), "", 0
    left = [one for one in waiting if one.path]
    running: list[_Job] = []
    with temporary.folder(RUNNING, out) as home:
        try:
            while left or running:
                while left and len(running) < jobs:
                    answer = home / f"{len(left)}.json"
                    running.append(_start(left.pop(0), answer, [folder, out], terms))
                time.sleep(POLL)
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    began = job.deadline - terms.total_timeout - AFTER_LIMIT
                    yield job.one, *_outcome(job), math.ceil((time.monotonic() - began) / 60)
                for job in running:
                    if time.monotonic() > job.deadline:
                        _end(job)
        finally:
            for job in running:
                # first signal all of them, because each needs a moment to end what it started
                job.process.terminate()
            for job in running:
                _end(job)


def _start(one: Submission, answer: Path, hidden: list[Path], terms: Terms) -> _Job:
    """Start grading one notebook, in a session of its own. Ctrl-C then reaches only this process,
    which can end the grading in an orderly way.

    If this process is killed, the standard input of the new one closes. The new process then ends
    itself and everything that it has started.
    """
    command = [
        sys.executable,
        "-m",
        "lib.course",
        "--root",
        terms.root,
        "grade",
        one.path,
        "--lab",
        terms.lab,
    ]
    command += [
        "--json",
        answer,
        "--limits",
        json.dumps(asdict(terms.limits)),
        "--while-stdin-is-open",
    ]
    command += ["--sandbox", sandbox.held(terms.sandbox).how]
    command += [
        "--cell-timeout",
        str(terms.cell_timeout),
        "--total-timeout",
        str(terms.total_timeout),
    ]
    for folder in hidden:
        command += ["--hide", folder]
    path = os.pathsep.join(filter(None, [str(notebook.ROOT), os.environ.get("PYTHONPATH")]))
    with answer.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log, start_new_session=True,
        )  # fmt: skip
    return _Job(one, answer, process, time.monotonic() + terms.total_timeout + AFTER_LIMIT)


def _end(job: _Job) -> None:
    """End one grading process. It first ends what it has started; if it can no longer do that, its
    supervisor does."""
    job.process.terminate()
    job.process.stdin.close()
    try:
        job.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        job.process.kill()
        job.process.wait()


def _outcome(job: _Job) -> tuple[dict | None, str]:
    """(result, "") of a process that has ended, or (None, why there is no result)."""
    if job.process.returncode == 0:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(job.answer.read_text(encoding="utf-8")), ""
    said = job.answer.with_suffix(".log").read_text(encoding="utf-8", errors="replace").strip()
    return None, grade.plain(said[-400:]) or f"the grader ended with code {job.process.returncode}"
