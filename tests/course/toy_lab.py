"""A toy lab of three exercises, without torch: small enough to be executed and graded many times in
a test session."""

import nbformat

from lib.course import notebook

SETUP = '''
import json
import os


class CheckFailed(Exception):
    """A claim does not hold."""


def check(name, claims, hint="Try: do it by hand."):
    """Print a verdict on (points, what, test) claims and append a report line, \
as lib.check does."""
    earned, wrong = 0, []
    lines = [name]
    for points, what, holds in claims:
        try:
            good = holds()
        except NotImplementedError:
            earned, wrong = 0, ["not written yet"]
            break
        except Exception as error:
            good, what = False, f"{what}: {type(error).__name__}: {error}"
        earned += points if good else 0
        wrong += [] if good else [what]
        lines.append(f"  {'ok' if good else '--'}  {what}")
    full = sum(points for points, _, _ in claims)
    print("\\n".join([*lines, f"{earned} of {full} points"]))
    if "LAB_REPORT" in os.environ:
        line = {"id": name, "points": earned, "max_points": full, \
"message": (wrong or [""])[0], "hint": hint}
        with open(os.environ["LAB_REPORT"], "a") as book:
            book.write(json.dumps(line) + "\\n")
    if wrong:
        raise CheckFailed(wrong[0])
'''
DOUBLE = '''
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
'''
TOTAL = '''
def total(values):
    """The sum of a list of numbers."""
    ### BEGIN SOLUTION
    result = 0
    for value in values:
        result += value
    return result
    ### END SOLUTION
'''
LARGEST = '''
class Largest:
    """Keeps the largest value seen."""

    def __init__(self, value):
        self.value = value

    def see(self, value):
        """Take one more value into account."""
        ### BEGIN SOLUTION
        self.value = max(self.value, value)
        ### END SOLUTION

    def get(self):
        """The largest value seen."""
        ### BEGIN SOLUTION
        return self.value
        ### END SOLUTION
'''
CHECK_DOUBLE = (
    'check("double", [(30, "small", lambda: double(2) == 4), (10, "negative", lambda: '
    "double(-3) == -6)])"
)
CHECK_TOTAL = """
claims = [(20, "three", lambda: total([1, 2, 3]) == 6)]
### BEGIN HIDDEN TESTS
claims += [(20, "none", lambda: total([]) == 0)]
### END HIDDEN TESTS
check("total", claims)
"""
CHECK_LARGEST = """
def largest(*values):
    keeper = Largest(values[0])
    for value in values:
        keeper.see(value)
    return keeper.get()


check("Largest", [(20, "falling", lambda: largest(3, 2, 1) == 3)])
"""


def code(cell_id, source, kind="", **extra):
    """A code cell with the nbgrader metadata of its kind; grade_id is the cell id
    with underscores."""
    cell = nbformat.v4.new_code_cell(source.strip("\n"), id=cell_id)
    if kind:
        grade_id = cell_id.replace("-", "_")
        cell.metadata["nbgrader"] = {
            "schema_version": 3,
            "grade_id": grade_id,
            **notebook.FLAGS[kind],
            **extra,
        }
    if kind == "check":
        cell.metadata["tags"] = ["nbval-check-output"]
    return cell


def toy_notebook():
    """The toy lab's solution, not executed."""
    cells = [
        nbformat.v4.new_markdown_cell("# A toy lab", id="title"),
        code("tools", SETUP, "setup"),
        code("my-helpers", "# Your own helper functions go here.", "answer"),
        code("double", DOUBLE, "answer"),
        code("check-double", CHECK_DOUBLE, "check", points=40),
        code("example", 'print("an example that is not graded")\n[1, 2]'),
        code("total", TOTAL, "answer"),
        code("check-total", CHECK_TOTAL, "check", points=40),
        code("largest", LARGEST, "answer"),
        code("check-largest", CHECK_LARGEST, "check", points=20),
    ]
    return nbformat.v4.new_notebook(cells=cells)


def by_id(nb, cell_id):
    """The cell of `nb` with this id."""
    return next(cell for cell in nb.cells if cell.id == cell_id)
