"""All-reduce, lib's made of messages and the backend's own: milliseconds and bandwidth, by size.

Bus bandwidth is 2(N-1)/N * bytes / seconds, what each rank's link carries in a ring (nccl-tests
says it so). For ranks with a GPU each: two ranks on one GPU take turns, and their times are not
NCCL's.
"""

import argparse
import sys

import torch
import torch.distributed as dist

from lib import collectives, launch
from tests.benchmarks.measure import compare
from tests.benchmarks.rounds import Side, timed

SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24, "256 MB": 1 << 28}


def on_ranks(sizes, rounds):
    """{size: {"lib", "torch", "again": (rounds,) seconds}}; zeros, so that sums
    stay what they are."""
    seen = {}
    for size, nbytes in sizes.items():
        x = torch.zeros(nbytes // 4)
        own = lambda x=x: dist.all_reduce(x)
        ours = lambda x=x: collectives.all_reduce(x)
        seen[size] = timed({"lib": Side(ours), "torch": Side(own), "again": Side(own)}, rounds)
    return seen


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.timings")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--largest", type=int, default=256, help="MB")
    options = parser.parse_args(argv)
    sizes = {size: nbytes for size, nbytes in SIZES.items() if nbytes <= options.largest << 20}
    seen = launch.capture(
        on_ranks,
        sizes,
        options.rounds,
        nproc=options.ranks,
        backend=options.backend,
        timeout=600,
        ledger=False,
    )[0]
    said = []
    for size, times in seen.items():
        pair = compare(times["lib"], times["torch"], times["again"])
        wire = 2 * (options.ranks - 1) / options.ranks * sizes[size] / 1e9
        sides = [f"{1e3 * t:.3g} ms ({wire / t:.3g} GB/s)" for t in (pair.ours, pair.theirs)]
        ratio = f"{pair.ratio.median:.2f} [{pair.ratio.low:.2f}, {pair.ratio.high:.2f}]"
        said.append(f"{size}: lib {sides[0]}, torch {sides[1]}, ratio {ratio}")
        print(said[-1], flush=True)
    print("showed: " + "; ".join(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
