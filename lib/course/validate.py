"""Prove that a lab is what it claims to be: five checks per lab, and every failure named.

lint              nothing that nbval would pass in silence, nothing that differs from run to run
generated         labs/ holds exactly what solutions/ generates, and lib/check/fingerprints/ what the checks do now
solution          nbval passes the solution notebook, and every claim about a measurement holds
unsolved          the student's notebook runs from top to bottom, scores 0, and only its checks fail; what no answer
                  reaches has run with the solution and is left out (reach.py)
planted errors    the solution graded as a submission earns all points, while a wrong line planted in the stored
                  output of each check makes nbval fail in exactly these cells: so the comparison is alive
"""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

from . import build, lint, merge, nbval_run, notebook, reach
from .grade import NOT_WRITTEN, TOTAL_TIMEOUT
from .notebook import CourseError

CELL_TIMEOUT = 600.0  # seconds
PLANTED = "planted by make validate: nbval must notice this line\n"


def validate(root: Path, lab: str, cell_timeout: float = CELL_TIMEOUT) -> bool:
    """Run all checks on one lab and print a line for each, with what failed; returns whether all passed."""
    print(lab, flush=True)
    try:
        solution = notebook.read(notebook.solution_path(root, lab))
        findings = lint.lint(solution)
    except CourseError as error:
        return _line("lint", [str(error)], "")
    warnings = [f"warning: {finding}" for finding in findings if finding.warning]
    clean = [
        _line("lint", [str(f) for f in findings if not f.warning], f"{len(solution.cells)} cells", warnings),
        _line("generated", stale(root, lab) + _fingerprints(lab), "labs/ equals what solutions/ generates"),
    ]
    if not all(clean):
        print("  not run: solution, unsolved, planted errors; first put the above right")
        return False
    graded = notebook.exercises(solution)
    code = sum(cell.cell_type == "code" for cell in solution.cells)
    return all([
        _line("solution", failures(notebook.solution_path(root, lab), cell_timeout), f"nbval passes {code} code cells"),
        _line("unsolved", unsolved(root, lab, cell_timeout), f"0 points; only its checks fail ({len(graded)})"),
        _line("planted errors", planted(solution, cell_timeout), f"{len(graded)} of {len(graded)} noticed; all points"),
    ])  # fmt: skip


def strangers(root: Path) -> list[str]:
    """Notebooks in labs/ that no solution generates."""
    there = {path.stem for path in (root / "labs").glob("*.ipynb")}
    return [f"labs/{name}.ipynb has no solution: delete it" for name in sorted(there - set(notebook.labs(root)))]


def stale(root: Path, lab: str) -> list[str]:
    """Why labs/`lab`.ipynb is not what solutions/ generates; [] if it is."""
    try:
        want = notebook.to_bytes(build.student_notebook(notebook.read(notebook.solution_path(root, lab))))
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


def failures(path: Path, cell_timeout: float) -> list[str]:
    """The cells of the solution at `path` that nbval does not pass, or whose measurement does not show its sentence."""
    run = nbval_run.run(path, cell_timeout, TOTAL_TIMEOUT, claims="hold")
    return [*_broken(run), *(f"cell {c.cell!r}: {c.message}" for c in run.cells.values() if c.outcome == "failed")]


def _fingerprints(lab: str) -> list[str]:
    from lib.check.exercises import MODULES
    from lib.check.mistakes import stale as stale_tables

    of_lab = [module for module in MODULES if module.__name__.split(".")[2] == lab.split("_")[0]]
    names = stale_tables((part, module) for module in of_lab for part in module.EXERCISE.parts)
    return [
        f"the fingerprints of {name} are of other sources: python -m lib.check fingerprints {name}" for name in names
    ]


def unsolved(root: Path, lab: str, cell_timeout: float) -> list[str]:
    """What the student's notebook does otherwise than fail with 0 points in its checks, and there alone."""
    nb = notebook.read(notebook.lab_path(root, lab))
    checks = {exercise.check.id for exercise in notebook.exercises(nb)}
    run = _run_copy(nb, reach.reached(nb), cell_timeout)
    wrong = _broken(run)
    for cell in run.cells.values():
        if cell.cell not in checks:
            if cell.outcome == "failed":
                wrong.append(f"cell {cell.cell!r} raises while the lab is unsolved (use(fn)?): {cell.message}")
        elif cell.outcome == "passed":
            wrong.append(f"check {cell.cell!r} passes on the stub")
        elif [(line.get("points"), line.get("message")) for line in cell.report] != [(0, NOT_WRITTEN)]:
            wrong.append(
                f"check {cell.cell!r} must report 0 points, {NOT_WRITTEN!r}; it says {cell.report} {cell.message}"
            )
    return wrong


def planted(solution: nbformat.NotebookNode, cell_timeout: float) -> list[str]:
    """Plant a wrong line in every check's stored output and grade: the lines nbval misses, the points that are lost."""
    wrong = merge.merge(solution, [copy.deepcopy(cell) for cell in solution.cells]).notebook
    for exercise in notebook.exercises(wrong):
        exercise.check.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=PLANTED))
    run = _run_copy(wrong, wrong.cells, cell_timeout)
    return [*_broken(run), *_not_noticed(solution, run)]


def _run_copy(nb: nbformat.NotebookNode, cells: list[nbformat.NotebookNode], cell_timeout: float) -> nbval_run.Run:
    """What nbval says of a notebook that has these cells of `nb`."""
    with tempfile.TemporaryDirectory(prefix="lab-copy-") as folder:
        path = Path(folder, "copy.ipynb")
        notebook.write(nbformat.v4.new_notebook(cells=cells, metadata=nb.metadata), path)
        return nbval_run.run(path, cell_timeout, TOTAL_TIMEOUT)


def _not_noticed(solution: nbformat.NotebookNode, run: nbval_run.Run) -> Iterator[str]:
    exercises = {exercise.check.id: exercise for exercise in notebook.exercises(solution)}
    for cell in run.cells.values():
        exercise = exercises.get(cell.cell)
        if exercise is None:
            if cell.outcome == "failed":
                yield f"cell {cell.cell!r} fails when only set-up, answers and checks run: {cell.message}"
        elif cell.outcome == "passed":
            yield f"check {cell.cell!r}: nbval does not notice a wrong output"
        elif cell.message != "Cell outputs differ":
            yield f"check {cell.cell!r} fails when only set-up, answers and checks run: {cell.message}"
        if exercise:
            full = exercise.points
            if [(line.get("points"), line.get("max_points")) for line in cell.report] != [(full, full)]:
                yield f"check {cell.cell!r} must report {full} of {full} points, reports {cell.report}"


def _broken(run: nbval_run.Run) -> list[str]:
    """Cells that hung, killed the kernel or were skipped, and a run that was cut: nothing may do that here."""
    odd = [cell for cell in run.cells.values() if cell.outcome not in ("passed", "failed")]
    wrong = [f"cell {cell.cell!r}: {cell.outcome}: {cell.message}; later cells did not run" for cell in odd]
    return wrong + ([f"the notebook took more than {TOTAL_TIMEOUT:g} s"] if run.cut else [])


def _line(name: str, wrong: list[str], good: str, notes: list[str] = ()) -> bool:
    """Print one row of the table, and below it what is wrong; returns whether nothing is."""
    print(f"  {'--' if wrong else 'ok'}  {name:16}{f'{len(wrong)} failures' if wrong else good}")
    for text in [*wrong, *notes]:
        print("        " + text.strip().replace("\n", "\n        "), flush=True)
    return not wrong
