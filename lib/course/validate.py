"""Proves that a lab is sound, by five checks that name every failure.

lint            The solution has nothing that nbval would pass in silence, and nothing that differs
                from run to run. Set-up, answers and checks need no other cell, because grading runs
                only these.
generated       labs/ contains exactly what solutions/ generates.
solution        nbval passes the solution notebook, and every claim about a measurement holds.
planted errors  Each check earns all its points, and nbval would notice a wrong line in its stored
                output, so the comparison does compare.
unsolved        The student's notebook runs from top to bottom, scores 0, and only its checks fail.
                Cells that no answer reaches are left out, because they have run with the solution.
                Of cells that use answers only as use(f), just `use(f)` is run, because it returns
                lib's own f there (reach.py).

With `whole`, cells that use answers as use(f) run in full in the unsolved lab, and there is a sixth
check: the solution is graded as a submission, and earns all points.
"""

import copy
from collections.abc import Iterator
from pathlib import Path

import nbformat

from . import build, lint, merge, nbval_run, notebook, reach, temporary
from .grade import NOT_WRITTEN, TOTAL_TIMEOUT
from .notebook import CourseError

CELL_TIMEOUT = 600.0  # seconds


def validate(root: Path, lab: str, cell_timeout: float = CELL_TIMEOUT, whole: bool = False) -> bool:
    """Run all checks on one lab, and print a line for each and what failed. If lint or generated
    fails, the other checks are not run. Returns True if all have passed."""
    print(lab, flush=True)
    try:
        solution = notebook.read(notebook.solution_path(root, lab))
        findings = lint.lint(solution)
    except CourseError as error:
        return _line("lint", [str(error)], "")
    warnings = [f"warning: {finding}" for finding in findings if finding.warning]
    clean = [
        _line(
            "lint",
            [*(str(f) for f in findings if not f.warning), *lost(solution)],
            f"{len(solution.cells)} cells",
            warnings,
        ),
        _line(
            "generated",
            stale(root, lab),
            "labs/ equals what solutions/ generates",
        ),
    ]
    if not all(clean):
        print("  not run: solution, planted errors, unsolved; first put the above right")
        return False
    checks, code = (
        len(notebook.exercises(solution)),
        sum(cell.cell_type == "code" for cell in solution.cells),
    )
    wrong, dead = solved(root, lab, cell_timeout)
    sound = [
        _line("solution", wrong, f"nbval passes {code} code cells"),
        _line("planted errors", dead, f"{checks} of {checks} noticed; all points"),
        _line(
            "unsolved",
            unsolved(root, lab, cell_timeout, whole),
            f"0 points; only its checks fail ({checks})",
        ),
    ]
    if whole:
        sound.append(
            _line(
                "graded",
                graded(solution, cell_timeout),
                "set-up, answers and checks alone: all points",
            )
        )
    return all(sound)


def orphans(root: Path) -> list[str]:
    """Notebooks in labs/ that no solution generates."""
    there = {path.stem for path in (root / "labs").glob("*.ipynb")}
    return [
        f"labs/{name}.ipynb has no solution: delete it"
        for name in sorted(there - set(notebook.labs(root)))
    ]


def stale(root: Path, lab: str) -> list[str]:
    """Why labs/`lab`.ipynb is not what solutions/ generates; [] if it is."""
    try:
        want = notebook.to_bytes(build.of_lab(root, lab))
    except CourseError as error:
        return str(error).splitlines()
    path = notebook.lab_path(root, lab)
    if not path.exists():
        return [f"labs/{path.name} is missing: run `make notebooks`"]
    return (
        []
        if path.read_bytes() == want
        else [f"labs/{path.name} is not what solutions/ generates: run `make notebooks`"]
    )


def solved(root: Path, lab: str, cell_timeout: float) -> tuple[list[str], list[str]]:
    """Run the solution. Returns two lists of messages: one for each cell that nbval does not pass,
    and one for each check whose comparison does not work or that does not give all points. A cell
    also fails if a measurement does not show what its sentence claims."""
    path = notebook.solution_path(root, lab)
    run = nbval_run.run(path, cell_timeout, TOTAL_TIMEOUT, claims="hold")
    failed = [f"cell {c.cell!r}: {c.message}" for c in run.cells.values() if c.outcome == "failed"]
    return [*_broken(run), *failed], list(_dead(notebook.read(path), run))


