"""Grades one notebook: merges the answers into our own notebook, runs that with nbval, and collects
the points that its checks report. If an answer gets stuck, the rest is run again without it.

Each check appends a line with "points", "max_points" and "message" to the file LAB_REPORT. The last
such line that is appended while a check's cell runs belongs to that check, and counts up to the
points in the cell's metadata. An answer that hangs or kills the kernel would make all later
exercises fail. We therefore replace it by its stub, and run the notebook again in a fresh kernel:

    run 1   setup  A ok   B hangs                   -> B: timeout
    run 2   setup  A      B's stub   C ok   D ok    -> every other exercise keeps its points

Each exercise can be dropped once, and all runs together end at the total limit. Every run is in a
sandbox (sandbox.py). This cannot stop hostile code, because an answer runs in the same process as
its check and can forge a report line. A note "look by hand" names the signs of it: code that was
replaced (tamper.py), points that something other than the check reported, or a check that reports
all points and then raises.
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from . import answers, merge, nbval_run, notebook, sandbox, temporary
from .nbval_run import Cell
from .notebook import CourseError, Exercise

# the message of a check whose exercise still raises NotImplementedError
NOT_WRITTEN = "not written yet"
CELL_TIMEOUT, TOTAL_TIMEOUT = 180.0, 1800.0  # seconds
# nbval's message for a check whose output is not the stored one, which says "all points"
DIFFER = "Cell outputs differ"
UNDEFINED = re.compile(r"name '(\w+)' is not defined")
RAISED = re.compile(r"\brank \d+ raised ")
TOLD = ("message", "where")  # keys in the report of a bundle's part
LOOK = "look by hand: "  # the beginning of a note that is meant for the instructor
# what differs from run to run in a message: addresses, cells' file names, temporary folders
BY_CHANCE = re.compile(r"0x[0-9a-fA-F]{4,}|(?<=ipykernel_)\d+/\d+|[^\s'\"]*/lab-(?:run|grade)-\w+")


def grade_notebook(
    lab: str,
    path: Path,
    root: Path = notebook.ROOT,
    cell_timeout: float = CELL_TIMEOUT,
    total_timeout: float = TOTAL_TIMEOUT,
    limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008  (frozen)
    hidden: Sequence[Path] = (),
    held: sandbox.Held | None = None,
) -> dict:
    """Grade the notebook at `path` as a solution of `lab` ("0", "lab0" or "lab0_concepts").

    limits: the resources that its code may use. hidden: folders that appear empty to its code, in
    addition to the course's own, if the sandbox can hide folders. held: the sandbox, by default the
    strongest one that works here.

    Returns {"lab", "points", "max_points", "exercises": [{"id", "title", "points", "max_points",
    "bonus", "status", "message", "hint", "code": [the answer's cells], "parts": [of a bundle:
    {"id", "points", "max_points", "message", "hint"}]}], "notes": [str]}. A bonus exercise adds to
    "points" and not to "max_points". Statuses: "passed", "failed", "not written yet", "error",
    "timeout", "kernel died", "missing". A notebook that cannot be read, or is not one of this lab,
    earns 0 points, and the additional key "unreadable" says why. Raises CourseError if there is no
    file `path`, or if the grader itself cannot work.
    """
    (lab,) = notebook.labs(root, [lab])
    canonical = notebook.read(notebook.solution_path(root, lab))
    if problems := notebook.problems(canonical):
        raise CourseError(f"solutions/{lab}.ipynb, cell {problems[0][0]!r}: {problems[0][1]}")
    exercises = notebook.exercises(canonical)
    if not Path(path).is_file():
        raise CourseError(f"{path} is no file: name the notebook to grade")
    cells, trouble = answers.read_submission(Path(path))
    if trouble:
        return nothing(lab, root, trouble)
    merged = merge.merge(canonical, cells)
    if exercises and len(merged.missing) == len(merged.stubs.keys() - {notebook.HELPERS}):
        return nothing(lab, root, _whose(cells, lab, root))
    shut_in = {"limits": limits, "hidden": [root, *hidden], "held": held}
    rows = _run_until_done(exercises, merged, cell_timeout, total_timeout, shut_in)
    merged.notes += _left_out(rows, cells)
    return _result(lab, exercises, rows, merged.notes)


def nothing(lab: str, root: Path, trouble: str) -> dict:
    """The result, with 0 points, of a student whose notebook cannot be graded. trouble: the
    reason."""
    (lab,) = notebook.labs(root, [lab])
    exercises = notebook.exercises(notebook.read(notebook.solution_path(root, lab)))
    rows = {
        exercise.id: _row(exercise, 0, "missing", "the notebook cannot be read")
        for exercise in exercises
    }
    return {**_result(lab, exercises, rows, [plain(trouble)]), "unreadable": plain(trouble)}


def _whose(cells: list, lab: str, root: Path) -> str:
    """Why nothing in a notebook can be graded. If it is another lab's, this names that lab."""
    theirs = {notebook.nbgrader(cell).get("grade_id") for cell in cells} - {notebook.HELPERS}
    shared = {
        other: len(theirs & _grade_ids(notebook.read(notebook.solution_path(root, other))))
        for other in notebook.labs(root)
    }
    found = max(shared, key=lambda other: shared[other])
    if found != lab and shared[found]:
        return f"this is the notebook of {found}, and {lab} is graded: hand in {lab}.ipynb"
    return "none of this lab's answer cells was found: is it the notebook of another lab?"


