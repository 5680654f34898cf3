"""Writes a lab as an autograder for Gradescope, and a grading result in the form that Gradescope
reads: `python -m lib.course gradescope autograder.zip --lab 0`.

    autograder.zip/setup.sh          run once, when Gradescope builds the image: installs the course
    autograder.zip/run_autograder    run for each submission
    autograder.zip/course/           lib, the lab's solution, and what installs them

    /autograder/submission/*.ipynb   ->   /autograder/results/results.json

Source: Gradescope's documentation of autograders, "Autograder Specifications" and "Technical
Details".
"""

import json
import zipfile
from pathlib import Path

from . import notebook
from .feedback import NOT_TRIED
from .grade import LOOK

SETUP = """#!/usr/bin/env bash
set -e
apt-get update -qq
apt-get install -y -qq make bubblewrap python3-venv python3-dev
make -C /autograder/source/course setup
"""
RUN = """#!/usr/bin/env bash
cd /autograder/source/course
.venv/bin/python -m lib.course grade /autograder/submission --lab {lab} \\
    --gradescope /autograder/results/results.json
"""
# what grading needs of the course, besides lib and the lab's solution
FILES = ("Makefile", "pyproject.toml", "README.md", "LICENSE")


def results(result: dict) -> str:
    """A grading result (grade.grade_notebook) as Gradescope's results.json: a test per exercise."""
    tests = []
    for row in result["exercises"]:
        told = [row["status"], row["message"] if row["message"] != row["status"] else ""]
        told += [f"{part['id']}: {part['message']}" for part in row["parts"]]
        told += [row["hint"]] if row["hint"] else []
        tests.append(
            {
                "name": row["title"] + (" (bonus)" if row["bonus"] else ""),
                "score": row["points"],
                "max_score": row["max_points"],
                "status": "passed" if row["points"] == row["max_points"] else "failed",
                "output": "\n".join(filter(None, told)),
                "output_format": "text",
                "tags": ["not tried"] if row["status"] in NOT_TRIED else [],
            }
        )
    notes = [note for note in result["notes"] if not note.startswith(LOOK)]
    whole = {
        "score": result["points"],
        "output": "\n".join(notes),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def write(root: Path, lab: str, out: Path) -> None:
    """Write the autograder of one lab: the zip file `out`, for upload."""
    (lab,) = notebook.labs(root, [lab])
    lib = [path for path in sorted((root / "lib").rglob("*")) if "__pycache__" not in path.parts]
    files = [*(root / name for name in FILES), *lib, notebook.solution_path(root, lab)]
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("setup.sh", SETUP), ("run_autograder", RUN.format(lab=lab))):
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o755 << 16
            archive.writestr(info, text)
        for path in files:
            if path.is_file():
                archive.write(path, Path("course") / path.relative_to(root))
