"""Looks, after each cell, for signs that a graded notebook changed what it is graded by: loaded
into its kernel.

    builtins, torch.distributed, lib  a function there that the notebook defined,
                                      or that is another than before
    names of modules in the notebook  such as `check`, bound to something else
    IPython's input transformers      more than there were, so that later cells run as other text

What is found goes into LAB_REPORT as {"tampered": what}, and from there into a note for the
instructor; it costs no points, for a student may replace `print` while debugging. It sees the plain
ways only: in one process, code that wants to hide from this can. In ranks nothing is looked for:
they are fresh processes, and the ledger sits below Python.
"""

import json
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

WATCHED = ("builtins", "torch.distributed", "lib")
FUNCTIONS = (FunctionType, BuiltinFunctionType)


def install(shell) -> None:
    """From its next cell on, look after each cell of `shell` (IPython's)."""
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
    """Names of what is not what it was, or should not be the notebook's. `before`: what was first
    seen, kept up."""
    for module in list(sys.modules.values()):
        place = getattr(module, "__name__", None)
        if not isinstance(module, ModuleType) or not _watched(place):
            continue
        for name, value in list(vars(module).items()):
            # isinstance would ask torch's deprecated names, which then warn in the middle of a cell
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