def _dead(solution: nbformat.NotebookNode, run: nbval_run.Run) -> Iterator[str]:
    """A message for each check that passed, but would have passed a wrong output too, or did not
    give all points."""
    for exercise in notebook.exercises(solution):
        cell, full = run.cells.get(exercise.check.id), exercise.points
        if cell is None or cell.outcome != "passed":
            continue  # reported already
        if not cell.compared:
            yield f"check {cell.cell!r}: nbval does not notice a wrong output"
        if [(line.get("points"), line.get("max_points")) for line in cell.report] != [(full, full)]:
            yield f"check {cell.cell!r} must report {full} of {full} points, reports {cell.report}"


def unsolved(root: Path, lab: str, cell_timeout: float, whole: bool = True) -> list[str]:
    """Everything that is wrong with the student's notebook: its checks have to fail with 0 points,
    and no other cell may fail."""
    nb = notebook.read(notebook.lab_path(root, lab))
    checks = {exercise.check.id for exercise in notebook.exercises(nb)}
    run = _run_copy(nb, reach.reached(nb, through_use=whole), cell_timeout)
    wrong = _broken(run)
    for cell in run.cells.values():
        if cell.cell not in checks:
            if cell.outcome == "failed":
                wrong.append(
                    f"cell {cell.cell!r} raises while the lab is unsolved (use(fn)?): "
                    f"{cell.message}"
                )
        elif cell.outcome == "passed":
            wrong.append(f"check {cell.cell!r} passes on the stub")
        elif [(line.get("points"), line.get("message")) for line in cell.report] != [
            (0, NOT_WRITTEN)
        ]:
            wrong.append(
                f"check {cell.cell!r} must report 0 points, {NOT_WRITTEN!r}; it says {cell.report} "
                f"{cell.message}"
            )
    return wrong


def lost(solution: nbformat.NotebookNode) -> list[str]:
    """A message for each name that an answer, a set-up cell or a check reads although the cell that
    defined it last is left out in grading."""
    made_by, wrong = {}, []
    for cell in solution.cells:
        if cell.cell_type != "code":
            continue
        names, role = reach.names_of(cell.source), notebook.role(cell)
        if role:
            wrong += [
                f"cell {cell.id!r} reads {name}, which cell {made_by[name]!r} makes: grading runs "
                f"set-up, answers and checks alone"
                for name in sorted(names.reads & made_by.keys())
            ]
            for name in names.binds:
                made_by.pop(name, None)
        else:
            made_by |= dict.fromkeys(names.binds, cell.id)
    return wrong


def graded(solution: nbformat.NotebookNode, cell_timeout: float) -> list[str]:
    """Grade the solution as a submission. Returns what fails when set-up, answers and checks run
    alone."""
    merged = merge.merge(solution, [copy.deepcopy(cell) for cell in solution.cells]).notebook
    run = _run_copy(merged, merged.cells, cell_timeout)
    failed = [f"cell {c.cell!r}: {c.message}" for c in run.cells.values() if c.outcome == "failed"]
    return [*_broken(run), *failed, *_dead(solution, run)]


def _run_copy(
    nb: nbformat.NotebookNode, cells: list[nbformat.NotebookNode], cell_timeout: float
) -> nbval_run.Run:
    """Run a notebook that has only these cells of `nb`."""
    with temporary.folder("lab-copy-") as folder:
        path = folder / "copy.ipynb"
        notebook.write(nbformat.v4.new_notebook(cells=cells, metadata=nb.metadata), path)
        return nbval_run.run(path, cell_timeout, TOTAL_TIMEOUT)


def _broken(run: nbval_run.Run) -> list[str]:
    """A message for each cell that hung, killed the kernel or was skipped, and one if the run
    reached the total limit. None of this may happen in our own notebooks."""
    odd = [cell for cell in run.cells.values() if cell.outcome not in ("passed", "failed")]
    wrong = [
        f"cell {cell.cell!r}: {cell.outcome}: {cell.message}; later cells did not run"
        for cell in odd
    ]
    return wrong + ([f"the notebook took more than {TOTAL_TIMEOUT:g} s"] if run.cut else [])


def _line(name: str, wrong: list[str], good: str, notes: list[str] = ()) -> bool:
    """Print one row of the table, and below it what is wrong and the notes. Returns True if nothing
    is wrong."""
    print(f"  {'--' if wrong else 'ok'}  {name:16}{f'{len(wrong)} failures' if wrong else good}")
    for text in [*wrong, *notes]:
        print("        " + text.strip().replace("\n", "\n        "), flush=True)
    return not wrong
