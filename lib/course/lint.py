"""The rules for a solution notebook. They make sure that a green nbval run means something, and
that the notebook's bytes do not change from run to run.

nbval does not report a reference output of a cell that was never executed, an unknown %magic (which
skips the whole cell), a !command that fails, or a wrong output of a cell without the tag that asks
for a comparison. A stored output that contains an address, a path or a time differs on the next
machine. Each rule below is a function of the notebook, a cell or an exercise, and yields findings.
The tests in tests/course show that each of them can fail.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from . import notebook

LINES = 15  # a longer code cell that is neither an answer nor a check gives a warning
RANKS = "ranks"  # %%ranks is allowed, because it raises what its cell raises
MAGICS = {"matplotlib", "load_ext", "autoreload", "time", "timeit", RANKS}
SWITCHES = {
    "skip-execution",
    "raises-exception",
    "nbval-raises-exception",
    "nbval-skip",
    "nbval-ignore-output",
}
VOLATILE = {
    "a path of one machine": r"/(tmp|var/folders|private/var|home|root|Users)/",
    "a kernel's file name": r"ipykernel_\d+|<ipython-input-",
    "a cell number": r"\b(Cell )?In ?\[\d+\]",
    "an address in memory": r"\bat 0x[0-9a-f]+",
    "a time of day": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d",
}
BINARY = {"image/png", "image/jpeg", "image/gif", "application/pdf"}
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Finding:
    """One violation of a rule. cell: the id of the cell, or "" if the violation concerns the whole
    notebook. warning: True if it is shown but does not count as a failure."""

    cell: str
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"cell {self.cell!r}: {self.text}" if self.cell else self.text


def lint(nb: NotebookNode) -> list[Finding]:
    """All findings for one solution notebook."""
    found = [Finding(cell_id, text) for cell_id, text in notebook.problems(nb)]
    found += _notebook(nb)
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    for cell in code:
        for rule in (_switches, _commands, _outputs, _length):
            found += rule(cell)
    found += _counts(code)
    if not notebook.problems(nb):
        found += _points(nb)
        for exercise in notebook.exercises(nb):
            found += _check(exercise)
    return found


def _counts(code: list[NotebookNode]) -> Iterator[Finding]:
    if all(cell.execution_count is None for cell in code):
        yield Finding("", "not executed, so that nbval compares nothing: run `make notebooks`")
        return
    for position, cell in enumerate(code, 1):
        if cell.execution_count != position:
            text = f"execution count is {cell.execution_count}, must be {position}"
            yield Finding(
                cell.id,
                f"{text}: nbval compares nothing that was not executed; run `make notebooks`",
            )


def _notebook(nb: NotebookNode) -> Iterator[Finding]:
    if "widgets" in nb.metadata:
        yield Finding(
            "", "metadata.widgets is stored, which many viewers cannot show: run `make notebooks`"
        )
    for key, want in (
        ("kernelspec", notebook.KERNELSPEC),
        ("language_info", notebook.LANGUAGE_INFO),
    ):
        if nb.metadata.get(key) != want:
            yield Finding("", f"metadata.{key} is not the course's: run `make notebooks`")
    for cell in nb.cells:
        for key in {"execution", "ExecuteTime"} & set(cell.metadata):
            yield Finding(cell.id, f"metadata.{key} holds times: run `make notebooks`")


def _points(nb: NotebookNode) -> Iterator[Finding]:
    points = sum(exercise.points for exercise in notebook.exercises(nb) if not exercise.bonus)
    if points != 100:
        yield Finding(
            "",
            f"the required exercises have {points} points in all, a complete lab has 100",
            warning=True,
        )


def _switches(cell: NotebookNode) -> Iterator[Finding]:
    """Tags and comments that would make nbval pass a cell without judging it."""
    lines = [line.strip() for line in cell.source.splitlines()]
    comments = {
        line.lstrip("# ").lower().replace("_", "-") for line in lines if line.startswith("#")
    }
    for name in sorted(SWITCHES & (set(cell.metadata.get("tags", [])) | comments)):
        yield Finding(cell.id, f"{name} makes nbval pass whatever the cell does: take it out")


def _commands(cell: NotebookNode) -> Iterator[Finding]:
    """%magics and !commands. We look for them in the Python code into which IPython turns the cell,
    so a % in a string is not mistaken for one."""
    try:
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
    except SyntaxError as error:
        yield Finding(cell.id, f"is no valid Python: {error.msg}, line {error.lineno}")
        return
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (
            isinstance(node.func.value, ast.Call)
            and ast.unparse(node.func.value) == "get_ipython()"
        ):
            continue
        name = (
            ast.literal_eval(node.args[0])
            if node.args and isinstance(node.args[0], ast.Constant)
            else ""
        )
        if node.func.attr in ("system", "getoutput"):
            yield Finding(
                cell.id,
                f"!{name}: nbval passes a command that fails; call it from Python with check=True",
            )
        elif name == RANKS and notebook.role(cell):
            yield Finding(
                cell.id,
                "%%ranks: what is graded has to be in the notebook, because a check runs it on "
                "ranks of its own",
            )
        elif node.func.attr in ("run_line_magic", "run_cell_magic") and name not in MAGICS:
            yield Finding(
                cell.id,
                f"%{name}: nbval passes a cell whose magic is unknown; known are {sorted(MAGICS)}",
            )


def _outputs(cell: NotebookNode) -> Iterator[Finding]:
    for output in cell.outputs:
        if output.output_type == "error":
            yield Finding(cell.id, f"an error is stored as output: {output.ename}: {output.evalue}")
        if output.get("name") == "stderr":
            yield Finding(cell.id, f"stderr is stored: {output.text.strip()[:80]!r}", warning=True)
        data = output.get("data", {})
        if WIDGET in data:
            yield Finding(
                cell.id,
                "a widget is stored, which is dead without its kernel: show a figure with "
                "LAB_STATIC=1",
            )
        text = [output.get("text", "")] + [
            str(value) for kind, value in data.items() if kind not in BINARY
        ]
        for what, pattern in VOLATILE.items():
            if match := re.search(pattern, "\n".join(text)):
                yield Finding(cell.id, f"the stored output holds {what}: {match[0]!r}")
        for kind in data:
            described = output.metadata.get("alt") or output.metadata.get(kind, {}).get("alt")
            if kind.startswith("image/") and not described:
                yield Finding(cell.id, f"a figure ({kind}) without alt text", warning=True)


def _length(cell: NotebookNode) -> Iterator[Finding]:
    lines = sum(bool(line.strip()) for line in cell.source.splitlines())
    if lines > LINES and notebook.role(cell) not in ("answer", "check"):
        yield Finding(
            cell.id, f"{lines} lines of code; about {LINES} can be read in a notebook", warning=True
        )


def _check(exercise: notebook.Exercise) -> Iterator[Finding]:
    """nbval must compare the output of a check, and the stored output must say that all points were
    earned."""
    cell = exercise.check
    if notebook.CHECK_TAG not in cell.metadata.get("tags", []):
        yield Finding(
            cell.id,
            f"graded, but without the tag {notebook.CHECK_TAG}: nbval would not compare its output",
        )
    verdict = f"{exercise.points} of {exercise.points} {'bonus ' if exercise.bonus else ''}points"
    printed = "".join(output.get("text", "") for output in cell.outputs)
    if verdict not in printed.splitlines():
        yield Finding(
            cell.id, f"its stored output lacks the line {verdict!r}: metadata and check must agree"
        )
