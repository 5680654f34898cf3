"""Recognises habits from other launchers, or from programs with a single process, that do not work
with launch.run, and says in a sentence what to write instead.

    function         looks at                       and recognises, for example
    of_error         what a rank's function raised  init_process_group, .cuda() without a GPU, ...
    of_result        what a rank cannot send back   a model in DistributedDataParallel, a group, ...
    of_call          how launch.run was called      main(rank, world_size) as for torch's mp.spawn
    shell_line       what a rank does not have      `!ls` or `%timeit` in the function
    explain_outside  what only a rank can do        launch.run(f(), ...): dist.get_rank() outside

A run that succeeds is hardly slowed down by this. We only compare its call with the function's
signature, and look up the classes of the objects in its results.
"""

import dis
import functools
import inspect
import multiprocessing
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import distributed_c10d as c10d

from lib import backend
from lib.ledger.source import position

ERRORS = [  # (pattern in the error's text, only for ranks without a GPU?, what to do instead)
    (
        r"initialize the default process group twice", False,
        "launch.run has initialised torch.distributed on every rank. Leave out init_process_group, "
        "and destroy_process_group at the end; dist.get_rank() "
        "and dist.get_world_size() give the two numbers.",
    ),
    (
        r"Default process group has not been initialized|Process group cannot be None", False,
        "This rank has called dist.destroy_process_group() before. Leave it out: launch.run ends "
        "the group itself.",
    ),
    (r"reading a line", False,
    "Ranks have no keyboard. Ask before launch.run, and pass the answer as an argument."),
    (
        r"name 'get_ipython' is not defined", False,
        "Lines with ! or % belong to the notebook, and a rank is a plain Python process: put them "
        "into a cell of their own, or use subprocess.run([...]) on the rank.",
    ),
    (
        r"device_ids", True,
        "This rank has no GPU, and DistributedDataParallel takes device_ids only for a model on a "
        "GPU: leave them out.",
    ),
    (
        r"map_location", True,
        "This rank has no GPU, and the file was written where there was one: torch.load(path, "
        "map_location=\"cpu\").",
    ),
    (
        r"NCCL", True,
        "These ranks have no GPU and communicate over gloo: "
        "leave out the name of the backend, and it is theirs.",
    ),
    (
        r"CUDA|_cuda_|NVIDIA|accelerator device when none", True,
        "This rank has no GPU. Leave out torch.cuda.set_device, which launch.run calls where there "
        "are GPUs, and write x.to(backend.device()), with `from lib import backend`, in place of "
        ".cuda() and \"cuda\": it works on both.",
    ),
]  # fmt: skip
WEIGHTS_OF_ALL = (
    "Return its full weights, which all ranks gather together: {name: p.full_tensor() for name, p "
    "in model.state_dict().items()}"
)
RESULTS = {  # class of an object in a result -> (what it is, what to return instead)
    "DistributedDataParallel": (
        "a model in DistributedDataParallel",
        "Return model.module.state_dict()",
    ),
    "FSDPModule": ("a model that fully_shard has sharded", WEIGHTS_OF_ALL),
    "FullyShardedDataParallel": (
        "a model in FullyShardedDataParallel",
        "Return its full weights, which all ranks gather together: "
        "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True, cpu_offload=True))",
    ),
    "DTensor": (
        "a DTensor",
        "Return x.full_tensor(), which all ranks call together, or this rank's x.to_local()",
    ),
    "ProcessGroup": ("a process group", "Return its ranks, dist.get_process_group_ranks(group)"),
    "DeviceMesh": ("a DeviceMesh", "Return mesh.mesh, the tensor of its ranks"),
    "Work": ("the work of an asynchronous call", "Call work.wait(), and return the tensor"),
    "Future": ("a future", "Call its wait(), and return what that gives"),
    "generator": ("a generator", "Return list(...) of it"),
    "coroutine": (
        "a coroutine",
        "Run it on the rank, asyncio.run(f()), and return what that gives",
    ),
}
RANK = {
    "rank", "local_rank", "global_rank", "proc_rank", "process_rank", "gpu", "gpu_id", "local_gpu",
    "device_id",
    "proc_id", "process_id", "worker_id",
}  # fmt: skip
WORLD_SIZE = {
    "world_size", "worldsize", "n_ranks", "num_ranks", "nranks", "nprocs", "nproc", "n_procs",
    "num_procs",
    "num_processes", "ngpus", "n_gpus", "num_gpus", "ngpus_per_node", "size",
}  # fmt: skip


def of_error(text: str) -> str:
    """What to do about an error, given its text, that a function raised on this rank; "" if the
    error is not recognised."""
    on_cpu = backend.device().type == "cpu"
    ways = (
        way for says, cpu_only, way in ERRORS if (on_cpu or not cpu_only) and re.search(says, text)
    )
    return next(ways, "")


def of_result(thing: Any) -> tuple[str, str] | None:
    """(what `thing` is, what to return instead) if a rank cannot send it back, else None."""
    theirs = (
        kind.__name__
        for kind in type(thing).__mro__
        if kind.__module__.split(".")[0] in ("torch", "builtins")
    )
    return next((RESULTS[name] for name in theirs if name in RESULTS), None)


