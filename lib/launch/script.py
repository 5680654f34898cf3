"""The same function as a file for torchrun: what a notebook's cell becomes on a real cluster.

    launch.as_script(train, "train.py")    ->    torchrun --nproc-per-node 4 train.py

The file holds the function, the functions and values of the notebook that it uses, and the imports they need.
"""

import inspect
import os
import textwrap
import types

TEMPLATE = '''"""{name}, as a script: {command}"""

{imports}

{body}

if __name__ == "__main__":
    backend.join()  # this rank's device and its process group, from the RANK, WORLD_SIZE, ... that torchrun sets
    with ledger.kept():  # a book of this rank's communication in $LEDGER_DIR, if that is set
        result = {name}({args})
        if result is not None:
            print(f"[rank {{dist.get_rank()}}] {{result}}")
    dist.destroy_process_group()
'''
NEEDED = {"dist": "import torch.distributed as dist", "backend": "from lib import backend, ledger"}
PLAIN = (int, float, complex, str, bytes, bool, type(None))


def as_script(fn, path: str | os.PathLike, *args, nproc: int = 4) -> str:
    """Write fn(*args) as a file that torchrun runs, and return the command line that runs it.

    args and the notebook's values that fn uses must be numbers, strings, or tuples, lists, dicts of them.
    Raises TypeError, naming the value, for one that cannot be written down, and for a function without source.
    """
    if not isinstance(fn, types.FunctionType):
        raise TypeError(f"as_script writes a function, not {fn!r}")
    path = os.fspath(path)
    imports, pieces = dict(NEEDED), {}
    _gather(fn, imports, pieces)
    command = f"torchrun --standalone --nproc-per-node {nproc} "
    text = TEMPLATE.format(
        name=fn.__name__,
        command=command + os.path.basename(path),
        imports="\n".join(sorted(set(imports.values()), key=lambda line: ("lib" in line, line))),
        body="\n\n".join(pieces.values()),
        args=", ".join(_literal(arg, f"argument {i} of {fn.__name__}") for i, arg in enumerate(args)),
    )
    with open(path, "w") as file:
        file.write(text)
    return command + path


def _gather(fn, imports, pieces):
    """Put the source of fn, and of all that it uses, into `imports` and `pieces`, what is used first."""
    if fn.__closure__:
        raise TypeError(
            f"{fn.__name__} uses {', '.join(fn.__code__.co_freevars)} of the function around it; "
            "define it at the top of a cell and pass those as arguments"
        )
    for name in _global_names(fn.__code__):
        if name not in fn.__globals__ or name in imports or name in pieces:
            continue
        value = fn.__globals__[name]
        if isinstance(value, types.ModuleType):
            imports[name] = _import_line(value.__name__, name)
        elif isinstance(value, (types.FunctionType, type)) and not _from_notebook(value):
            imports[name] = f"from {value.__module__} import {value.__name__}" + (
                f" as {name}" if name != value.__name__ else ""
            )
        elif isinstance(value, types.FunctionType):
            if value is not fn:  # a function may call itself
                _gather(value, imports, pieces)
        elif isinstance(value, type):
            pieces[name] = _source(value)
            for member in vars(value).values():
                if isinstance(member, types.FunctionType):
                    _gather_names(member, imports, pieces)
        else:
            pieces[name] = f"{name} = {_literal(value, name)}"
    pieces[fn.__name__] = _source(fn)


def _gather_names(fn, imports, pieces):
    before = dict(pieces)
    _gather(fn, imports, pieces)
    if fn.__name__ not in before:
        del pieces[fn.__name__]  # a method: its source is in its class


def _global_names(code):
    yield from code.co_names
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
        raise TypeError(f"the source of {thing.__name__} cannot be found; define it in a cell or a file") from None


def _literal(value, what):
    plain = isinstance(value, PLAIN) or (
        isinstance(value, (tuple, list, set)) and all(_is_literal(v) for v in value)
    ) or (isinstance(value, dict) and all(_is_literal(k) and _is_literal(v) for k, v in value.items()))  # fmt: skip
    if not plain:
        raise TypeError(
            f"{what} is a {type(value).__name__}, which cannot be written into a script; "
            "make it inside the function, or use numbers and strings"
        )
    return repr(value)


def _is_literal(value):
    try:
        _literal(value, "")
    except TypeError:
        return False
    return True
