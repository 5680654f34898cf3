"""Makes a student's notebook from a solution notebook: the same cells, without solutions, hidden
tests and outputs.

    def double(x):                        def double(x):
        \"\"\"Twice x.\"\"\"                        \"\"\"Twice x.\"\"\"
        ### BEGIN SOLUTION        --->        raise NotImplementedError
        return 2 * x
        ### END SOLUTION

Headings of optional sections are collapsed (core.py). A check's cell gets the tag
`raises-exception`, so that Run All continues after an exercise that is not written yet. A solution
must not have this tag, because nbval takes it to mean that an error is fine.

If pyproject.toml has an address (`project.urls.Repository`), the first code cell fetches the course
from there when lib is missing. If the address is on GitHub, the title gets links to Colab and
Kaggle. The metadata names the edition (edition.py).

The result depends on the input alone, so building twice gives the same bytes. A marker that is
misspelt, nested, unbalanced or in a cell of another kind stops the build, because otherwise
students would get the solution. A notebook in labs/ that has answers in it is not replaced.
"""

import ast
import copy
import re
import tomllib
from pathlib import Path

from nbformat import NotebookNode

from . import core, edition, notebook
from .notebook import CourseError

SOLUTION, HIDDEN = "SOLUTION", "HIDDEN TESTS"
# {marker: the role of the cells in which it is allowed}
WHERE = {SOLUTION: "answer", HIDDEN: "check"}
MARKER = re.compile(r"(?P<indent>\s*)### (?P<edge>BEGIN|END) (?P<what>SOLUTION|HIDDEN TESTS)\s*")
GITHUB = "https://github.com/"
# finds the line in the first code cell that reports a missing lib; FETCH takes its place
LIB_IS_MISSING = re.compile(r"^    raise ImportError\(.*\) from None$", re.MULTILINE)
FETCH = """
    import os, subprocess, sys                          # on Colab and Kaggle: the course is \
fetched into a folder
    if not os.path.isdir("course") and subprocess.call(["git", "clone", "--quiet", "--depth=1", \
"@ADDRESS@", "course"]):
        raise OSError("The course could not be fetched: switch the internet on, and run this cell \
again.") from None
    sys.path.insert(0, os.path.abspath("course"))
    sys.modules.pop("lib", None)                        # another folder of that name
    from lib import here
""".strip("\n")
LIKE_A_MARKER = re.compile(
    r"#.*\b(BEGIN|END)\W*(SOLUTION|HIDDEN)|###\s*(SOLUTION|HIDDEN)", re.IGNORECASE
)


def build(root: Path, *labs: str) -> dict[str, bool]:
    """Generate labs/*.ipynb from solutions/*.ipynb. Returns {lab: True if its file has changed}.

    Raises CourseError, and writes none of them, if one cannot be generated or would replace a
    student's answers.
    """
    made = {lab: _of_lab_named(root, lab) for lab in labs}
    for lab in labs:
        _refuse_to_replace_answers(root, lab, made[lab])
    return {lab: notebook.write(made[lab], notebook.lab_path(root, lab)) for lab in labs}


def _of_lab_named(root: Path, lab: str) -> NotebookNode:
    try:
        return of_lab(root, lab)
    except CourseError as error:
        raise CourseError(f"{lab}.ipynb: {error}") from None


def _refuse_to_replace_answers(root: Path, lab: str, new: NotebookNode) -> None:
    """Raise CourseError if labs/`lab`.ipynb has answers in it, or if it cannot be read and may
    therefore have some.

    An answer cell counts as answered if it differs from the stub of the file's own edition or, if
    the file does not say which one that is, from the stub of the edition `new`.
    """
    path = notebook.lab_path(root, lab)
    if not path.exists():
        return
    try:
        old = notebook.read(path)
    except CourseError as error:
        raise CourseError(
            f"{error}; it may hold answers, so move it away if you need them, or delete it"
        ) from None
    if names := edition.answered(old, edition.cells(new)):
        way = "merge" if notebook.own_path(root, lab).exists() else "lab"
        raise CourseError(
            f"labs/{lab}.ipynb has answers in it, which this would overwrite ({', '.join(names)}): "
            f"run `make {way} LAB={notebook.number(lab)}`, which copies them into labs/mine, "
            f"delete labs/{lab}.ipynb, and build again"
        )


def of_lab(root: Path, lab: str) -> NotebookNode:
    """The notebook labs/`lab`.ipynb, made from solutions/ and pyproject.toml. Raises
    CourseError."""
    student = student_notebook(notebook.read(notebook.solution_path(root, lab)))
    from_address(student, lab, address(root))
    edition.stamp(student)
    return student


