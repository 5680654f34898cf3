"""Every all-reduce, measured and predicted by alpha and beta, and where one overtakes another.

    1. ping-pong between 2 ranks, 64 B to 64 MB  alpha + m beta is fitted to the seconds
                                                 of one message of m bytes
    2. lib.collectives.cost                      predicts each algorithm at N ranks
                                                 from alpha, beta and N alone
    3. the algorithms on 4 and 8 ranks           in the same rounds, beside the prediction

Nothing is fitted in step 2, so where 3 leaves 2 the model has left something out. Its legend says
what: it lets all links work at once. Eight ranks on two cores do not. The other extreme is a
machine that carries one byte at a time, which needs (all bytes of all ranks) * beta; the second
table holds both against what was measured.

`--write-thresholds` measures 2 and 3 ranks too, and lets `lib.collectives.all_reduce` choose by
what was fastest.
"""

import itertools
import math

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from lib import launch, linux, plots
from lib.collectives import hierarchical_all_reduce, node_groups, p2p
from lib.collectives.auto import ALL_REDUCE
from tests.benchmarks import report, thresholds
from tests.benchmarks.alpha_beta import fit, one_by_one, overtaken, predict
from tests.benchmarks.measure import ROUNDS
from tests.benchmarks.rounds import Side, timed, where

CORES = len(linux.processors())
SIZES = [1 << bits for bits in range(10, 27, 2)]  # 1 KB to 64 MB
MESSAGES = [1 << bits for bits in range(6, 27, 2)]  # 64 B to 64 MB
OVERTAKES = [  # (until here, from here on)
    ("star", "ring"), ("tree", "ring"), ("recursive_doubling", "halving_doubling"),
    ("recursive_doubling", "ring"),
    ("halving_doubling", "ring"), ("ring", "direct"), ("ring", "hierarchical"),
]  # fmt: skip


def run(quick, write_thresholds=False):
    if quick:
        return measured([4, 8], [1 << 10, 1 << 16, 1 << 22], MESSAGES[::3], rounds=3)
    outcome = measured([2, 3, 4, 8] if write_thresholds else [4, 8], SIZES, MESSAGES, ROUNDS)
    if write_thresholds:
        thresholds.write(
            {
                N: {name: times[name] for name in ALL_REDUCE}
                for N, times in outcome.data["times"].items()
            }
        )
    return outcome


def measured(worlds, sizes, messages, rounds):
    link, place = launch.capture(ping_pong, messages, rounds, nproc=2, timeout=1200, ledger=False)[
        0
    ]
    message = {nbytes: float(np.median(seconds)) for nbytes, seconds in link.items()}
    alpha, beta = fit(message)
    off = [(alpha + m * beta) / seconds for m, seconds in message.items()]
    times, places = {}, [place]
    for N in worlds:
        by_size, place = launch.capture(
            on_ranks, sizes, rounds, nproc=N, timeout=2400, ledger=False
        )[0]
        times[N] = {name: {s: by_size[s][name] for s in sizes} for name in by_size[sizes[0]]}
        places.append(place)
    median = {
        N: {a: {s: float(np.median(t)) for s, t in of.items()} for a, of in times[N].items()}
        for N in worlds
    }
    predicted = {N: {a: predict(a, sizes, N, alpha, beta) for a in times[N]} for N in worlds}

    notes = [
        f"alpha = {report.duration(alpha)} per message, 1/beta = {1 / beta / 1e9:.2f} GB/s: a "
        f"ping-pong of 2 ranks; over {report.size(min(link))} to {report.size(max(link))} the fit "
        f"is {min(off):.2f} to {max(off):.2f} times what was measured.",
        f"Medians of {rounds} interleaved rounds. hierarchical: two nodes of N/2 ranks, but here "
        "all links are alike, so it has nothing to win.",
    ]
    if set(places) == {"gloo"}:
        notes += [
            where_it_fails(N, sizes, median[N], predicted[N], beta) for N in worlds if CORES < N
        ]
    tables = [crossings(N, sizes, median[N], predicted[N]) for N in worlds]
    tables += [failures(N, sizes, median[N], predicted[N], beta) for N in worlds]
    data = {"alpha": alpha, "beta": beta, "ping_pong": link, "times": times, "predicted": predicted}
    shown = {N: (median[N], predicted[N]) for N in worlds if N in (4, 8)}
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(shown, sizes), tables=tables, notes=notes, data=data
    )


# --- on the ranks ---------------------------------------------------------------------------------


