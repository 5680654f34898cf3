"""A grader that is killed at any moment leaves no process, and the next one goes on: the
same bytes as in one go."""

import contextlib
import csv
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import class_of_sixty
import own_processes
import pytest
from class_tools import hand_in, solved

STUDENTS, KILLS, SEED = 60, 5, 28
# in JSON, and in the column of points.csv after the status
MINUTES = re.compile(rb'("minutes": |,(?:graded|killed|unreadable|tampered with),)\d+')
LIMITS = {"processes": 300, "files": 200_000_000}


@functools.cache
def temporary_of(out):
    """A folder with a short path, as that of most machines: ranks have sockets there."""
    folder = Path(tempfile.mkdtemp(prefix="lab-"))
    folder.chmod(0o755)  # a notebook runs as a user of its own
    return folder


@contextlib.contextmanager
def grader(root, folder, out, *options):
    """The command that grades `folder` into `out`, with a temporary folder of its own;
    whatever it is, it ends."""
    command = [sys.executable, "-m", "lib.course", "--root", root, "grade", folder, "--out", out]
    with open(out.with_name("said"), "a+") as said:
        env = {**os.environ, "TMPDIR": str(temporary_of(out))}
        process = subprocess.Popen(
            [*command, "--jobs", "2", *options], env=env, stdout=said, stderr=said
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def graded(root, folder, out, *options):
    with grader(root, folder, out, *options) as process:
        assert process.wait() == 0, out.with_name("said").read_text()[-3000:]


def killed(root, folder, out, finished, seconds, *options):
    """Kill the grader `seconds` after as many students are finished; what it
    started has to go by itself."""
    with grader(root, folder, out, *options) as process:
        while process.poll() is None and len([*out.glob("students/*.json")]) < finished:
            time.sleep(0.05)
        time.sleep(seconds)
        assert process.poll() is None, "it had finished before it was killed"
    for mark in (str(temporary_of(out)), str(out), class_of_sixty.LEFT):
        assert own_processes.left(mark) == []
    assert not [path for path in temporary_of(out).rglob("*") if not path.is_dir()]


def files(out):
    """{path: its bytes}, but for the minutes that grading took, which a busy machine changes."""
    return {
        str(path.relative_to(out)): MINUTES.sub(rb"\1minutes", path.read_bytes())
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def folders(tmp_path):
    """Two folders for results, each in one of its own."""
    outs = [tmp_path / name / "report" for name in ("whole", "killed")]
    for out in outs:
        out.parent.mkdir()
    yield outs
    for out in outs:
        shutil.rmtree(temporary_of(out), ignore_errors=True)


@pytest.mark.slow
def test_a_class_whose_grader_is_killed_gets_the_same_bytes(toy_root, tmp_path, unsolved, folders):
    folder = hand_in(
        tmp_path / "in", a=solved(unsolved), b=solved(unsolved, double="double = 1"), c=b"{"
    )
    whole, resumed = folders
    graded(toy_root, folder, whole, "--lab", "9")
    killed(toy_root, folder, resumed, 1, 0.2, "--lab", "9")
    graded(toy_root, folder, resumed, "--lab", "9")
    assert files(whole) == files(resumed) and len(files(whole)) == 3 + 4 + 3 + 3


@pytest.mark.slow
def test_a_class_of_60_killed_five_times_gets_the_same_bytes(tmp_path, folders):
    whole, resumed = folders
    root, folder = tmp_path / "course", tmp_path / "submissions"
    points = class_of_sixty.hand_in(
        folder, class_of_sixty.course(root), root, whole, STUDENTS, SEED
    )
    options = ["--lab", "0", "--limits", json.dumps(LIMITS), "--cell-timeout", "900"]
    graded(root, folder, whole, *options)
    draw = random.Random(SEED)
    for finished in sorted(draw.sample(range(STUDENTS - 3), KILLS)):
        killed(root, folder, resumed, finished, draw.uniform(0, 4), *options)
    graded(root, folder, resumed, *options)
    assert files(whole) == files(resumed)
    text = (whole / "points.csv").read_text("utf-8-sig")
    rows = {row[0]: row for row in csv.reader(text.splitlines())}
    assert len(rows) == 1 + STUDENTS
    for student, known in points.items():
        given = [float(cell or 0) for cell in rows[student][8:11]]
        assert all(is_ in (None, was) for is_, was in zip(known, given, strict=True)), (
            student,
            known,
            rows[student],
        )
    assert all(
        "Cell outputs differ" not in path.read_text() for path in whole.glob("feedback/*.html")
    )
    assert own_processes.running(class_of_sixty.LEFT) == []
