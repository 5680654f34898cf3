"""What the ledger costs: it waits on the host for what NCCL would leave to the stream. On against
off, interleaved.

    all_reduce of 1 KB and of 16 MB, and a step of torch's DDP on a GPT of 3 million parameters

The rounds and ratios are those of the benchmarks: one launch, the same buffers, the ledger put in
and taken out between rounds. Shown, not judged: nobody has said what it may cost, and two ranks on
one GPU take turns.
"""

import argparse
import sys

import torch
import torch.distributed as dist

from lib import launch
from tests.benchmarks.bench_ledger import ddp_step, on_and_off
from tests.benchmarks.measure import compare

SIZES = {"1 KB": 1 << 8, "16 MB": 1 << 22}  # elements of an all_reduce


def all_reduce(elements):
    x = torch.zeros(elements)
    return lambda: dist.all_reduce(x)


def on_ranks(rounds):
    """{what: {"on", "off", "off again": (rounds,) seconds a call}}"""
    reduced = {f"all_reduce {size}": all_reduce(elements) for size, elements in SIZES.items()}
    return on_and_off(reduced | {"DDP step": ddp_step()}, rounds)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.polling")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(argv)
    times = launch.capture(
        on_ranks,
        options.rounds,
        nproc=options.ranks,
        backend=options.backend,
        timeout=300,
        ledger=False,
    )[0]
    said = []
    for what, sides in times.items():
        seen = compare(sides["on"], sides["off"], sides["off again"])
        ratio, control = (
            f"{r.median:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in (seen.ratio, seen.control)
        )
        said.append(f"{what} {ratio} times {1e3 * seen.theirs:.3g} ms (noise {control})")
    print(f"showed: ledger on / off: {'; '.join(said)}; {options.rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
