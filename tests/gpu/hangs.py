"""The hang matrix: each way to hang or to die gets its verdict soon, of the right kind, and leaves no process.

    case                          on gloo      under NCCL
    both send 12 B first          deadlock     returns: NCCL keeps so little in its buffers; or a deadlock
    both send 8 MB first          deadlock     deadlock
    the receive is larger         mismatch     mismatch, or a hang that is told as one
    a collective is missing       deadlock     deadlock
    a rank is killed              died         died

Seconds are those of the whole launch less those of one that returns at once: from the fault to the verdict.
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from lib import launch
from tests.gpu.processes import ranks_left

TIMEOUT = 8.0  # seconds until a hang that was not understood is a "timeout", which no case allows
SOON = 12.0  # seconds to a verdict


def neighbour():
    return (dist.get_rank() + 1) % dist.get_world_size(), (dist.get_rank() - 1) % dist.get_world_size()


def both_send_first(elements):
    x = torch.full((elements,), float(dist.get_rank()))
    to, frm = neighbour()
    dist.send(x, to)
    dist.recv(x, frm)
    return x[0].item()


def larger_receive():
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1)
    elif dist.get_rank() == 1:
        x = torch.zeros(8)
        dist.recv(x, 0)
        return x.sum().item()


def missing_collective():
    x = torch.ones(4)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        return 0.0
    dist.all_reduce(x)
    return x.sum().item()


def killed():
    x = torch.ones(4)
    dist.all_reduce(x)
    x.sum().item()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    return x.sum().item()


HANGS = ("deadlock", "no progress", "mismatch")
CASES = {  # name -> (function, arguments, kinds on gloo, kinds under NCCL)
    "both send 12 B": (both_send_first, (3,), ("deadlock",), ("returned", "deadlock", "no progress")),
    "both send 8 MB": (both_send_first, (2 << 20,), ("deadlock",), ("deadlock", "no progress")),
    "larger receive": (larger_receive, (), ("mismatch",), HANGS),
    "missing collective": (missing_collective, (), ("deadlock",), ("deadlock", "no progress")),
    "killed rank": (killed, (), ("died",), ("died",)),
}


def verdict(backend: str, ranks: int, fn, *args) -> tuple[str, float, int]:
    """(kind, or "returned"; seconds of the run on ranks that are there already; processes left)"""
    launch.capture(dist.get_rank, nproc=ranks, backend=backend, timeout=TIMEOUT)
    began = time.monotonic()
    try:
        launch.capture(fn, *args, nproc=ranks, backend=backend, timeout=TIMEOUT)
        kind = "returned"
    except launch.RankError as error:
        kind = error.kind
        print(error, flush=True)
    return kind, time.monotonic() - began, ranks_left()


def run(backend: str, ranks: int) -> dict[str, tuple[str, float, int, bool]]:
    """{case: (kind, seconds to the verdict, processes left, as it should be?)}"""
    _, empty, _ = verdict(backend, ranks, dist.get_rank)
    seen = {}
    for case, (fn, args, on_gloo, on_nccl) in CASES.items():
        kind, seconds, left = verdict(backend, ranks, fn, *args)
        seconds = max(0.0, seconds - empty)
        right = kind in (on_gloo if backend == "gloo" else on_nccl) and left == 0 and seconds < SOON
        seen[case] = kind, seconds, left, right
        print(f"{case}: {kind} after {seconds:.1f} s, {left} processes left{'' if right else ', WRONG'}", flush=True)
    return seen


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.hangs")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    seen = run(options.backend, options.ranks)
    said = [f"{case}: {kind} in {seconds:.1f} s" + f" WRONG ({left} left)" * (not right)
            for case, (kind, seconds, left, right) in seen.items()]  # fmt: skip
    print(f"showed: {'; '.join(said)}; {sum(left for _, _, left, _ in seen.values())} processes left")
    return 0 if all(right for *_, right in seen.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
