"""Detects that a function on a rank has changed an object that came from the notebook. The rank has
only a copy, so the change is lost, and a warning in the notebook says so.

    losses = []                      launch.run(train, nproc=2)
    def train():                     warning: losses was changed on ranks 0 and 1, but not here: ...
        losses.append(loss.item())   losses is still []

Each rank compares the arguments, and the variables of the notebook that the function itself uses,
before and after the run. It compares which objects a list, set or dict contains (or only how many,
if there are more than 100), the attributes of an object whose class the notebook defines, and how
often the parameters of a model were changed in place. Tensors are left out, because a function may
change one only to have something to communicate. The comparison takes microseconds.

Many changes are intended. Therefore a change is reported only in two cases, and never if the
function returns the object:

    certain  the function only adds to a container, so no line on the rank can have read it
    likely   any other change, if the function returned None and printed nothing, so that nothing
             at all remains of its work
"""

import collections
import dis
import functools
import itertools
import json
import sys
import types
from collections.abc import Iterable

import torch

from lib.launch.ways_out import functions_of
from lib.ledger.words import ranks_text

MANY = 100  # if a container has more objects than this, only their number is compared
ADDS = ("append", "appendleft", "extend", "add", "insert")
CERTAIN, LIKELY = "certain", "likely"
OTHERS = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.Tensor)


class Copies:
    """A snapshot, taken before the run, of what `fn` has received from the notebook. After the run
    `report` records what has changed. If the rank has imported the function, nothing is compared,
    because its globals did not come from the notebook."""

    def __init__(self, fn, args):
        if isinstance(fn, functools.partial):
            fn, args = fn.func, (*fn.args, *args)
        module = sys.modules.get(getattr(fn, "__module__", None) or "")
        by_value = isinstance(fn, types.FunctionType) and fn.__globals__ is not getattr(
            module, "__dict__", None
        )
        self.fn, self.args = (fn, args) if by_value else (None, ())
        self.before = {name: (value, _form(value)) for name, value in self._now().items()}

    def report(self, result, path: str) -> None:
        """Write {name: CERTAIN or LIKELY} to the file `path`, for every object that has changed and
        is not in `result`. LIKELY changes are written only if `result` is None. If there is nothing
        to write, no file is made."""
        returned = [result, *(result.values() if isinstance(result, dict) else [])]
        returned += result if isinstance(result, (list, tuple)) else []
        found, missing = {}, (None, None)
        for name, value in self._now().items():
            old, form = self.before.get(name, missing)
            if any(value is item for item in returned) or (value is old and _form(value) == form):
                continue
            if value is old and _only_added_to(self.fn, name):
                found[name] = CERTAIN
            elif result is None:
                found[name] = LIKELY
        if found:
            with open(path, "w") as file:
                json.dump(found, file)

    def _now(self):
        """{name: value} of the function's globals, of the variables that it captures from an
        enclosing function, and of its arguments; without those of a type in `OTHERS`."""
        if self.fn is None:
            return {}
        code, now = self.fn.__code__, dict(self.fn.__globals__)
        for name, cell in zip(code.co_freevars, self.fn.__closure__ or (), strict=True):
            try:
                now[name] = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        now |= zip(code.co_varnames[: code.co_argcount], self.args, strict=False)
        return {
            name: v
            for name, v in now.items()
            if not (name.startswith("__") or isinstance(v, OTHERS))
        }


def _form(value, depth=2):
    """A snapshot of `value`. If two snapshots differ, the value was changed in between. A snapshot
    covers the contents of containers up to `depth` levels deep."""
    if isinstance(value, torch.nn.Module):
        return [p._version for p in value.parameters() if not p.is_inference()]
    if isinstance(value, (list, set, dict, collections.deque)):
        if depth == 0 or len(value) > MANY:
            return len(value)
        return [
            _form(item, depth - 1)
            for item in (value.values() if isinstance(value, dict) else list(value))
        ]
    # A class that is sent by value, as the notebook's are, has a module that is __main__ or that
    # was not imported here.
    made_in = sys.modules.get(type(value).__module__)
    if made_in in (None, sys.modules["__main__"]) or isinstance(value, types.SimpleNamespace):
        return _form(getattr(value, "__dict__", {}), depth)
    return id(value)


def _only_added_to(fn, name):
    """Do this function and the functions that it calls use `name` only to call methods that add to
    the object?"""
    uses = []
    for code in functions_of(fn):
        steps = list(dis.get_instructions(code))
        uses += [after.argval for step, after in itertools.pairwise(steps) if _names(step, name)]
    return bool(uses) and all(use in ADDS for use in uses)


def _names(step, name):
    """Does this instruction of the bytecode load or store `name`, alone or with other names?"""
    return step.opname not in ("MAKE_CELL", "COPY_FREE_VARS", "LOAD_CLOSURE") and (
        step.argval == name or (isinstance(step.argval, tuple) and name in step.argval)
    )


def warning(folder: str, nproc: int, spoke: Iterable[int]) -> str:
    """The warning about the ranks' reports in `folder`, or "" if there is nothing to warn about.

    spoke: the ranks that have printed something. For these, only CERTAIN changes are mentioned.
    """
    ranks_of = collections.defaultdict(list)
    for rank in range(nproc):
        try:
            with open(f"{folder}/copies{rank}") as file:
                found = json.load(file)
        except FileNotFoundError:
            continue
        for name, how in found.items():
            if how == CERTAIN or rank not in spoke:
                ranks_of[name].append(rank)
    if not ranks_of:
        return ""
    name, ranks = next(iter(ranks_of.items()))
    return (
        f"{' and '.join(ranks_of)} {'was' if len(ranks_of) == 1 else 'were'} changed on "
        f"{ranks_text(ranks)}, but not here: ranks work on copies of the notebook's variables and "
        f"of the arguments. Return what you need, as in `return {name}`, and launch.run gives you "
        f"what each rank returned"
    )