def _grade_ids(nb) -> set:
    return {notebook.nbgrader(cell).get("grade_id") for cell in nb.cells} - {None}


def _left_out(rows: dict, cells: list) -> list[str]:
    """A note for each name that is undefined in an answer because the student defined it in a cell
    of their own, which is not graded."""
    names = {name for row in rows.values() for name in UNDEFINED.findall(row["message"])}
    where = {name: answers.outside(cells, name) for name in sorted(names)}
    return [
        plain(
            f"{name} is defined in your {place}, which is not graded: move it to the cell for your "
            f"own helper functions"
        )
        for name, place in where.items()
        if place
    ]


def _run_until_done(
    exercises: list[Exercise],
    merged: merge.Merged,
    cell_timeout: float,
    total_timeout: float,
    shut_in: dict,
) -> dict:
    """{exercise id: its row}. A row is never changed again: a later run only adds the exercises
    that earlier runs did not reach."""
    deadline = time.monotonic() + total_timeout
    rows, dropped = {}, set()
    while True:
        with temporary.folder("lab-grade-") as folder:
            path = folder / "graded.ipynb"
            notebook.write(merged.notebook, path)
            run = nbval_run.run(
                path, cell_timeout, max(0.0, deadline - time.monotonic()), **shut_in
            )
        stuck = run.stopped_at and _blame(run.stopped_at, merged)
        for exercise in exercises:
            if exercise.check.id in run.cells or exercise.id == stuck:
                rows.setdefault(exercise.id, _judge(exercise, run, merged, exercise.id == stuck))
        merged.notes += [
            n
            for n in [*_setup_trouble(run, merged), *_odd(exercises, run)]
            if n not in merged.notes
        ]
        if run.cut:
            late = f"not graded: the total limit of {total_timeout:g} s was reached first"
            return {
                exercise.id: _row(exercise, 0, "timeout", late) for exercise in exercises
            } | rows
        if run.stopped_at is None:
            return rows
        if run.stopped_at.cell in _helpers(merged) and notebook.HELPERS not in dropped:
            dropped.add(notebook.HELPERS)
            merged.drop_helpers()
            merged.notes.append(plain(f"{notebook.HELPERS}: left out: {run.stopped_at.message}"))
            continue
        if stuck is None or stuck in dropped:
            lost = f"not graded: {run.stopped_at.cell} {run.stopped_at.message}"
            return {exercise.id: _row(exercise, 0, "error", lost) for exercise in exercises} | rows
        dropped.add(stuck)
        merged.drop(next(exercise for exercise in exercises if exercise.id == stuck))


