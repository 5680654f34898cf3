"""The ledger on against off: its price per message, and in a training step.

    ours    with the ledger installed: every op writes an entry into the rank's log before it
            begins
    theirs  without it; "off" means not installed, and costs nothing

The two take turns inside one launch, the same processes and buffers, the override put in and taken
out between rounds (outside the clock). A message is where the price shows most: 64 bytes, there and
back. A training step is where it matters: a GPT of 3 million parameters under torch's
DistributedDataParallel, whose ops are few and long.
"""

import contextlib
import tempfile

import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch.nn.parallel import DistributedDataParallel

from lib import backend, launch, ledger, plots
from lib.collectives import p2p
from lib.ledger.log import LogWriter
from lib.measuring.rounds import interval
from lib.training.model import GPT, Shape
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import Side, timed, where

RANKS = 2
# 3.2 million parameters
SHAPE = Shape(vocab_size=128, seq_len=64, n_layers=4, hidden=256, n_heads=4)
SEQUENCES = 4  # per rank and step
# (name in the tables, size, what the price is told per, how many of those are in one call)
CASES = {
    "message": ("send, and back", "64 B", "message", 2),
    "all_reduce": ("all_reduce", "1 KB", "call", 1),
    "step": ("DDP step", "3.2M GPT", "step", 1),
}
STEP = Bar(
    None,
    "In a training step the ledger must not be felt; the price of a single op is stated, not "
    "barred.",
)


def run(quick):
    times, place = launch.capture(
        on_ranks, 5 if quick else ROUNDS, nproc=RANKS, timeout=1200, ledger=False
    )[0]
    rows, more = [], []
    for case, (what, size, unit, units) in CASES.items():
        on, off, again = (times[case][side] for side in ("on", "off", "off again"))
        rows.append(
            report.Row(what, RANKS, size, compare(on, off, again), STEP if case == "step" else None)
        )
        extra = interval((on - off) / units)
        said = ["+" * (seconds > 0) + report.duration(seconds) for seconds in extra]
        more.append([what, unit, said[0], f"{said[1]} to {said[2]}"])
    table = report.Table("What the ledger adds", ["to", "per", "median", "95 %"], more)
    notes = ['Ours: ledger on; theirs: off. "Send, and back" is two messages, one after the other.']
    return report.Outcome(place, draw(rows, more), rows, [table], notes, data=times)


def on_ranks(rounds):
    """{case: {"on", "off", "off again": (rounds,) seconds}}, and what it ran on."""
    ops = {"message": there_and_back(), "all_reduce": blocking_all_reduce(), "step": ddp_step()}
    return on_and_off(ops, rounds), where()


def on_and_off(ops, rounds):
    """{what: {"on", "off", "off again": (rounds,) seconds}} of {what: function}, with the
    ledger and without."""
    with tempfile.TemporaryDirectory() as folder:
        log = LogWriter(folder, dist.get_rank(), dist.get_world_size())

        @contextlib.contextmanager
        def kept():
            ledger.install(log)
            try:
                yield
            finally:
                ledger.uninstall()

        sides = lambda op: {"on": Side(op, kept), "off": Side(op), "off again": Side(op)}
        return {what: timed(sides(op), rounds) for what, op in ops.items()}


def there_and_back():
    x, rank = torch.zeros(16), dist.get_rank()
    if rank == 0:
        return lambda: (p2p.send(x, 1), p2p.recv(x, 1))
    return lambda: (p2p.recv(x, 0), p2p.send(x, 0))


def blocking_all_reduce():
    x = torch.zeros(256)
    return lambda: dist.all_reduce(x)


def ddp_step():
    """One step: forward, backward with DDP's all-reduces, SGD."""
    device = backend.device()
    ddp = DistributedDataParallel(GPT(SHAPE).to(device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    # (B, T+1)
    tokens = torch.randint(SHAPE.vocab_size, (SEQUENCES, SHAPE.seq_len + 1), device=device)

    def step():
        optimizer.zero_grad()
        logits = ddp(tokens[:, :-1])  # (B, T, V)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


@plots.styled
def draw(rows, more):
    """A lane per case: the ratio on / off with its interval, the control's beside it."""
    figure = Figure(figsize=(8, 2.9))
    axes = figure.add_subplot()
    for lane, (row, (*_, median, _)) in enumerate(zip(rows, more, strict=True)):
        for at, value, color in (
            (lane - 0.12, row.comparison.ratio, plots.RANK_COLORS[0]),
            (lane + 0.16, row.comparison.control, plots.FAINT),
        ):
            axes.plot([value.low, value.high], [at, at], color=color, lw=2.4)
            axes.plot(value.median, at, "o", color=color, ms=6)
        axes.text(
            row.comparison.ratio.high,
            lane - 0.12,
            f"   {median}",
            va="center",
            color=plots.RANK_COLORS[0],
        )
    axes.axvline(1, color=plots.FAINT, lw=0.8, zorder=1)
    axes.set_yticks(range(len(rows)), [f"{row.what}, {row.size}" for row in rows])
    axes.tick_params(axis="y", length=0)
    most = max(max(row.comparison.ratio.high, row.comparison.control.high) for row in rows)
    least = min(min(row.comparison.ratio.low, row.comparison.control.low) for row in rows)
    axes.set(
        ylim=(len(rows) - 0.6, -0.5),
        xlim=(least - 0.05, 1 + 1.25 * (most - 1) + 0.15),
        xlabel="time, on / off",
    )
    step = rows[-1].comparison
    return plots.finish(
        figure,
        f"The ledger multiplies the time of a short message by "
        f"{rows[0].comparison.ratio.median:.1f}, and that of a training step by "
        f"{step.ratio.median:.2f}",
        "Blue: ledger on against off, and what that adds per message, call or step. Grey: off "
        "against off: noise.",
        "Ratio of times with and without the ledger. "
        + " ".join(
            f"{row.what} {row.size}: {report.within(row.comparison.ratio)}, control "
            f"{report.within(row.comparison.control)}."
            for row in rows
        ),
    )
