"""Explains errors that Python itself raises in an answer, so that the student can fix them.

NameError       the most similar name that exists, or the cell of the notebook that defines it
a wrong call    the answer's signature
"""

import builtins
import difflib
import inspect
import re
import types

from lib.check.earlier import functions_of
from lib.check.exercise import Problem
from lib.check.own_cells import lines_that_define

UNKNOWN = re.compile(r"NameError: name '(\w+)' is not defined")
REFUSED_CALL = re.compile(
    r"TypeError: ((?:[\w.]+\.)?(\w+)\(\) (?:got an unexpected|got multiple|missing|takes) .*)"
)
ALIKE, ALIKE_BUILT_IN = 0.7, 0.85  # similarity above which one name may be a typo of the other


def explained(problem: Problem, fn) -> Problem:
    """The Problem, with a line added if Python did not find a name. If the check could not even
    call the answer, a new Problem quotes what Python says about that call."""
    said = " ".join(problem.text.split())
    if problem.kind == "unreadable":
        call = REFUSED_CALL.search(said)
        if call and call[2] in ("__init__", "__call__", getattr(fn, "__name__", "")):
            text = f"{call[1].rstrip(')')}\nYours is {_signature(fn)}"
            return Problem("signature", text)
    unknown = UNKNOWN.search(said)
    if problem.kind == "raised" and unknown:
        problem.text += f"\n{_about(unknown[1], fn)}"
    return problem


def _signature(fn):
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return "not known"
    plain = [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
    return f"{getattr(fn, '__name__', 'it')}({', '.join(plain)})"


def _about(name, fn):
    if name not in _globals_of(fn) and (found := lines_that_define(name)):
        return f"A cell of this notebook defines {name} and has not been run: `{found[0][0]}`"
    near = difflib.get_close_matches(
        name, sorted(_names(fn) - {name}), 1, ALIKE
    ) or difflib.get_close_matches(name, dir(builtins), 1, ALIKE_BUILT_IN)
    if near:
        return f"The most similar name that exists is {near[0]}"
    return f"Neither your function nor a cell that has been run defines {name}"


def _globals_of(fn):
    return {name for one in functions_of(fn) for name in one.__globals__}


def _names(fn):
    """The names that a line of the answer can use."""
    names = _globals_of(fn)
    codes = [one.__code__ for one in functions_of(fn)]
    while codes:
        code = codes.pop()
        names |= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return {name for name in names if not name.startswith("_")}
