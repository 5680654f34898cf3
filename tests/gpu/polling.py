"""What the ledger costs: it waits on the host for what NCCL would leave to the stream. On against off, interleaved.

    all_reduce of 1 KB and of 16 MB, and a step of torch's DDP on a GPT of 3 million parameters

The rounds and ratios are those of the benchmarks: one launch, the same buffers, the ledger put in and taken out between
rounds. Shown, not judged: nobody has said what it may cost, and two ranks on one GPU take turns.
"""

import argparse
import contextlib
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lib import backend, launch, ledger
from lib.ledger.book import BookWriter
from lib.model import GPT, Shape, cross_entropy
from tests.benchmarks.measure import compare
from tests.benchmarks.rounds import Side, timed

SIZES = {"1 KB": 1 << 8, "16 MB": 1 << 22}  # elements of an all_reduce
SHAPE = Shape(vocab_size=128, seq_len=64, n_layers=4, hidden=256, n_heads=4)  # 3.2 million parameters


def all_reduce(elements):
    x = torch.zeros(elements)
    return lambda: dist.all_reduce(x)


def ddp_step():
    """Forward, backward with DDP's all-reduces, SGD, on 4 sequences a rank."""
    ddp = DistributedDataParallel(GPT(SHAPE).to(backend.device()))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    tokens = torch.zeros(4, SHAPE.seq_len + 1, dtype=torch.int64, device=backend.device())

    def step():
        optimizer.zero_grad()
        cross_entropy(ddp(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()

    return step


def on_ranks(rounds):
    """{what: {"on", "off", "off again": (rounds,) seconds a call}}"""
    with tempfile.TemporaryDirectory() as folder:
        book = BookWriter(folder, dist.get_rank(), dist.get_world_size())

        @contextlib.contextmanager
        def kept():
            ledger.install(book)
            try:
                yield
            finally:
                ledger.uninstall()

        ops = {f"all_reduce {size}": all_reduce(elements) for size, elements in SIZES.items()} | {
            "DDP step": ddp_step()
        }
        return {
            what: timed({"on": Side(op, kept), "off": Side(op), "off again": Side(op)}, rounds)
            for what, op in ops.items()
        }


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.polling")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(argv)
    times = launch.capture(
        on_ranks, options.rounds, nproc=options.ranks, backend=options.backend, timeout=300, ledger=False
    )[0]
    said = []
    for what, sides in times.items():
        seen = compare(sides["on"], sides["off"], sides["off again"])
        ratio, control = (f"{r.median:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in (seen.ratio, seen.control))
        said.append(f"{what} {ratio} times {1e3 * seen.theirs:.3g} ms (noise {control})")
    print(f"showed: ledger on / off: {'; '.join(said)}; {options.rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
