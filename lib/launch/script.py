"""Writes a function of the notebook as a script for torchrun, because a real cluster runs files and
not cells.

    launch.as_script(train, "train.py")    ->    torchrun --nproc-per-node 4 train.py

The script contains the function, the functions, classes and values of the notebook that it uses,
and the imports that these need. We find them by following the names that each function reads. The
script's `main` is decorated with torch's @record, so that torchrun reports the traceback of a rank
that raised an error.
"""

import ast
import dis
import inspect
import linecache
import os
import textwrap
import types
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from lib import backend, ledger
from lib.launch import generators

TEMPLATE = '''"""{name}, as a script: {command}"""

{imports}

{body}

@record  # torchrun then shows the traceback of a rank that failed
def {main}():
    backend.join()  # this rank's device and process group, by RANK, WORLD_SIZE, ... of torchrun
    generators.seed({seed}, dist.get_rank())  # random numbers differ by rank, and are those \
of launch.run
    with ledger.record_to_dir():  # a log of what this rank sends, in $LEDGER_DIR, if that is set
        result = {name}({args})
        if result is not None:
            # in one write: ranks share stdout
            print(f"[rank {{dist.get_rank()}}] {{result}}\\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    {main}()
'''
NEEDED = {
    "dist": (dist, "import torch.distributed as dist"),
    "backend": (backend, "from lib import backend, ledger"),
    "generators": (generators, "from lib.launch import generators"),
    "ledger": (ledger, "from lib import backend, ledger"),
    "record": (record, "from torch.distributed.elastic.multiprocessing.errors import record"),
}


def as_script(
    fn: Callable, path: str | os.PathLike, *args: Any, nproc: int = 4, seed: int = 0
) -> str:
    """Write fn(*args) as a script for torchrun, and return the command line that runs it.

    args, and the notebook's values that fn uses, must be literals such as numbers, strings, or
    tuples, lists or dicts of them. nproc: the number of ranks in the command line. seed: the base
    seed; each rank draws the same random numbers as under `launch.run` with that seed.

    Raises TypeError, naming the value, for a value that cannot be written as a literal, for one
    whose name the script needs itself (NEEDED), for a function that uses variables of an enclosing
    function, for a function or class whose source cannot be found, and if fn is not a function
    written in Python.
    """
    if not isinstance(fn, types.FunctionType):
        raise TypeError(f"as_script writes a function, not {fn!r}")
    path = os.fspath(path)
    imports, pieces = {name: line for name, (_, line) in NEEDED.items()}, {}
    _gather(fn, imports, pieces)
    main = "main"
    while main in imports or main in pieces:  # fn itself may be called main
        main += "_"
    command = f"torchrun --standalone --nproc-per-node {nproc} "
    text = TEMPLATE.format(
        name=fn.__name__,
        main=main,
        seed=seed,
        command=command + os.path.basename(path),
        imports="\n".join(
            sorted(
                set(imports.values()), key=lambda line: ("lib" in line, line[:4] == "from", line)
            )
        ),
        body="\n\n".join(pieces.values()),
        args=", ".join(
            _literal(arg, f"argument {i} of {fn.__name__}") for i, arg in enumerate(args)
        ),
    )
    with open(path, "w") as file:
        file.write(text)
    return command + path


def _gather(fn, imports, pieces):
    """Add the source of fn, and of everything that it uses, to `imports` and `pieces`, each
    definition before those that use it."""
    fn = inspect.unwrap(fn)
    # a method that calls super() has the free variable __class__
    outer = [name for name in fn.__code__.co_freevars if name != "__class__"]
    if outer:
        raise TypeError(
            f"{fn.__name__} uses {', '.join(outer)} of the function around it; "
            "define it at the top of a cell and pass those as arguments"
        )
    _refuse_needed(fn.__name__, fn)
    source = _source(fn)
    _gather_names(
        [*_names_outside_bodies(source), *_global_names(fn.__code__)], fn, imports, pieces
    )
    pieces[fn.__name__] = source


