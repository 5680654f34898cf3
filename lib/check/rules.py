"""Prints an exercise's docstring next to what its check claims.

    python -m lib.check rules [function ...]

No student should lose points for a rule that is not written down, and nothing that the docstring
forbids should pass. The command prints the docstring above the claims, for anyone who changes
either of them.
"""

import ast
import json
from pathlib import Path

from lib.check.exercises import FUNCTIONS
from lib.check.side_by_side import SideBySide
from lib.here import COURSE

LABS = Path(COURSE) / "labs"


def rules(names: list[str]) -> str:
    """The docstring, claims and excused probes of these functions, or of all functions if `names`
    is empty."""
    if unknown := set(names) - set(FUNCTIONS):
        raise SystemExit(f"there is no exercise {', '.join(sorted(unknown))}")
    docstrings = written()
    return "\n\n".join(_of(name, docstrings) for name in names or FUNCTIONS)


def written() -> dict[str, list[str]]:
    """{function: the docstrings in the cell where the student writes the function}"""
    found: dict[str, list[str]] = {}
    for path in sorted(LABS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and "raise NotImplementedError" in source:
                for node in ast.parse(source).body:
                    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                        found.setdefault(node.name, []).extend(_docstrings(node))
    return found


def _docstrings(node):
    kinds = (ast.FunctionDef, ast.ClassDef)
    for one in ast.walk(node):
        if isinstance(one, kinds) and (text := ast.get_docstring(one)):
            yield f"{one.name}: {text}"


def _of(name, docstrings):
    exercise = FUNCTIONS[name]
    lines = [f"== {name}", *docstrings.get(name, ["(no docstring)"]), "-- claims"]
    lines += [f"{c.points:>3}  {c.name}{': ' * bool(c.says)}{c.says}" for c in exercise.claims]
    if isinstance(exercise.measure, SideBySide) and exercise.measure.excused:
        lines += ["-- excused", *(f"  {k}: {why}" for k, why in exercise.measure.excused.items())]
    return "\n".join(lines)
