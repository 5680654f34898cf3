"""Generates, executes, validates and grades the notebooks. The package contains everything about
them except their content.

We write only the solution notebooks by hand, and make all others from them.

    solutions/lab0_*.ipynb  --execute-->  the same file, with outputs
                            --build---->  labs/lab0_*.ipynb        (what students get)
    labs/lab0_*.ipynb       --open----->  labs/mine/lab0_*.ipynb   (a student's copy)
    a student's notebook    --grade---->  points per exercise, as a table, JSON and JUnit XML
    a folder of them        --grade---->  the same for a class, and a feedback page per student

`python -m lib.course --help` lists the commands. Nothing here imports torch.

notebook.py build.py execute.py            notebooks as data; makes the students' notebooks;
                                           stores outputs
validate.py lint.py reach.py               proves that a lab is sound; the rules of its first check;
                                           which cells an answer can reach
nbval_run.py nbval_plugin.py temporary.py  runs a notebook with nbval; adds what nbval lacks;
                                           temporary folders
core.py hours.py                           which sections are optional; how long a lab takes
mine.py carry.py edition.py answers.py     a student's copy; merges it with a new edition; finds
                                           which edition it is; finds the answer to an exercise
grade.py merge.py report.py                grades one notebook; puts its answers into ours;
                                           prints the points
output_cap.py tamper.py                    in the graded kernel: stops endless output, and looks
                                           for signs of a forged report
classroom.py submissions.py people.py      grades a class; finds the submissions; finds out who
                                           handed in which file, and when
tables.py summary.py                       what a teacher gets: tables, also for learning platforms,
                                           and a page that summarizes the class
feedback.py gradescope.py                  what a student gets, here and on Gradescope
sandbox.py supervisor.py namespaces.py     the sandbox: chooses it; runs a command in it; Linux's
                                           namespaces
install.py publish.py                      what `make setup` runs; where the repository's address
                                           is shown
release.py strip_solutions.py bytecode.py  writes the folder for students (bundle/ has files for
                                           it); takes solutions out of lib; compiles them
packages.py layers.py                      draws the graph of lib's packages; lays it out
book/                                      the labs as pages for a browser
"""

import sys

# When nbformat is imported, jsonschema builds a grammar of web addresses, which takes a second in
# every process that we start. It skips this step if the module below is missing. We lose nothing,
# because no notebook is checked for web addresses.
sys.modules.setdefault("rfc3987_syntax", None)

__all__ = [
    "answers",
    "book",
    "build",
    "bytecode",
    "carry",
    "classroom",
    "core",
    "edition",
    "execute",
    "feedback",
    "grade",
    "hours",
    "install",
    "layers",
    "lint",
    "merge",
    "mine",
    "namespaces",
    "nbval_plugin",
    "nbval_run",
    "notebook",
    "output_cap",
    "packages",
    "publish",
    "reach",
    "release",
    "report",
    "sandbox",
    "strip_solutions",
    "submissions",
    "supervisor",
    "tamper",
    "temporary",
    "validate",
]  # fmt: skip
