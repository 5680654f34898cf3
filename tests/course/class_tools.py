"""What the tests of class grading share: submissions of the toy lab, and looks at what a
grading left behind."""

import copy
import hashlib
from pathlib import Path

from toy_lab import by_id

from lib.course import notebook, sandbox, submissions

RIGHT = {
    "double": "def double(x):\n    return x + x",
    "total": "def total(values):\n    return sum(values)",
    "largest": (
        "class Largest:\n"
        "    def __init__(self, value):\n        self.values = [value]\n\n"
        "    def see(self, value):\n        self.values.append(value)\n\n"
        "    def get(self):\n        return max(self.values)"
    ),
}
LIMITS = sandbox.Limits(
    seconds=60, memory=400 * 2**20, processes=120, files=64 * 2**20, total=1200 * 2**20
)


def solved(unsolved, **answers):
    """The toy lab with right answers, some of them replaced by `answers`."""
    nb = copy.deepcopy(unsolved)
    for cell_id, source in {**RIGHT, **answers}.items():
        by_id(nb, cell_id).source = source
    return nb


def terms(root, limits=LIMITS, cell_timeout=6.0, total_timeout=300.0):
    """How the toy class is graded."""
    return submissions.Terms("lab9_toy", root, cell_timeout, total_timeout, limits)


def hand_in(folder, **notebooks):
    """Write submissions: notebooks, or bytes as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for student, nb in notebooks.items():
        path = folder / f"{student}.ipynb"
        if isinstance(nb, bytes):
            path.write_bytes(nb)
        else:
            notebook.write(nb, path)
    return folder


def contents(folder):
    """{path below `folder`: hash, size and time of change} of all files: what must not change."""
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in files
    }