def ping_pong(messages, rounds):
    """{bytes: (rounds,) seconds of one message}: half of there and back."""
    rank, times = dist.get_rank(), {}
    for nbytes in messages:
        x = torch.zeros(nbytes // 4)

        def there_and_back(x=x):
            if rank == 0:
                p2p.send(x, 1)
                p2p.recv(x, 1)
            else:
                p2p.recv(x, 0)
                p2p.send(x, 0)

        times[nbytes] = timed({"both ways": Side(there_and_back)}, rounds)["both ways"] / 2
    return times, where()


def on_ranks(sizes, rounds):
    """{bytes: {algorithm: (rounds,) seconds}}, and what it ran on."""
    N, times = dist.get_world_size(), {}
    algorithms = dict(ALL_REDUCE)
    if N % 2 == 0 and N > 2:
        inside, across = node_groups(N // 2)
        algorithms["hierarchical"] = lambda x: hierarchical_all_reduce(x, inside, across)
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4)  # sums of zeros stay zero
        sides = {name: Side(lambda fn=fn, x=x: fn(x)) for name, fn in algorithms.items()}
        times[nbytes] = timed(sides, rounds)
    return times, where()


# --- measured against predicted -------------------------------------------------------------------


def crossings(N, sizes, median, predicted):
    cells = []
    for before, after in (pair for pair in OVERTAKES if set(pair) <= set(median)):
        said = [at(overtaken(of[before], of[after]), sizes) for of in (predicted, median)]
        cells.append([before, after, *said])
    header = ["first", "second", "predicted", "measured"]
    return report.Table(f"{N} ranks: from which size the second stays faster", header, cells)


def at(size, sizes):
    if size in (0, math.inf):
        return (
            f"from {report.size(sizes[0])}" if size == 0 else f"not up to {report.size(sizes[-1])}"
        )
    return f"about {report.size(size)}"


def failures(N, sizes, median, predicted, beta):
    """Measured time beside the two predictions, at both ends."""
    small, large = sizes[0], sizes[-1]
    cells = []
    for name in median:
        times = [
            median[name][small],
            predicted[name][small],
            median[name][large],
            predicted[name][large],
        ]
        cells.append([name, *map(report.duration, [*times, one_by_one(name, large, N, beta)])])
    small, large = report.size(small), report.size(large)
    header = ["algorithm", small, "predicted", large, "predicted", "all bytes one after another"]
    return report.Table(f"{N} ranks: measured, and by two models", header, cells)


def where_it_fails(N, sizes, median, predicted, beta):
    """The weakness of the model on a machine with fewer cores than ranks, in this run's numbers."""
    small, large = sizes[0], sizes[-1]

    def off(nbytes, model):
        ratios = sorted(median[name][nbytes] / model(name) for name in median)
        return f"{ratios[0]:.1f} to {ratios[-1]:.1f} times"

    return (
        f"Where the model fails: {N} ranks share {CORES} cores, so links do not work at once, and "
        f"who has a message may still wait for a core. Measured is "
        f"{off(small, lambda name: predicted[name][small])} the model at {report.size(small)}, "
        f"{off(large, lambda name: predicted[name][large])} at {report.size(large)}, there "
        f"{off(large, lambda name: one_by_one(name, large, N, beta))} what all bytes one by one "
        f"would take. The sizes at which algorithms cross move accordingly: measure them where you "
        "run."
    )


# --- the figure -----------------------------------------------------------------------------------


def colors_of(names):
    return dict(zip(names, itertools.cycle(plots.RANK_COLORS), strict=False))


@plots.styled
def draw(shown, sizes):
    """A panel per world size: time over size, measured solid and predicted dashed, a colour
    per algorithm."""
    figure = Figure(figsize=(8, 4))
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (median, predicted) in zip(panels, shown.values(), strict=True):
        for name, color in colors_of(median).items():
            axes.plot(
                sizes,
                [predicted[name][s] for s in sizes],
                color=color,
                ls=(0, (4, 2)),
                lw=1.1,
                alpha=0.8,
            )
            axes.plot(sizes, [median[name][s] for s in sizes], color=color, lw=1.7)
    # now that all share their limits
    for axes, (N, (median, _)) in zip(panels, shown.items(), strict=True):
        ends = np.log([median[name][sizes[-1]] for name in median])
        axes.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]), xlabel="bytes per rank")
        span = np.log(axes.get_ylim()[1] / axes.get_ylim()[0])
        for y, (name, color) in zip(
            plots.spread(ends, 0.062 * span), colors_of(median).items(), strict=True
        ):
            axes.annotate(
                name.replace("_", " "), (1.02, np.exp(y)), xycoords=("axes fraction", "data"),
                color=color, size=8.5,
                va="center", annotation_clip=False,
            )  # fmt: skip
        axes.set_title(f"{N} ranks", size=10.5)
        axes.xaxis.set_major_locator(
            FixedLocator([s for s in (1 << 10, 1 << 16, 1 << 22, 1 << 26) if s <= sizes[-1]])
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: report.size(x)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=12))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: report.duration(y)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("time of one all-reduce")
    fastest = lambda median, s: min(median, key=lambda name: median[name][s]).replace("_", " ")
    ends = (sizes[0], sizes[-1])
    return plots.finish(
        figure,
        "Fastest "
        + "; ".join(
            f"on {N} ranks: {', '.join(f'{fastest(median, s)} at {report.size(s)}' for s in ends)}"
            for N, (median, _) in shown.items()
        ),
        "Solid: measured. Dashed: predicted from alpha and beta of a ping-pong between two ranks, "
        "nothing else fitted. A solid line above its dashed one: what the model leaves out, such "
        "as ranks that share cores.",
        "Time of each all-reduce algorithm over message size, measured and predicted. "
        + " ".join(
            f"{N} ranks, {name}: {report.duration(median[name][s])} at {report.size(s)}, predicted "
            f"{report.duration(predicted[name][s])}."
            for N, (median, predicted) in shown.items()
            for name in median
            for s in ends
        ),
    )