def _gather_class(cls, imports, pieces):
    _refuse_needed(cls.__name__, cls)
    source = _class_source(cls)
    outside = list(_names_outside_bodies(source))
    pieces[cls.__name__] = ""  # so that the search ends where a method names its own class
    for method in _methods(cls):
        _gather_names([*outside, *_global_names(method.__code__)], method, imports, pieces)
    del pieces[cls.__name__]  # added again at the end, because it comes after what it uses
    pieces[cls.__name__] = source


def _gather_names(names, fn, imports, pieces):
    """Add those of these names that are globals of fn, each with everything that it uses."""
    for name in names:
        if name not in fn.__globals__:
            continue
        value = fn.__globals__[name]
        _refuse_needed(name, value)
        if name in imports or name in pieces:
            continue
        if isinstance(value, types.ModuleType):
            imports[name] = _import_line(value.__name__, name)
        elif isinstance(value, (types.FunctionType, type)):
            known_as = value.__name__
            if not _from_notebook(value):
                as_name = f" as {name}" if name != known_as else ""
                imports[name] = f"from {value.__module__} import {known_as}{as_name}"
                continue
            if value is not fn and known_as not in pieces:  # a function may call itself
                (_gather_class if isinstance(value, type) else _gather)(value, imports, pieces)
            if name != known_as:
                pieces[name] = f"{name} = {known_as}"
        else:
            pieces[name] = f"{name} = {_literal(value, name)}"


def _refuse_needed(name, value):
    if name in NEEDED and value is not NEEDED[name][0]:
        raise TypeError(
            f"{name} is a {type(value).__name__} of yours, but in a script that name comes from "
            f"`{NEEDED[name][1]}`: give yours another name"
        )


def _names_outside_bodies(source):
    """The names in the bases, decorators and default values of a function, or of a class and its
    methods. These are evaluated at the definition, so no body's bytecode contains them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            outside = [*node.decorator_list, *getattr(node, "bases", [])]
            if isinstance(node, ast.FunctionDef):
                outside += [
                    d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None
                ]
            yield from (
                part.id for tree in outside for part in ast.walk(tree) if isinstance(part, ast.Name)
            )


def _methods(cls):
    """The functions that a class defines, without the decorators around them (property, wraps)."""
    for member in vars(cls).values():
        member = inspect.unwrap(
            getattr(member, "fget", None) or getattr(member, "__func__", member)
        )
        if isinstance(member, types.FunctionType) and member.__qualname__.startswith(
            f"{cls.__qualname__}."
        ):
            yield member


def _global_names(code):
    """The globals that the code reads. We cannot use its co_names, because these contain the names
    of attributes, too."""
    yield from (
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _global_names(const)


def _from_notebook(value):
    return value.__module__ == "__main__"


def _import_line(module, name):
    if module == name:
        return f"import {module}"
    package, _, last = module.rpartition(".")
    if last == name and package:
        return f"from {package} import {name}"
    return f"import {module} as {name}"


def _source(thing):
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        raise TypeError(
            f"the source of {thing.__name__} cannot be found; define it in a cell or a file"
        ) from None


def _class_source(cls):
    """The source of a class from the notebook. `inspect` would look in the file of the class's
    module, which a notebook does not have, so we look in the cell from which one of its methods was
    compiled."""
    for method in _methods(cls):
        text = "".join(linecache.getlines(method.__code__.co_filename))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return textwrap.dedent(
                    "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
                )
    raise TypeError(
        f"the source of class {cls.__name__} cannot be found; "
        f"give it a method, and define it in a cell"
    )


def _literal(value, what):
    try:
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    except (ValueError, SyntaxError):
        pass
    raise TypeError(
        f"{what} is a {type(value).__name__}, which cannot be written into a script; "
        "make it inside the function, or use numbers and strings"
    )
