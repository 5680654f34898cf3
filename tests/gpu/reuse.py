"""Launch after launch on the same processes: what a run computed, and what the ledger followed, is
gone when it ends.

    launch 0  ->  launch 1  ->  launch 2   the same process ids:
                                           the ranks were as before, and were reused
       a matmul and its backward pass      cuBLAS keeps a workspace on each thread that used it
       200 all_reduces with async_op=True  the ledger follows each one;
                                           a work that is kept holds its tensors
       torch.cuda.set_device(another GPU)  so the next run would compute there,
                                           if it were not put back

A rank that is not reused costs seconds on a GPU, for its CUDA context and NCCL's connections, where
reusing it costs milliseconds. And works that are kept take memory of the GPU until the run ends, in
every program that communicates asynchronously, such as DDP.
"""

import argparse
import gc
import os
import sys
import time
import weakref

import torch
import torch.distributed as dist

from lib import backend, launch
from lib.launch import warm

LAUNCHES, WORKS = 3, 200
ELEMENTS = 1 << 18  # of an all_reduce: 1 MiB, so that 200 that are kept are plain to see
WARM_UP = 10  # all_reduces before memory is looked at: the allocator and NCCL take what they need
A_FEW = 3  # works that may live: the one in hand, and the last that each of two threads asked about


def allocated() -> int:
    """Bytes that tensors hold on this rank's GPU, as torch counts them; 0 on the CPU, where
    torch counts none."""
    if backend.device().type != "cuda":
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def on_rank():
    """What this launch finds, does and leaves: {"pid", "device", "bytes" at its begin, "grew" by,
    works "alive"}."""
    seen = {"pid": os.getpid(), "device": str(backend.device()), "bytes": allocated()}
    layer = torch.nn.Linear(256, 256)
    layer(torch.ones(8, 256)).sum().backward()
    seen["alive"], seen["grew"] = reduce_all(WORKS)
    if backend.device().type == "cuda":
        torch.cuda.set_device((torch.cuda.current_device() + 1) % torch.cuda.device_count())
    return seen


def reduce_all(times):
    """(works alive after so many all_reduces and waits, bytes that memory grew by meanwhile)"""
    works, before = [], 0
    for number in range(times):
        if number == WARM_UP:
            before = allocated()
        x = torch.ones(ELEMENTS)  # made anew each time: a work that is kept keeps it
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        works.append(weakref.ref(work))
        del x, work
    gc.collect()
    return sum(work() is not None for work in works), allocated() - before


def run(name: str, ranks: int, fn=on_rank):
    """(what each launch showed, rank by rank; why ranks were not used again;
    seconds of each launch)"""
    warm.end_all()
    warm.reasons.clear()
    seen, seconds = [], []
    for _ in range(LAUNCHES):
        began = time.monotonic()
        seen.append(list(launch.capture(fn, nproc=ranks, backend=name, timeout=120)))
        seconds.append(time.monotonic() - began)
    return seen, list(warm.reasons), seconds


def wrong(seen, reasons) -> list[str]:
    """What is not as it should be, in words; [] if everything is."""
    said = []
    for what, name in (
        ("pid", "process ids"),
        ("device", "devices"),
        ("bytes", "bytes on the GPU at the begin"),
    ):
        of_launches = [[rank[what] for rank in launched] for launched in seen]
        if any(each != of_launches[0] for each in of_launches):
            why = f" ({'; '.join(reasons)})" if what == "pid" and reasons else ""
            said.append(f"{name} differ from launch to launch: {of_launches}{why}")
    ranks = [rank for launched in seen for rank in launched]
    if (alive := max(rank["alive"] for rank in ranks)) > A_FEW:
        said.append(f"{alive} of {WORKS} works are alive after their wait")
    if (grew := max(rank["grew"] for rank in ranks)) > A_FEW * 4 * ELEMENTS:
        said.append(f"memory grew by {grew >> 20} MiB over {WORKS - WARM_UP} all_reduces")
    return said


def main(argv=None, fn=on_rank):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.reuse")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args(argv)
    seen, reasons, seconds = run(options.backend, options.ranks, fn)
    found = wrong(seen, reasons)
    ranks = [rank for launched in seen for rank in launched]
    took = ", ".join(f"{each:.2f}" for each in seconds)
    good = (
        f"the same processes; {max(rank['alive'] for rank in ranks)} of {WORKS} works alive, "
        f"memory grew by {max(rank['grew'] for rank in ranks)} bytes"
    )
    print(
        f"showed: {LAUNCHES} launches in {took} s on {seen[0][0]['device']}: "
        f"{'; '.join(found) or good}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
