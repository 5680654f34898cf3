"""Formats a position in the source for a person: `line 4: dist.recv(x, left)` in a notebook's cell,
`ring.py:31: ...` in a file.

For a cell we show neither its number, which changes with every run, nor the name of the temporary
file under which Jupyter compiles it, which means nothing to a student.
"""

import linecache
import os


def is_cell(file: str) -> bool:
    """Is this a file name under which IPython compiles a notebook's cell, or Python a line that was
    typed at its prompt?"""
    return "ipykernel_" in file or file.startswith(("<ipython-input", "<stdin>"))


def position(file: str, line: int, function: str = "") -> str:
    """A position in the source in words, with the first 90 characters of that line if its source is
    available."""
    if line == 0:
        return "an unknown line"
    text = linecache.getline(file, line).strip()
    where = f"line {line}" if is_cell(file) else f"{os.path.basename(file)}:{line}"
    if is_cell(file) and function and not function.startswith("<"):
        where += f" of {function}"
    return f"{where}: {text[:90]}" if text else where
