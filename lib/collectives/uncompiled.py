"""Functions that torch.compile leaves out of its graphs, without importing the compiler.

    @uncompiled
    def post(...): ...          traced code breaks its graph here, and runs `post` as plain Python

torch.compile cannot trace code that asks a process group for its backend, or that frees and refills
a parameter's storage. `torch.compiler.disable` declares this, but imports torch._dynamo, which
takes as long as importing torch. We therefore call it only after something else has imported
torch._dynamo, as any use of torch.compile does.
"""

import functools
import importlib.abc
import importlib.util
import sys

import torch

COMPILER = "torch._dynamo"
_later = []  # functions to call once the compiler has been imported


def uncompiled(function):
    """`function`, at which torch.compile breaks its graph."""
    current = [function]

    def disable():
        current[0] = torch.compiler.disable(function)

    if COMPILER in sys.modules:
        disable()
    else:
        _later.append(disable)

    @functools.wraps(function)
    def call(*args, **kwargs):
        return current[0](*args, **kwargs)

    return call


class _AfterCompiler(importlib.abc.MetaPathFinder):
    """At the import of the compiler, removes itself, and afterwards calls all of `_later`."""

    def find_spec(self, name, path, target=None):
        if name != COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            while _later:
                _later.pop()()

        spec.loader.exec_module = exec_module
        return spec


if COMPILER not in sys.modules:
    sys.meta_path.insert(0, _AfterCompiler())
