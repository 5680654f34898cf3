"""lib's all_reduce against torch's, over message size and ranks.

Ours is made of send and receive and picks its algorithm by size (lib/collectives/auto.py). Theirs
is torch.distributed.all_reduce: under gloo a ring, in C++, below one call.

                                     2 ranks   4 ranks   8 ranks
    rounds    ring                         2         6        14
              recursive doubling           1         2         3
    messages  ring                         4        24       112
    in all    star                         2         6        14

Short messages are all latency: few rounds win where every rank has a core, few messages where they
share cores. Long ones are all bytes, of which a ring already sends the fewest: there the bar is not
to be slower.
"""

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from lib import launch, plots
from lib.collectives import all_reduce
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import Side, timed, where

SIZES = [1 << bits for bits in range(10, 27, 2)]  # 1 KB to 64 MB
SHORT = 1 << 16
FEWER = (
    "Up to 64 KB the number of messages counts, not their bytes: a ring sends {} in all, a star {}."
)
SHORT_BARS = {4: Bar(0.5, FEWER.format(24, 6)), 8: Bar(0.25, FEWER.format(112, 14))}
ELSEWHERE = Bar(
    None, "At 2 ranks the rounds differ by one, and above 64 KB both send about the same bytes."
)


def run(quick):
    if quick:
        return measured(worlds=[2, 4, 8], sizes=[1 << 10, 1 << 16, 1 << 22], rounds=5)
    return measured(worlds=[2, 4, 8], sizes=SIZES, rounds=ROUNDS)


def measured(worlds, sizes, rounds):
    rows, data, places = [], {}, []
    for world_size in worlds:
        times, place = launch.capture(
            on_ranks, sizes, rounds, nproc=world_size, timeout=1200, ledger=False
        )[0]
        data[world_size] = times
        places.append(place)
        for nbytes in sizes:
            bar = bar_for(world_size, nbytes) if place == "gloo" else None
            rows.append(
                report.Row(
                    "all_reduce", world_size, report.size(nbytes), compare(**times[nbytes]), bar
                )
            )
    notes = (
        []
        if set(places) == {"gloo"}
        else ["The bars are for gloo on the CPU; under NCCL there is none."]
    )
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(data, rows), rows, notes=notes, data=data
    )


def bar_for(world_size, nbytes):
    return SHORT_BARS.get(world_size, ELSEWHERE) if nbytes <= SHORT else ELSEWHERE


def on_ranks(sizes, rounds):
    """On every rank: {bytes: {side: (rounds,) seconds}}, and what it ran on."""
    times = {}
    for nbytes in sizes:
        x = torch.empty(nbytes // 4)
        ours, theirs = (lambda: all_reduce(x)), (lambda: dist.all_reduce(x))  # noqa: B023
        for op in (ours, theirs):
            check(op, x)
        x.zero_()  # sums of zeros stay zero: no call finds other values than the one before
        times[nbytes] = timed(
            {"ours": Side(ours), "theirs": Side(theirs), "again": Side(theirs)}, rounds
        )
    return times, where()


def check(op, x):
    """Both sides do the same thing before either is timed: rank r gives r + 0, 1,
    ... 6, 0, 1, ..."""
    rank, N = dist.get_rank(), dist.get_world_size()
    base = torch.arange(x.numel()) % 7
    x.copy_(base + rank)
    op()
    if not torch.equal(x, (N * base + N * (N - 1) // 2).float()):
        raise RuntimeError(
            f"rank {rank}: a wrong sum over {N} ranks of {x.numel()} elements: nothing to time"
        )


# --- the figure -----------------------------------------------------------------------------------


@plots.styled
def draw(data, rows):
    """A panel per world size: the ratio over size with its interval, the control's as a band, the
    bar as a step."""
    figure = Figure(figsize=(8, 3.8))
    panels = figure.subplots(1, len(data), sharey=True, squeeze=False)[0]
    for axes, (world_size, times) in zip(panels, data.items(), strict=True):
        mine, sizes = [row for row in rows if row.ranks == world_size], list(times)
        control = np.array([row.comparison.control[1:] for row in mine]).T
        axes.fill_between(sizes, *control, color=plots.OP_COLOR["idle"], lw=0, zorder=1)
        axes.axhline(1, color=plots.FAINT, lw=0.8, zorder=1)
        ratio = np.array([row.comparison.ratio for row in mine]).T
        errors = [ratio[0] - ratio[1], ratio[2] - ratio[0]]
        axes.errorbar(
            sizes,
            ratio[0],
            errors,
            color=plots.RANK_COLORS[0],
            marker="o",
            ms=4.5,
            elinewidth=1.4,
            zorder=3,
        )
        short = [row.bar.at_most for row in mine if row.bar and row.bar.at_most]
        if short:
            axes.hlines(
                short[0],
                sizes[0] / 2,
                SHORT * 1.6,
                color=plots.ALARM,
                ls=(0, (4, 2)),
                lw=1.6,
                zorder=2,
            )
            axes.text(
                sizes[0] / 2,
                short[0] / 1.05,
                f"asked: {short[0]:g}",
                color=plots.ALARM,
                size=9,
                va="top",
            )
        axes.set_title(f"{world_size} ranks", size=10.5)
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(sizes[0] / 2.5, sizes[-1] * 2.5),
            xlabel="bytes per rank",
        )
        axes.xaxis.set_major_locator(
            FixedLocator([s for s in (1 << 10, 1 << 16, 1 << 22, 1 << 26) if s <= sizes[-1]])
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: report.size(x)))
        axes.yaxis.set_major_locator(FixedLocator([0.125, 0.25, 0.5, 0.75, 1, 2, 4, 8]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("time, lib / torch")
    best, worst = (pick(rows, key=lambda row: row.comparison.ratio.median) for pick in (min, max))
    say = lambda row: (
        f"{row.comparison.ratio.median:.2f} of torch's time at {row.ranks} ranks and {row.size}"
    )
    return plots.finish(
        figure,
        f"lib's all_reduce takes between {say(best)} and {say(worst)}",
        "Below 1 lib is faster. Bars through the points: 95 % of the median of paired ratios. "
        "Grey: the same for torch against itself, which is what noise alone does here. Red: at "
        "most this is asked.",
        "Ratio of lib's to torch's all_reduce time over message size. "
        + " ".join(
            f"{row.ranks} ranks, {row.size}: {report.within(row.comparison.ratio)}." for row in rows
        ),
    )
