"""Finds names that an answer uses from cells which the student added. These cells are not graded.

    def both(a, b): ...           in a cell that the student added, which does not run in grading
    def ring(x): both(x, x)       the answer passes in the notebook, and gets 0 points in grading

The check therefore warns of this in the notebook, where it can still be fixed.
"""

import dis
import json
import re
import types

from lib import here
from lib.check.earlier import functions_of

SHOWN = 60  # the warning shows at most this many characters of a line


def note(fns) -> str:
    """The warning about these answers; "" if all that they use is graded."""
    names = {name for fn in fns for one in functions_of(fn) for name in _globals(one.__code__)}
    for name in sorted(names):
        found = lines_that_define(name)
        if found and not any(graded for _, graded in found):
            return (
                f"{name} is defined in a cell of your own (`{found[-1][0]}`), which is not graded: "
                f"move it to the cell for your helper functions, or these points are lost"
            )
    return ""


def _globals(code: types.CodeType):
    """Yield the global names that a function, or a function inside it, reads."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _globals(const)


def lines_that_define(name: str) -> list[tuple[str, bool]]:
    """[(a line that defines this name, whether its cell is graded), ...] from the saved file of the
    open notebook."""
    path = here.opened()
    if path is None or not path.is_file():
        return []
    word = re.escape(name)
    defines = re.compile(
        rf"^(?:(?:def|class)\s+{word}\b|{word}\s*=[^=]|(?:from\s+\S+\s+)?import\s.*\b{word}\b)"
    )
    cells = json.loads(path.read_text(encoding="utf-8")).get("cells", [])
    return [
        (line[:SHOWN], "nbgrader" in cell.get("metadata", {}))
        for cell in cells
        if cell["cell_type"] == "code"
        for line in "".join(cell["source"]).splitlines()
        if defines.match(line)
    ]
