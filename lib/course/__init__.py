"""Everything around a notebook that is not its content: generate, execute, validate, grade.

    solutions/lab0_*.ipynb  --execute-->  same file, with outputs  (the single source of truth)
                            --build---->  labs/lab0_*.ipynb        (what students get)
                            --open----->  labs/mine/lab0_*.ipynb   (a student's own, never replaced)
    a student's notebook    --grade---->  points per exercise, as a table, JSON and JUnit XML
    a folder of them        --grade---->  the same for a class, and a page of feedback each

`python -m lib.course --help` lists the commands. Nothing here imports torch.

notebook.py build.py execute.py            notebooks as data; students' from ours; outputs stored
validate.py lint.py reach.py               a lab is sound: five proofs; the rules of the first;
                                           what answers reach
nbval_run.py nbval_plugin.py temporary.py  a notebook run by nbval, in its own process and folder
core.py hours.py                           what is not optional; how long it takes a student
mine.py carry.py edition.py answers.py     a student's copy, brought to a new edition;
                                           whose cells answer what
grade.py merge.py report.py                one notebook: answers put into ours, points, a table
output_cap.py tamper.py                    in its kernel: endless output, signs of a forged report
classroom.py submissions.py people.py      a class: who handed in what and when, some at a time
tables.py summary.py                       what its teacher gets, and learning platforms import
feedback.py gradescope.py                  what a student gets, here and on Gradescope
sandbox.py supervisor.py namespaces.py     the sandbox: what is asked, who holds it, namespaces
install.py publish.py                      what make setup runs;
                                           where the repository's address is shown
release.py strip_solutions.py bytecode.py  a folder for students: what is left out, compiled;
                                           bundle/ beside
packages.py layers.py                      the picture of lib's packages
book/                                      the labs as pages for a browser
"""

import sys

# Importing nbformat would have jsonschema build a grammar of web addresses, a second of work in
# every process that is started here. It does without where that module is missing; no notebook is
# checked for them.
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
