"""Preloaded into the forkserver of the ranks: a rank that is to join by NCCL gets tagged devices
first.

A rank for which gloo was asked sees as many as CUDA_VISIBLE_DEVICES lets it. The emulation's
functions are compiled as files of torch: neither the ledger nor an error takes them for the user's.
"""

import importlib.util
import os
import sys

import torch

from lib import backend
from lib.measuring import mfu


def as_torchs(name):
    spec = importlib.util.find_spec(f"tests.emulation.{name}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    file = os.path.join(os.path.dirname(torch.__file__), "emulation", f"{name}.py")
    exec(compile(spec.loader.get_source(spec.name), file, "exec"), vars(module))
    return module


sys.modules.setdefault("torch._C._functions", torch._C._functions)  # see tags_checks
as_torchs("tags")
as_torchs("tags_modes")
tags_cuda = as_torchs("tags_cuda")
plain_join = backend.join
mfu.GPU = mfu.CPU  # a tagged device multiplies at the pace of a CPU


def join(choice=None, store=None, timeout=600.0):
    if choice.ranks_per_gpu:
        tags_cuda.install()
    else:
        visible = tags_cuda.GPUS if os.environ.get("CUDA_VISIBLE_DEVICES") != "" else 0
        torch.cuda.is_available, torch.cuda.device_count = lambda: visible > 0, lambda: visible
    plain_join(choice, store, timeout)


backend.join = join