def address(root: Path) -> str:
    """The repository's address; "" if pyproject.toml has none. Raises CourseError if it is not of
    the form https://HOST/OWNER/NAME."""
    project = root / "pyproject.toml"
    known = (
        tomllib.loads(project.read_text(encoding="utf-8"))["project"] if project.exists() else {}
    )
    found = known.get("urls", {}).get("Repository", "")
    if found and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", found):
        raise CourseError(
            f"pyproject.toml: project.urls.Repository is {found!r}: write https://HOST/OWNER/NAME"
        )
    return found.removesuffix(".git")


def from_address(lab: NotebookNode, name: str, address: str) -> NotebookNode:
    """Change `lab`, the student's notebook labs/`name`.ipynb, so that it fetches the course from
    `address` ("": no change). Returns it.

    If the address is on GitHub, the title gets links that open the notebook on Colab and on Kaggle.
    """
    if address:
        for cell in lab.cells:
            cell.source = LIB_IS_MISSING.sub(
                lambda _: FETCH.replace("@ADDRESS@", address), cell.source
            )
    if address.startswith(GITHUB):
        colab, kaggle = rented(name, address)
        lab.cells[0].source += f"\n\n[Open in Colab]({colab}) · [Open in Kaggle]({kaggle})"
    return lab


def rented(name: str, address: str) -> tuple[str, str]:
    """The links that open labs/`name`.ipynb of a repository on GitHub in Colab, and in Kaggle."""
    file = f"{address}/blob/main/labs/{name}.ipynb"
    colab = f"https://colab.research.google.com/github/{file.removeprefix(GITHUB)}"
    return colab, f"https://kaggle.com/kernels/welcome?src={file}"


def student_notebook(solution: NotebookNode) -> NotebookNode:
    """The student's notebook. Raises CourseError with all problems found in `solution`, one on each
    line."""
    lab = copy.deepcopy(solution)
    notebook.normalise(lab)
    problems = [f"cell {cell_id!r}: {text}" for cell_id, text in notebook.problems(solution)]
    for cell in lab.cells:
        try:
            cell.source = student_source(cell)
        except CourseError as error:
            problems.append(str(error))
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if notebook.role(cell) == "check":
            cell.metadata.tags = [*cell.metadata.get("tags", []), notebook.GO_ON_TAG]
        data = notebook.nbgrader(cell)
        if data.get("locked"):
            cell.metadata.update(editable=False, deletable=False)
        elif data.get("solution"):
            cell.metadata.update(deletable=False)
    core.collapse(lab)
    if problems:
        raise CourseError("\n".join(problems))
    return lab


def student_source(cell: NotebookNode) -> str:
    """The cell's source as the student sees it: with a stub in place of each solution, and without
    hidden tests.

    Raises CourseError naming the cell and line of a marker that is wrong.
    """
    kept, opened, seen = [], None, set()
    for number, line in enumerate(cell.source.splitlines(), 1):
        where = f"cell {cell.id!r}, line {number}"
        marker = MARKER.fullmatch(line)
        if not marker:
            if LIKE_A_MARKER.search(line):
                raise CourseError(
                    f"{where}: {line.strip()!r} looks like a marker and is none: write '### BEGIN "
                    f"SOLUTION'"
                )
            if not opened:
                kept.append(line)
            continue
        edge, what = marker["edge"], marker["what"]
        if notebook.role(cell) != WHERE[what]:
            raise CourseError(
                f"{where}: a {what} marker may stand in a cell of kind {WHERE[what]} only"
            )
        if edge == "BEGIN" and opened:
            raise CourseError(f"{where}: BEGIN {what} inside the {opened} that is still open")
        if edge == "END" and opened != what:
            raise CourseError(f"{where}: END {what} without its BEGIN")
        if edge == "BEGIN" and what == SOLUTION:
            kept.append(f"{marker['indent']}raise NotImplementedError")
        opened = what if edge == "BEGIN" else None
        seen.add(what)
    if opened:
        raise CourseError(f"cell {cell.id!r}: BEGIN {opened} without its END")
    source = "\n".join(kept)
    if notebook.role(cell) == "answer":
        if SOLUTION not in seen and not notebook.is_for_helpers(cell):
            raise CourseError(
                f"cell {cell.id!r}: an answer cell needs '### BEGIN SOLUTION' and '### END "
                f"SOLUTION'"
            )
        _must_parse(source, cell)
    return source if seen else cell.source


def _must_parse(source: str, cell: NotebookNode) -> None:
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise CourseError(f"cell {cell.id!r}: the stub is no valid Python ({error.msg}, line "
                          f"{error.lineno}): "
                          "indent the markers as the body") from None  # fmt: skip