def of_model_around(what: str) -> str:
    """What to return instead of a model that contains `what` among its modules or parameters. what:
    the first element of a result of `of_result`."""
    is_sharded = what in (RESULTS["FSDPModule"][0], RESULTS["DTensor"][0])
    return RESULTS["FullyShardedDataParallel"][1] if is_sharded else "Return model.state_dict()"


def of_call(fn: Callable, args: tuple) -> str:
    """What is wrong with calling fn(*args), and what to write instead; "" if the arguments fit the
    signature, or if the signature is not known."""
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):  # the signature of a function written in C may be unknown
        return ""
    try:
        signature.bind(*args)
        return ""
    except TypeError as error:
        name, why = _name(fn), str(error)
    given = ", ".join(map(_short, args))
    if _is_spawned(signature) and len(args) < len(signature.parameters):
        others = list(signature.parameters)[2 if _counts_ranks(signature) else 1 :]
        return (
            f"{name}{signature} is written for torch.multiprocessing.spawn, which passes the rank "
            f"as first argument; launch.run passes what follows the function, ({given}), and "
            f"nothing else. Take the rank inside: rank, world_size = dist.get_rank(), "
            f"dist.get_world_size(). Then write launch.run({', '.join([name, *others])}, nproc=4)"
        )
    return (
        f"{name}{signature} cannot be called with ({given}): {why}. launch.run passes the function "
        f"what follows it: launch.run({', '.join([name, *signature.parameters])}, nproc=4)"
    )


def given_as_rank(fn: Callable, args: tuple, nproc: int) -> str:
    """A warning if a function that is written for mp.spawn was given a rank as an argument, because
    every rank would then take this number for its own; else ""."""
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return ""
    numbers = len(args) > 1 and all(type(arg) is int for arg in args[:2])
    if nproc == 1 or not numbers or not _is_spawned(signature) or not _counts_ranks(signature):
        return ""
    first = next(iter(signature.parameters))
    return (
        f"{_name(fn)} was given {first}={args[0]} on all {nproc} ranks, because launch.run passes "
        f"the same arguments to each. Take the rank inside the function, {first} = dist.get_rank()"
    )


def _is_spawned(signature):
    return next(iter(signature.parameters), None) in RANK


def _counts_ranks(signature):
    return next(iter([*signature.parameters][1:]), None) in WORLD_SIZE


def _name(fn):
    return getattr(fn, "__name__", type(fn).__name__)


def _short(value):
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:40]}..."


def no_function(thing: Any) -> str:
    """What to do when launch.run was given `thing` in place of a function."""
    return (
        f"launch.run runs a function, not {_short(thing)}. Pass the function itself, without "
        f"parentheses, and then its arguments: launch.run(f, x, nproc=4), not launch.run(f(x), "
        "nproc=4), which calls f here in the notebook"
    )


def unknown_names(names: list[str]) -> str:
    """What to do when launch.run was given keyword arguments that it does not have."""
    return (
        f"launch.run has no {', '.join(f'{name}=' for name in names)}. The arguments of the "
        f"function follow it, by position: launch.run(f, x, y, nproc=4); one by name goes with "
        "functools.partial(f, name=value)"
    )


def shell_line(things: tuple) -> str:
    """The position, in words, of the first line with ! or % in these functions, or in functions of
    the same module that they call; "" if there is none."""
    for code in functions_of(*things):
        if "get_ipython" in code.co_names:
            lines = (
                step.positions.lineno
                for step in dis.get_instructions(code)
                if step.argval == "get_ipython"
            )
            return position(code.co_filename, next(lines) or 0, code.co_name)
    return ""


def functions_of(*things: Any) -> Iterator[types.CodeType]:
    """The code objects of these functions, of functions defined inside them, and of functions of
    the same module that they call, directly or indirectly."""
    seen, waiting = set(), [thing for thing in things if isinstance(thing, types.FunctionType)]
    while waiting:
        fn = waiting.pop(0)
        if fn in seen:
            continue
        seen.add(fn)
        for code in _codes(fn.__code__):
            yield code
            called = [fn.__globals__.get(name) for name in code.co_names]
            waiting += [
                f
                for f in called
                if isinstance(f, types.FunctionType) and f.__module__ == fn.__module__
            ]


def _codes(code) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def explain_outside() -> None:
    """Wrap two functions of torch that raise an error in the notebook, because it has no process
    group and none of torchrun's variables. In a process that is not a rank, the error then adds
    that the line ran in the notebook, and what to write instead."""
    for name in ("_get_default_group", "init_process_group"):
        plain = getattr(c10d, name)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is plain:
                setattr(module, name, _explained(plain))


def _explained(plain):
    @functools.wraps(plain)
    def call(*args, **kwargs):
        try:
            return plain(*args, **kwargs)
        except ValueError as error:
            of_no_launcher = "RANK" not in os.environ and multiprocessing.parent_process() is None
            if of_no_launcher and re.search(
                "has not been initialized|environment variable RANK expected", str(error)
            ):
                error.args = (
                    f"{str(error).rstrip('.')}. This line ran in the notebook itself, which is no "
                    f"rank. Give launch.run the function without parentheses, launch.run(f, x, "
                    "nproc=4), and its ranks call it.",
                )
            raise

    return call
