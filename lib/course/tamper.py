"""Looks for signs that a graded notebook has changed the code that grades it. It is loaded into the
notebook's kernel, and looks for them after each cell.

    builtins, torch.distributed, lib  a function there that the notebook has defined,
                                      or that is no longer the original one
    names of modules in the notebook  such as `check`, bound to something else
    IPython's input transformers      their number has changed, so later cells may run as other text

What it finds is written to LAB_REPORT as {"tampered": what}, from which the grader makes a note for
the instructor. It costs no points, because a student may replace `print` while debugging. Only
simple attempts are found, because code in the same process can hide from this. We do not look in
ranks, because they are fresh processes, in which the ledger records below Python.
"""

import json
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

WATCHED = ("builtins", "torch.distributed", "lib")
FUNCTIONS = (FunctionType, BuiltinFunctionType)


def install(shell) -> None:
    """Look for these signs after each cell of IPython's `shell`, beginning with the next one."""
    book, before = os.environ.get("LAB_REPORT"), {}
    transformers = _transformers(shell)
    told = set()

    def look(*_) -> None:
        found = list(_replaced(before, shell.user_ns))
        found += ["an input transformer of IPython"] if _transformers(shell) != transformers else []
        for what in found:
            if book and what not in told:
                told.add(what)
                with open(book, "a") as file:
                    file.write(json.dumps({"tampered": what}) + "\n")

    shell.events.register("post_run_cell", look)


def _transformers(shell) -> tuple[int, ...]:
    manager = shell.input_transformer_manager
    every = (manager.cleanup_transforms, manager.line_transforms, manager.token_transformers)
    return tuple(
        len(transforms)
        for transforms in (*every, shell.input_transformers_post, shell.ast_transformers)
    )


def _replaced(before: dict, names: dict) -> Iterator[str]:
    """Yield the names whose value has changed, or is a function that the notebook has defined.
    before: {(module, name): its first value}, to which this call adds what is new."""
    for module in list(sys.modules.values()):
        place = getattr(module, "__name__", None)
        if not isinstance(module, ModuleType) or not _watched(place):
            continue
        for name, value in list(vars(module).items()):
            # Not isinstance, because it makes torch's deprecated names print their warnings.
            kind = type(value)
            first = (
                before.setdefault((place, name), value) if issubclass(kind, FUNCTIONS) else value
            )
            first = before.get((place, name), first)
            if first is not value or (
                issubclass(kind, FunctionType) and value.__module__ == "__main__"
            ):
                yield f"{place}.{name}"
    for name, value in list(names.items()):
        if isinstance(value, ModuleType):
            before.setdefault(("", name), value)
        if before.get(("", name), value) is not value:
            yield name


def _watched(place) -> bool:
    return isinstance(place, str) and any(
        place == room or place.startswith(f"{room}.") for room in WATCHED
    )
