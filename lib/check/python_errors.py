"""Errors that Python itself raises in an answer, in words that help to fix them.

NameError       the nearest name that there is, or the cell of the notebook that defines it
a wrong call    the answer's signature beside the exercise's
HINTS           what to try, by the type of the error
"""

import builtins
import difflib
import inspect
import json
import re
import types

from lib import here
from lib.check.exercise import Hint, Problem

UNKNOWN = re.compile(r"NameError: name '(\w+)' is not defined")
REFUSED_CALL = re.compile(
    r"TypeError: ((?:[\w.]+\.)?(\w+)\(\) (?:got an unexpected|got multiple|missing|takes) .*)"
)
ALIKE, ALIKE_BUILT_IN = 0.7, 0.85  # of two names: one may be a typo of the other
SHOWN = 60  # characters of a cell's line


def raised(*types_):
    def fits(problem):
        failed = problem.fact("failed")
        return problem.kind == "raised" and (
            (failed.raised if failed else problem.fact("raised")) in types_
        )

    return fits


HINTS = (
    Hint(
        "a name that does not exist",
        raised("NameError"),
        "Python does not know this name where your function runs. Try: compare its spelling with "
        "the names that you define, and run the cell that defines it.",
    ),
    Hint(
        "a variable without a value",
        raised("UnboundLocalError"),
        "on this path through your function the variable gets no value before it is read. Try: "
        "assign it before the `if` or the loop.",
    ),
    Hint(
        "an attribute that does not exist",
        raised("AttributeError"),
        "the object has nothing of this name. Try: print type(...) of it just before this line; "
        "a NoneType often comes from a function that has no `return`, or from a .grad that is "
        "not there.",
    ),
    Hint(
        "an index that does not exist",
        raised("IndexError"),
        "the list or the tensor is shorter than this index. Try: print its length just before "
        "this line; N ranks count from 0 to N-1, and a rank may have nothing at all.",
    ),
    Hint(
        "a key that does not exist",
        raised("KeyError"),
        "the dict has no such key. Try: print its keys just before this line.",
    ),
    Hint(
        "another signature",
        lambda problem: problem.kind == "signature",
        "keep the parameters of the exercise, with their names, order and default values: later "
        "cells call it in the same way.",
    ),
)
FIRST = ("a name that does not exist", "a variable without a value", "another signature")


def explained(problem: Problem, fn) -> Problem:
    """The Problem, with a line about what Python did not find; or, where the check could not call
    the answer, what Python says of the call."""
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
    if name not in _globals_of(fn) and (line := _line_that_defines(name)):
        return f"A cell of this notebook defines {name} and has not been run: `{line}`"
    near = difflib.get_close_matches(
        name, sorted(_names(fn) - {name}), 1, ALIKE
    ) or difflib.get_close_matches(name, dir(builtins), 1, ALIKE_BUILT_IN)
    if near:
        return f"The nearest name that there is: {near[0]}"
    return f"Nothing is called {name} in your function or in the cells that have been run"


def _functions(fn):
    found = [*vars(fn).values(), fn] if inspect.isclass(fn) else [fn]
    return [one for one in found if isinstance(one, types.FunctionType)]


def _globals_of(fn):
    return {name for one in _functions(fn) for name in one.__globals__}


def _names(fn):
    """What a line of the answer may name."""
    names = _globals_of(fn)
    codes = [one.__code__ for one in _functions(fn)]
    while codes:
        code = codes.pop()
        names |= {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return {name for name in names if not name.startswith("_")}


def _line_that_defines(name):
    """The first line of the open notebook, as it is saved, that defines this name; or ""."""
    path = here.opened()
    if path is None or not path.is_file():
        return ""
    word = re.escape(name)
    defines = re.compile(
        rf"^(?:(?:def|class)\s+{word}\b|{word}\s*=[^=]|(?:from\s+\S+\s+)?import\s.*\b{word}\b)"
    )
    cells = json.loads(path.read_text(encoding="utf-8")).get("cells", [])
    lines = (
        line
        for cell in cells
        if cell["cell_type"] == "code"
        for line in "".join(cell["source"]).splitlines()
    )
    return next((line[:SHOWN] for line in lines if defines.match(line)), "")