def _helpers(merged: merge.Merged) -> list[str]:
    """The id of the cell with the student's helper functions, if the lab has one."""
    return [cell.id for cell in merged.notebook.cells if notebook.is_for_helpers(cell)]


def _blame(cell: Cell, merged: merge.Merged) -> str | None:
    """The id of the exercise in which the run got stuck, at `cell`. For one of our set-up cells, we
    blame the exercise before it. None if no exercise begins at or before `cell`."""
    ids = [cell.id for cell in merged.notebook.cells]
    before = None
    for exercise in notebook.exercises(merged.notebook):
        if ids.index(cell.cell) < ids.index(exercise.answers[0].id):
            break
        before = exercise.id
    return before


def _judge(exercise: Exercise, run: nbval_run.Run, merged: merge.Merged, stuck: bool) -> dict:
    """One exercise's row from one run. The points are those that its check reported, and the status
    says what happened."""
    check = run.cells.get(exercise.check.id)
    # we take the last line, because a check reports after the answers that it calls have run
    report = _verdicts(check)[-1:]
    points = min(exercise.points, sum(_number(line.get("points")) for line in report))
    if _contradicts_itself(exercise, check):
        points = 0
    claims = [_with_place(line, exercise, merged) for line in report if line.get("message")]
    hint = next((str(line["hint"]) for line in report if line.get("hint")), "")
    ran = [run.cells[cell.id] for cell in exercise.answers if cell.id in run.cells]
    raised = [cell.message for cell in ran if cell.outcome != "passed"]
    ids = {cell.id for cell in exercise.answers}
    more = {
        "code": [cell.source for cell in merged.notebook.cells if cell.id in ids],
        "parts": [part for line in report for part in _parts(line)],
    }
    grade_ids = {notebook.nbgrader(cell)["grade_id"] for cell in exercise.answers}
    if points == exercise.points:
        return _row(exercise, points, "passed", "", **more)
    if stuck:
        return _row(exercise, points, run.stopped_at.outcome, run.stopped_at.message, **more)
    if grade_ids & merged.missing:
        return _row(exercise, points, "missing", "its answer cell is not in your notebook")
    if claims[:1] == [NOT_WRITTEN] or (not report and grade_ids <= merged.stubbed):
        return _row(exercise, points, NOT_WRITTEN, NOT_WRITTEN)
    if report and not raised:
        told = (claims or ["its check named no claim"])[0]
        return _row(exercise, points, "failed", told, hint, **more)
    raised += [check.message] if check and check.message and check.message != DIFFER else []
    told = (raised or ["its check left no report"])[0]
    return _row(exercise, points, "error", told, **more)


def _parts(line: dict) -> list[dict]:
    """What a bundle's check reports on each part. Nothing in it is trusted, because an answer may
    have written the line."""
    parts = line.get("parts")
    rows = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [
        {
            "id": plain(str(part.get("id", ""))),
            "points": _number(part.get("points")),
            "max_points": _number(part.get("max_points")),
            "message": plain(": ".join(filter(None, (str(part.get(k) or "") for k in TOLD)))),
            "hint": plain(str(part.get("hint") or "")),
        }
        for part in rows[:20]
    ]


def _with_place(line: dict, exercise: Exercise, merged: merge.Merged) -> str:
    """The message of a report line, with the line of the answer that it is about.

    An answer that did not return was stopped at an arbitrary line of a loop, so we name the line
    where the loop begins. If several ranks raise, it is chance whose error comes first, so we name
    no rank.
    """
    message, where = str(line["message"]), str(line.get("where") or "")
    if RAISED.search(message):
        message = re.sub(r"\brank \d+\b", "a rank", message)
    number = re.match(r"line (\d+)", where)
    if number and ("has not returned" in message or "no progress" in message):
        ids = {cell.id for cell in exercise.answers}
        sources = [cell.source for cell in merged.notebook.cells if cell.id in ids]
        where = next(
            filter(None, (merge.loop_at(source, int(number[1]), where) for source in sources)),
            where,
        )
    return f"{message.removesuffix('; it was in')}, {where}" if where else message


