"""Everything of the course that runs on ranks, on tagged devices, as if NCCL had been asked for.

    python -m tests.emulation tags checks [names]      every graded check,
                                                       with lib's own reference as the answer
    python -m tests.emulation tags cells [labs] [ids]  the code cells of the solutions, in order;
                                                       "cells 3" is Lab 3's
    python -m tests.emulation tags faults              planted mistakes, which must be caught,
                                                       and their mended twins
    python -m tests.emulation tags reuse               what a run may leave on its GPU,
                                                       and whether its ranks run again
    python -m tests.emulation tags tests               one test of lib on ranks

One line per item, and a total; the exit code is 1 if an item failed.
"""

import os
import sys
import time

import torch

from lib import backend
from lib.check import framework
from lib.launch import server


def main(arguments):
    what, names = arguments[0], arguments[1:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    as_if_with_gpus()
    from tests.emulation import tags_cells, tags_checks, tags_faults, tags_reuse, tags_tests

    kinds = {"checks": tags_checks, "cells": tags_cells, "faults": tags_faults, "reuse": tags_reuse}
    run = (kinds | {"tests": tags_tests})[what].run
    began, items, failed = time.monotonic(), 0, 0
    for name, problem, seconds in run(names):
        items, failed = items + 1, failed + bool(problem)
        print(f"{'FAILED' if problem else 'ok    '}  {name}  {seconds:.1f} s", flush=True)
        if problem:
            print("        " + problem.strip().replace("\n", "\n        "), flush=True)
    print(f"{what}: {items - failed} of {items} ok, {time.monotonic() - began:.0f} s")
    sys.stdout.flush()
    return 1 if failed or not items else 0


def as_if_with_gpus():
    """The launcher believes in 8 GPUs, and the ranks find tagged ones."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    plain = backend.choose
    backend.choose = lambda asked, nproc, gpus=None: plain(asked, nproc, 8)
    framework.BACKEND, framework.TIMEOUT = "nccl", 300
    server.PRELOAD = [
        *server.PRELOAD,
        "tests.emulation.tags_on_ranks",
        "lib.launch.worker",
        "lib.check.framework",
    ]
