"""What a snapshot of a GPU's state costs: through pinned memory, against one pageable copy after
the other.

    pageable    a tensor, wait, a tensor, wait, ...      what `.to("cpu")` does
    first       queued into pinned memory, which is taken from the system
    later       the same, in the pinned memory that torch kept of the snapshot before

Training stands still for this time in every background save. The values are right if what was
copied is the state of that moment, though training writes into the tensors at once afterwards.
"""

import argparse
import sys
import time

import torch

from lib import backend, launch
from lib.training.checkpoint.background import snapshot

TENSORS, ROUNDS = 64, 3


def pageable(state):
    return {name: x.detach().to("cpu", copy=True) for name, x in state.items()}


def timed(copy, state):
    """(seconds that training stands still, are the copies what the state was?)"""
    backend.synchronize()
    began = time.monotonic()
    copies = copy(state)
    took = time.monotonic() - began
    for x in state.values():
        x.add_(1.0)
    backend.synchronize()
    right = all(torch.equal(copies[name].to(x.device) + 1.0, x) for name, x in state.items())
    return took, right


def on_rank(mebibytes):
    """({"pageable", "first", "later": GB/s}, were all copies right?)"""
    each = (mebibytes << 20) // 4 // TENSORS
    state = {str(i): torch.full((each,), float(i)) for i in range(TENSORS)}
    first, right = timed(snapshot, state)
    seen = {"pageable": [], "later": []}
    for _ in range(ROUNDS):
        for name, copy in (("pageable", pageable), ("later", snapshot)):
            took, good = timed(copy, state)
            seen[name].append(took)
            right = right and good
    seconds = {"first": first} | {name: min(took) for name, took in seen.items()}
    return {name: mebibytes * 2**20 / took / 1e9 for name, took in seconds.items()}, right


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.snapshots")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mebibytes", type=int, default=1024)
    options = parser.parse_args(argv)
    how = {"nproc": options.ranks, "backend": options.backend, "timeout": 120, "ledger": False}
    results = launch.capture(on_rank, options.mebibytes, **how)
    rates, right = results[0][0], all(good for _, good in results)
    said = ", ".join(f"{name} {rates[name]:.1f} GB/s" for name in ("pageable", "first", "later"))
    print(f"showed: {options.mebibytes} MiB in {TENSORS} tensors: {said}" + "; WRONG" * (not right))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
