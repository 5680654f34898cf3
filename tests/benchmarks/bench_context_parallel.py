"""Ring attention, causal by zigzag, against the ring that torch's `context_parallel` runs.

    ours    ring_attention             blocks by matrix products, merged; messages on the
                                       communication thread
    theirs  _templated_ring_attention  blocks by torch's fused kernel for the CPU, merged by their
                                       log-sum-exp

Forward alone: torch's `context_parallel` itself takes kernels for GPUs only, and this function
below it any kernel, but has no autograd around it on a CPU. It is private, of torch 2.13, and may
move. Ulysses and attention with gathered keys are beside it: torch has neither. Before a clock
runs, all must be causal attention in one process.
"""

import torch
import torch.distributed as dist

from lib import backend, launch, plots
from lib.tensor_parallel.layouts import zigzag
from lib.tensor_parallel.ring_attention import ring_attention
from lib.tensor_parallel.ulysses import gathered_attention, ulysses_attention
from lib.training.model import causal_attention
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, compare
from tests.benchmarks.ratios import ratios
from tests.benchmarks.rounds import Side, timed, where

SIZE = (1, 8, 1024, 64)  # B, H, T, d
TOLERANCE = 1e-5  # float32, sums in another order
OURS = {"ring": ring_attention, "gathered": gathered_attention, "Ulysses": ulysses_attention}


def run(quick):
    return measured([2, 4], SIZE, 3 if quick else ROUNDS)


def measured(worlds, size, rounds):
    rows, data, places = [], {}, []
    for N in worlds:
        data[N], place = launch.capture(
            on_ranks, size, rounds, nproc=N, timeout=2400, ledger=False
        )[0]
        places.append(place)
        for way in OURS:
            found = compare(*(data[N][side] for side in (way, "theirs", "again")))
            rows.append(
                report.Row(f"{way} against torch's ring", N, "x".join(map(str, size)), found, None)
            )
    notes = [
        f"Forward, (B, H, T, d) = {size}, causal. All were within {TOLERANCE:g} of one process. "
        f"Torch's blocks are computed by a fused kernel, ours by matrix products, so the ratio is "
        "that of the kernels too."
    ]
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(rows), rows, notes=notes, data=data
    )


def on_ranks(size, rounds):
    """On every rank: {side: (rounds,) seconds of a forward}, and what it ran on."""
    sides, right = calls(size)
    for name, side in sides.items():
        if (apart := (side() - right).abs().max().item()) > TOLERANCE:
            raise RuntimeError(
                f"{name}: off by {apart:.0e} of one process, more than {TOLERANCE:g}"
            )
    return timed({name: Side(side) for name, side in sides.items()}, rounds), where()


def calls(size):
    """({side: a forward, which returns this rank's result}, what is right)."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as theirs

    theirs._cp_options.enable_load_balance = True  # the zigzag
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(size, generator=generator).to(backend.device()) for _ in range(3)]
    layout = zigzag(size[2], dist.get_world_size())
    q, k, v = (x[:, :, layout[dist.get_rank()]] for x in whole)
    kernel = theirs.aten._scaled_dot_product_flash_attention_for_cpu
    torchs = lambda: theirs._templated_ring_attention(
        dist.group.WORLD, 2, kernel, q, k, v, is_causal=True
    )[0]
    ours = {name: lambda attend=attend: attend(q, k, v, layout) for name, attend in OURS.items()}
    return ours | {"theirs": torchs, "again": torchs}, causal_attention(*whole)[
        :, :, layout[dist.get_rank()]
    ]


def draw(rows):
    """A panel per world size, a lane per way."""
    best, worst = (pick(row.comparison.ratio.median for row in rows) for pick in (min, max))
    return plots.finish(
        ratios(rows, 3, "cp = {}"),
        f"Attention over a cut sequence takes {best:.2f} to {worst:.2f} of the time of torch's "
        f"ring",
        "Below 1 lib is faster. Lines: 95 % of the median of paired ratios. Grey: torch's against "
        "itself.",
        "Ratio of lib's to torch's time for a forward. "
        + " ".join(
            f"{row.what}, cp {row.ranks}: {report.within(row.comparison.ratio)}." for row in rows
        ),
    )
