"""Data parallelism, rung by rung, against torch's DistributedDataParallel.

    naive       an all-reduce per parameter, after backward  a ladder: no bars
    bucketed    an all-reduce per bucket, after backward
    overlapped  buckets leave while backward runs            with lib's all-reduce, and with torch's
    theirs      torch.nn.parallel.DistributedDataParallel    buckets, overlapped, in C++

A step is zero_grad, forward, backward, and what averages the gradients: no optimizer, which would
be the same for all. A GPT of 10.7 million parameters in float32, 43 MB of gradients, over loopback:
there is little to hide there, and the ranks' messages want the cores that compute, so this is about
overhead. What overlap wins over a slow link is in bench_overlap.py. Before a clock runs, every side
has to give DistributedDataParallel's gradients, each parameter's.
"""

import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch.nn.parallel import DistributedDataParallel

from lib import backend, launch, plots
from lib.data_parallel import BucketedDataParallel, NaiveDataParallel, OverlappedDataParallel
from lib.training.model import GPT, Shape, cross_entropy
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import Side, timed, where

# 10.7 million parameters
SHAPE = Shape(vocab_size=128, seq_len=64, n_layers=6, hidden=384, n_heads=6)
SEQUENCES = 4  # per rank and step
# of a gradient's largest element: sums of 4 float32 in another order stay far below
TOLERANCE = 1e-5
NOT_SLOWER = Bar(
    None,
    "The same bytes as DistributedDataParallel's, in buckets: Python between them must not be "
    "felt.",
)


def torchs_all_reduce_begins(_, tensor, group):
    """torch's all-reduce as DistributedDataParallel starts it: it runs on gloo's own threads, and
    is waited for."""
    return dist.all_reduce(tensor, group=group, async_op=True)


# In the order of a round: both rows with a bar stand next to theirs.
SIDES = {
    "overlapped, lib's all_reduce": OverlappedDataParallel,
    "theirs": DistributedDataParallel,
    "overlapped, torch's all_reduce": lambda module: OverlappedDataParallel(
        module, start=torchs_all_reduce_begins
    ),
    "again": DistributedDataParallel,
    "bucketed": BucketedDataParallel,
    "naive": NaiveDataParallel,
}


def run(quick):
    return measured(worlds=[2, 4], shape=SHAPE, rounds=3 if quick else ROUNDS)


def measured(worlds, shape, rounds):
    rows, data, places = [], {}, []
    for N in worlds:
        times, place = launch.capture(on_ranks, shape, rounds, nproc=N, timeout=2400, ledger=False)[
            0
        ]
        data[N] = times
        places.append(place)
        for name in [name for name in SIDES if name not in ("theirs", "again")]:
            found = compare(times[name], times["theirs"], times["again"])
            bar = NOT_SLOWER if name.startswith("overlapped") and place == "gloo" else None
            rows.append(report.Row(name, N, size_of(shape), found, bar))
    notes = [
        f"A step on {SEQUENCES} sequences of {shape.seq_len} tokens per rank: {shape.n_layers} "
        f"blocks, hidden {shape.hidden}, {shape.n_heads} heads, vocabulary {shape.vocab_size}; "
        f"forward, backward, averaging, no optimizer. Gradients were within {TOLERANCE:g} of "
        f"theirs, relative to each parameter's largest."
    ]
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(rows), rows, notes=notes, data=data
    )


def size_of(shape):
    return f"{GPT(shape).num_parameters() / 1e6:.1f}M GPT"


# --- on the ranks ---------------------------------------------------------------------------------


def on_ranks(shape, rounds):
    """On every rank: {side: (rounds,) seconds per step}, and what it ran on."""
    tokens = batch(shape, SEQUENCES)
    models = {name: wrap(GPT(shape).to(backend.device())) for name, wrap in SIDES.items()}
    for model in models.values():
        step(model, tokens)
    for name, model in models.items():
        check_equal(name, gradients(model), gradients(models["theirs"]))
    return timed(
        {name: Side(lambda m=model: step(m, tokens)) for name, model in models.items()}, rounds
    ), where()


def batch(shape, sequences):
    """(B, T+1) tokens of this rank; every rank has others."""
    generator = torch.Generator("cpu").manual_seed(dist.get_rank())
    return torch.randint(
        shape.vocab_size, (sequences, shape.seq_len + 1), generator=generator, device="cpu"
    ).to(backend.device())  # fmt: skip


def step(model, tokens):
    """Forward, backward, averaging, by any of the wrappers, or none."""
    model.zero_grad()
    cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    if hasattr(model, "average_gradients"):  # torch's averages inside backward
        model.average_gradients()


def gradients(model):
    """{name: gradient}, without the wrapper's "module." in front."""
    return {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}


def check_equal(side, ours, theirs):
    """Both sides do the same thing before either is timed. ours, theirs: {name: gradient}."""
    if list(ours) != list(theirs):
        raise RuntimeError(
            f"{side}: gradients of {sorted(set(ours) ^ set(theirs))} on one side only: nothing to "
            f"time"
        )
    for name, expected in theirs.items():
        got, scale = ours[name], expected.abs().max()
        if got is None or not (off := (got - expected).abs().max()) <= TOLERANCE * scale:
            said = (
                "no gradient"
                if got is None
                else f"a gradient off by {off / scale:.2g} of its largest element"
            )
            raise RuntimeError(
                f"{side}: {name} has {said}, not the gradient of theirs: nothing to time"
            )


# --- the figure -----------------------------------------------------------------------------------


@plots.styled
def draw(rows):
    """A panel per world size, a lane per rung: the ratio with its interval, and the
    control's at the bottom."""
    figure = Figure(figsize=(8, 3.2))
    worlds = list(dict.fromkeys(row.ranks for row in rows))
    panels = figure.subplots(1, len(worlds), sharex=True, sharey=True, squeeze=False)[0]
    for axes, N in zip(panels, worlds, strict=True):
        ladder = [row for row in rows if row.ranks == N][::-1]  # naive first
        lanes = {row.what: (row.comparison.ratio, plots.RANK_COLORS[0]) for row in ladder}
        lanes["theirs, again"] = (ladder[0].comparison.control, plots.FAINT)
        axes.axvline(1, color=plots.FAINT, lw=0.8, zorder=1)
        for lane, (value, color) in enumerate(lanes.values()):
            axes.plot([value.low, value.high], [lane, lane], color=color, lw=2.4)
            axes.plot(value.median, lane, "o", color=color, ms=6)
            axes.text(
                value.median, lane - 0.22, f"{value.median:.2f}", ha="center", color=color, size=9
            )
        axes.set_yticks(range(len(lanes)), list(lanes))
        axes.tick_params(axis="y", length=0)
        axes.set(ylim=(len(lanes) - 0.5, -0.7), xlabel="time of a step, lib / torch")
        axes.set_title(f"{N} ranks", size=10.5)
    barred = [row for row in rows if row.bar]
    best, worst = (pick(row.comparison.ratio.median for row in barred) for pick in (min, max))
    return plots.finish(
        figure,
        f"A step with overlapped buckets takes {best:.2f} to {worst:.2f} of torch's "
        f"DistributedDataParallel's time",
        "Below 1 lib is faster. Lines: 95 % of the median of paired ratios. Grey: torch's against "
        "itself, which is what noise alone does here. Over loopback communication is copying, by "
        "the cores that compute.",
        "Ratio of lib's to torch's time for a training step. "
        + " ".join(
            f"{row.what}, {row.ranks} ranks: {report.within(row.comparison.ratio)}." for row in rows
        ),
    )
