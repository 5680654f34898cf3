"""Compiles null_works.cpp once per version of torch, into build/, and loads it.

    parent: path()  g++, half a minute the first time, under a lock;
                    makes build/emulation/torch-2.13.0-1f3a/
    rank:   load()  loads what the parent has made, and compiles nothing

Without a compiler `missing()` says why, and whoever wanted to run under the rules reports that, and
does not run.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("null_works.cpp")
ROOT = Path(__file__).parents[2]


def missing() -> str | None:
    """Why the rules cannot run here; None if they can."""
    if not sys.platform.startswith("linux"):
        return "not run: the emulation of NCCL's rules is for Linux"
    if not hasattr(torch.library, "get_kernel"):
        return f"not run: torch {torch.__version__} has no torch.library.get_kernel"
    if not _made().exists() and _compiler() is None:
        return "not run: no C++ compiler"
    return None


def path() -> Path:
    """The compiled library; compiles it first where it has not been made."""
    made = _made()
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with open(made.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at the same time
            if not made.exists():
                _compile(made)
    return made


def load() -> None:
    """torch.ops.strict in this process. On a rank: the parent must have called `path` before."""
    if not hasattr(torch.ops.strict, "no_work"):
        torch.ops.load_library(str(_made()))


def _made():
    key = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]
    return ROOT / "build" / "emulation" / f"torch-{torch.__version__}-{key}" / "null_works.so"


def _compiler():
    return next(
        (
            found
            for name in (os.environ.get("CXX"), "g++", "c++")
            if name and (found := shutil.which(name))
        ),
        None,
    )


def _compile(made):
    torch_folder = Path(torch.__file__).parent
    include, libraries = torch_folder / "include", torch_folder / "lib"
    unfinished = made.with_suffix(f".{os.getpid()}")
    command = [
        _compiler(), "-std=c++20", "-O0", "-fPIC", "-shared", str(SOURCE), "-o", str(unfinished),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        "-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include"),
        f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(
            f"{SOURCE.name} does not compile against torch "
            f"{torch.__version__}:\n{ended.stderr[-3000:]}"
        )
    os.replace(unfinished, made)
