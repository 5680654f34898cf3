"""`python -m lib.course <command>`: among others, the commands behind `make notebooks`, `make
validate` and `make grade`.

The exit code is 0 if the command did its work, however many points a graded notebook gets. It is 1
if something failed, which a message then names; 2 for a wrong command line; 130 if the command was
interrupted; and 143 if it was told to stop (SIGTERM).
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

from . import (
    book,
    build,
    classroom,
    execute,
    grade,
    gradescope,
    hours,
    notebook,
    packages,
    people,
    publish,
    release,
    report,
    sandbox,
    submissions,
    tables,
    temporary,
    validate,
)
from .notebook import CourseError

# How many labs are validated at the same time. With three, the machine is so busy that measurements
# are repeated again and again.
AT_A_TIME = 2


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m lib.course", description="Generate, validate and grade the labs."
    )
    top.add_argument(
        "--root", type=Path, default=notebook.ROOT, help="folder with solutions/ and labs/"
    )
    commands = top.add_subparsers(dest="command", required=True)
    for name, what in (
        ("build", "generate labs/*.ipynb from solutions/*.ipynb"),
        ("execute", "execute solutions/*.ipynb and store their outputs"),
        ("validate", "prove that the labs are sound"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument(
            "labs", nargs="*", metavar="LAB", help="0, lab0 or lab0_concepts; default: every lab"
        )
        if name == "validate":
            command.add_argument(
                "--whole", action="store_true", help="with what `make test` leaves out"
            )
    what = "grade one notebook, or a folder of them"
    command = commands.add_parser("grade", help=what, description=what)
    command.add_argument(
        "notebook", nargs="?", type=Path, metavar="PATH", help="default: labs/mine/, else labs/"
    )
    command.add_argument("--lab", required=True, help="0, lab0 or lab0_concepts")
    command.add_argument("--json", type=Path, help="write the result here, as JSON")
    command.add_argument("--junit", type=Path, help="write the result here, as JUnit XML")
    command.add_argument(
        "--gradescope", type=Path, metavar="PATH", help="write it as Gradescope's results.json"
    )
    command.add_argument(
        "--due",
        type=due,
        metavar="TIME",
        help="of a folder: when it was due, as in 2026-11-30T23:59; later notebooks are marked",
    )
    command.add_argument(
        "--cell-timeout",
        type=float,
        default=grade.CELL_TIMEOUT,
        metavar="S",
        help="seconds per cell",
    )
    command.add_argument(
        "--total-timeout",
        type=float,
        default=grade.TOTAL_TIMEOUT,
        metavar="S",
        help="seconds in all",
    )
    command.add_argument(
        "--out", type=Path, help="of a folder: where results and feedback go; also what is resumed"
    )
    command.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="of a folder: notebooks at a time"
    )
    command.add_argument(
        "--limits",
        type=json.loads,
        default={},
        metavar="JSON",
        help='such as {"memory": 2000000000}',
    )
    command.add_argument(
        "--hide", action="append", default=[], type=Path, help="a folder no notebook may look into"
    )
    what = "how notebooks are shut in; default: the strongest that works here"
    command.add_argument("--sandbox", choices=["bubblewrap", "sealed", "open"], help=what)
    # see classroom._start
    command.add_argument("--while-stdin-is-open", action="store_true", help=argparse.SUPPRESS)
    command = commands.add_parser(
        "release", help="write a student bundle", description="Write a student bundle."
    )
    command.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
    command.add_argument(
        "--lab", action="append", metavar="LAB", help="0, lab0 or lab0_concepts; default: every lab"
    )
    command.add_argument(
        "--with-reference",
        action="append",
        default=[],
        metavar="LAB",
        help="a lab that is over: lib has its source",
    )
    command.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="EXE",
        help="make it for this Python, too (python3.12)",
    )
    command = commands.add_parser(
        "book", help="the labs as pages for a browser", description="Write the book."
    )
    command.add_argument(
        "out", nargs="?", type=Path, metavar="OUT", help="written anew; default: build/book"
    )
    what = "write a lab as an autograder of Gradescope"
    command = commands.add_parser("gradescope", help=what, description=what)
    command.add_argument("out", type=Path, metavar="ZIP", help="the file to upload")
    command.add_argument("--lab", required=True, help="0, lab0 or lab0_concepts")
    what = "how long each lab takes a student, its core path and the whole of it"
    command = commands.add_parser("hours", help=what, description=what)
    command.add_argument("labs", nargs="*", metavar="LAB", help="0, lab0 or lab0_concepts")
    what = "run the cells again whose runs the book's animations show"
    commands.add_parser("record", help=what, description=what)
    what = f"draw lib's packages and what they import: lib/{packages.NAME}"
    commands.add_parser("packages", help=what, description=what)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code. An error that a person has to fix is
    printed to stderr."""
    args = parser().parse_args(argv)
    try:
        return run(args)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in notebook.REFUSALS:
            raise
        print(f"error: {notebook.refusal(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # the processes that we started have already been ended
        class_ = args.command == "grade" and args.out
        go_on = ": run the same command again, and it continues where it stopped"
        print(f"stopped{go_on if class_ else ''}", file=sys.stderr)
        return 130


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks, and return the exit code."""
    root = args.root.resolve()
    if args.command == "grade":
        return run_grade(args, root)
    if args.command == "release":
        return run_release(args, root)
    if args.command == "book":
        out = (args.out or root / "build" / "book").resolve()
        print(f"{book.make(root, out)} pages: open {out / 'index.html'} in a browser")
        return 0
    if args.command == "gradescope":
        gradescope.write(root, args.lab, args.out)
        print(f"{args.out} written: upload it as the autograder of a programming assignment")
        return 0
    if args.command == "record":
        book.runs.record(root, list(book.runs.RUNS))
        return 0
    if args.command == "packages":
        print(f"lib/{packages.NAME} {'written' if packages.write(root / 'lib') else 'unchanged'}")
        return 0
    labs = notebook.labs(root, args.labs)
    if args.command == "hours":
        print(hours.table(root, labs))
        return 0
    if args.command == "validate":
        if len(labs) > 1:
            sound = side_by_side(root, labs, ["--whole"] if args.whole else [])
        else:
            sound = [validate.validate(root, lab, whole=args.whole) for lab in labs]
        orphans = validate.orphans(root) if labs == notebook.labs(root) else []
        print(*orphans, sep="\n", end="\n" if orphans else "")
        unsound = [lab for lab, is_sound in zip(labs, sound, strict=True) if not is_sound]
        if len(labs) > 1:
            print(
                f"not sound, see above: {', '.join(unsound)}"
                if unsound
                else f"all {len(labs)} labs are sound"
            )
        return 1 if unsound or orphans else 0
    if args.command == "build":
        told = [(f"labs/{lab}.ipynb", changed) for lab, changed in build.build(root, *labs).items()]
        told += [(name, True) for name in publish.write(root)]
    else:
        told = ((f"solutions/{lab}.ipynb", execute.execute(root, lab)) for lab in labs)
    for name, changed in told:
        print(f"{name} {'written' if changed else 'unchanged'}", flush=True)
    return 0


def side_by_side(root: Path, labs: list[str], options: list[str]) -> list[bool]:
    """Validate each lab in a process of its own, AT_A_TIME of them at once, because a notebook
    mostly waits for its ranks.

    The output of a sound lab is printed when its validation is done. That of the other labs is
    printed at the end, because people look there first. Returns for each lab whether it is sound.
    """
    processes, told, to_come, last = {}, set(), [*range(len(labs))], []
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in labs]
        try:
            while len(told) < len(labs):
                running = sum(process.poll() is None for process in processes.values())
                ended = next(
                    (i for i in processes if i not in told and processes[i].poll() is not None),
                    None,
                )
                if to_come and running < AT_A_TIME:
                    # the later labs take longer, so none of them should run alone at the end
                    i = to_come.pop()
                    command = [
                        sys.executable,
                        "-m",
                        "lib.course",
                        "--root",
                        root,
                        "validate",
                        labs[i],
                        *options,
                    ]
                    processes[i] = subprocess.Popen(
                        command, stdout=outputs[i], stderr=subprocess.STDOUT
                    )
                elif ended is not None:
                    outputs[ended].seek(0)
                    text = outputs[ended].read()
                    told.add(ended)
                    if processes[ended].returncode:
                        last.append(text)
                    else:
                        print(text, end="", flush=True)
                else:
                    time.sleep(0.1)
        finally:
            for process in processes.values():
                process.terminate()  # does nothing if it has ended; else it ends what it started
                process.wait()
    print(*last, sep="", end="", flush=True)
    return [processes[i].returncode == 0 for i in range(len(labs))]


def run_grade(args: argparse.Namespace, root: Path) -> int:
    """Grade one notebook: print its table, and write the files that were asked for. A folder is
    passed on to run_class, except with --gradescope, where its only notebook is graded."""
    (lab,) = notebook.labs(root, [args.lab])
    own = notebook.own_path(root, lab)
    path = args.notebook or (own if own.exists() else notebook.lab_path(root, lab))
    limits = sandbox.Limits(**args.limits)
    if path.is_dir() and args.gradescope:
        path = one_notebook(path)
    if path.is_dir():
        terms = submissions.Terms(
            lab, root, args.cell_timeout, args.total_timeout, limits, args.sandbox
        )
        return run_class(args, terms)
    if args.while_stdin_is_open:
        threading.Thread(target=stop_when_stdin_closes, daemon=True).start()
    held = sandbox.held(args.sandbox)
    if not args.notebook:
        print(f"grading {path.relative_to(root)}")
    print(f"the notebook runs {held.says}", flush=True)
    result = grade.grade_notebook(
        lab, path, root, args.cell_timeout, args.total_timeout, limits, args.hide, held
    )
    print(report.table(result), flush=True)
    for target, text in (
        (args.json, json.dumps(result, indent=1) + "\n"),
        (args.junit, report.junit(result)),
        (args.gradescope, gradescope.results(result)),
    ):
        if target:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    return 0


def stop_when_stdin_closes() -> None:
    """Stop this process once its standard input closes, because then the process that started it
    has ended."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def due(text: str) -> datetime:
    """Parse a time in ISO 8601. A time without a zone is in this machine's zone."""
    return datetime.fromisoformat(text).astimezone()


def one_notebook(folder: Path) -> Path:
    """The only notebook in `folder`, into which Gradescope puts all files that a student uploads.
    Raises CourseError unless there is exactly one."""
    found = sorted(folder.rglob("*.ipynb"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise CourseError(f"{folder} should have one notebook, and has {len(found)}: {names}")
    return found[0]


def run_class(args: argparse.Namespace, terms: submissions.Terms) -> int:
    """Grade a folder of notebooks, and write the results into --out. Returns 1 if some could not be
    graded. They are printed, and the next run tries them again."""
    if not args.out:
        raise CourseError(f"{args.notebook} is a folder: say with --out where its results go")
    says = sandbox.held(terms.sandbox).says
    print(f"notebooks run {says}", flush=True)
    records = classroom.grade_class(args.notebook, args.out, terms, max(1, args.jobs))
    where = {one.student: one.path for one in submissions.find(args.notebook, terms.lab)}
    names = [record["student"] for record in records]  # files may have changed meanwhile
    whose = {name: people.person(name, where.get(name), args.due) for name in names}
    tables.write_all(records, whose, args.out, says)
    failed = [record for record in records if record["result"] is None]
    for record in failed:
        print(f"not graded: {record['student']}: {record['trouble']}")
    print(
        f"{len(records) - len(failed)} of {len(records)} graded: {args.out}/points.csv, and "
        f"summary.html for a look at the class"
    )
    return 1 if failed else 0


def run_release(args: argparse.Namespace, root: Path) -> int:
    """Write a student bundle, and say what is in it and what to try next."""
    over = notebook.labs(root, args.with_reference) if args.with_reference else []
    told = release.release(
        root, args.out.resolve(), notebook.labs(root, args.lab), over, args.python
    )
    print(f"{args.out}: {', '.join(told['labs'])}; for Python {' and '.join(told['pythons'])}")
    print(f"{len(told['withheld'])} exercises of lib as bytecode, no solutions, no hidden cases")
    print(f"try it: cd {args.out} && make test")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, temporary.stop)
    sys.exit(main())