def _verdicts(cell: Cell | None) -> list[dict]:
    return [line for line in cell.report if "points" in line] if cell else []


def _contradicts_itself(exercise: Exercise, check: Cell | None) -> bool:
    """True if all points were reported although the cell raised, hung or died. A real check raises
    only if it reported fewer points, or none."""
    given = [_number(line.get("points")) >= exercise.points for line in _verdicts(check)[-1:]]
    return given == [True] and not (check.outcome == "passed" or check.message == DIFFER)


def _odd(exercises: list[Exercise], run: nbval_run.Run) -> list[str]:
    """A note for each sign that an answer meddled with its grading."""
    checks = {exercise.check.id: exercise for exercise in exercises}
    notes = []
    for cell in run.cells.values():
        seen = [f"{line['tampered']} was replaced" for line in cell.report if "tampered" in line]
        if len(_verdicts(cell)) > (cell.cell in checks):
            seen.append("points were reported by something else than the check")
        if cell.cell in checks and _contradicts_itself(checks[cell.cell], cell):
            seen.append("all points were reported, and then the check did not end well")
        notes += [plain(f"{LOOK}cell {cell.cell}: {text}") for text in seen]
    return notes


def _number(value) -> float:
    """`value` if it is a number of points, else 0. A report line may contain anything, such as NaN
    or a negative number."""
    return value if isinstance(value, (int, float)) and value >= 0 else 0


def _setup_trouble(run: nbval_run.Run, merged: merge.Merged) -> list[str]:
    """A note for each of our own cells that failed, and one if the cell with the student's helper
    functions did. Raises CourseError if one of our cells failed before the first answer, because
    then the environment is at fault."""
    notes, answered = [], False
    for cell in merged.notebook.cells:
        answered |= notebook.role(cell) == "answer"
        ran = run.cells.get(cell.id)
        if ran and ran.outcome == "failed" and notebook.is_for_helpers(cell):
            notes.append(plain(f"{notebook.HELPERS}: {ran.message}"))
        elif ran and ran.outcome != "passed" and notebook.role(cell) in ("setup", ""):
            if not answered:
                raise CourseError(
                    f"set-up cell {cell.id!r} of the course fails here, nothing was graded: "
                    f"{ran.message}"
                )
            notes.append(f"{cell.id}: set-up cell failed after your answers: {ran.message}")
    return notes


def _row(
    exercise: Exercise,
    points: float,
    status: str,
    message: str,
    hint: str = "",
    code: Sequence[str] = (),
    parts: Sequence[dict] = (),
) -> dict:
    return {
        "id": exercise.id,
        "title": exercise.title,
        "points": points,
        "max_points": exercise.points,
        "bonus": exercise.bonus,
        "status": status,
        "message": plain(message),
        "hint": plain(hint),
        "code": [*code],
        "parts": [*parts],
    }


def plain(message: str) -> str:
    """The message as one line that is safe in a terminal and has at most 500 characters. What
    differs from run to run (BY_CHANCE) is replaced by dots."""
    text = "".join(
        c if c.isprintable() else "?" for c in " ".join(BY_CHANCE.sub("...", message).split())
    )
    return text if len(text) <= 500 else f"{text[:497]}..."


def _result(lab: str, exercises: list[Exercise], rows: dict, notes: list[str]) -> dict:
    ordered = [rows[exercise.id] for exercise in exercises]
    return {
        "lab": lab,
        "points": sum(row["points"] for row in ordered),
        "max_points": sum(row["max_points"] for row in ordered if not row["bonus"]),
        "exercises": ordered,
        "notes": notes,
    }
