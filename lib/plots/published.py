"""What others have published: how fast links really are, and how well the cost model predicts
published runs."""

import numpy as np

from lib.cost.published import nccl_all_reduce_times, table
from lib.plots.curves import cost_curves
from lib.plots.draw import DASHED, at_edge, beside, grid, page, rows, ticks
from lib.plots.labels import short
from lib.plots.style import FAINT, INK, OP_COLOR, RANK_COLORS, drawing, readable

WHERE = {"inside": ("inside a node", RANK_COLORS[0]), "between": ("between nodes", RANK_COLORS[5])}


@drawing
def topology():
    """The bus bandwidth of published all-reduces on a logarithmic axis, the fastest on top: a dot
    for each that ran inside a node, and a square for each that ran between nodes."""
    links = sorted(table("links"), key=lambda row: -row["busbw_GBps"])
    fastest, slowest = links[0]["busbw_GBps"], links[-1]["busbw_GBps"]
    figure, axes = page(4)
    for place, row in enumerate(links):
        _, color = WHERE[row["where"]]
        axes.plot([slowest / 2, row["busbw_GBps"]], [place, place], color=OP_COLOR["idle"], lw=1.2,
                  zorder=1)  # fmt: skip
        axes.plot([row["busbw_GBps"]], [place], marker="o" if row["where"] == "inside" else "s",
                  ms=9, color=color)  # fmt: skip
        beside(axes, row["busbw_GBps"], place, f"{row['busbw_GBps']:.0f}", color, 9, bbox=None)
    rows(axes, [f"{row['link']}: {row['gpus']} {row['cite']}" for row in links], size=8)
    axes.set(xscale="log", xlim=(slowest / 2, 2 * fastest))
    axes.set_xlabel("all-reduce bus bandwidth, best or largest message (GB/s)")
    ticks(axes.xaxis, [10, 100, 1000], short)
    for shape, (text, color), height in zip("os", WHERE.values(), (0.16, 0.07), strict=True):
        axes.plot([0.74], [height], marker=shape, ms=8, color=color, transform=axes.transAxes)
        axes.text(0.765, height, text, transform=axes.transAxes, va="center", color=readable(color),
                  weight="bold")  # fmt: skip
    factor = fastest / slowest
    claim = f"The best all-reduce here has {factor:.0f} times the bus bandwidth of the slowest"
    sources = {row["cite"]: row["source"].split()[0].removeprefix("github.com/") for row in links}
    of_each = [
        f"{r['link']}, {WHERE[r['where']][0]}, {r['gpus']}: {r['busbw_GBps']:.0f}" for r in links
    ]
    look = (
        "Bus bandwidth: what each GPU of a ring would send per second to be as fast. Sources on "
        "GitHub: "
    )
    look += f"{'; '.join(f'{cite} {source}' for cite, source in sorted(sources.items()))}."
    return figure, claim, look, "Dots on a logarithmic axis, GB/s.", f"{'; '.join(of_each)}."


def nccl_all_reduce():
    """Published times of NCCL's all-reduce on the 8 GPUs of a node against size, each with the
    straight line through its first and last point. The caption says how much longer 8 A100s take
    than 2. Needs torch."""
    found = nccl_all_reduce_times()
    by = ", ".join(f"{factor:.2f} by a {name}'s bytes" for name, factor in found.by_bytes.items())
    return cost_curves(
        found.measured,
        found.lines,
        title="NCCL's all-reduce on 8 GPUs: first flat, then in proportion to the bytes",
        note=f"The line is off by a factor of {found.off:.1f} at most. On A100s 1 GiB takes 8 GPUs "
        f"{found.took:.2f} times as long as 2: {by}. Published by S. Bekman, "
        f"github.com/stas00/ml-engineering, and vTrain.",
    )


@drawing
def predicted_against_measured(runs, within=0.1, unit="seconds per step"):
    """A dot per run in the colour of its group. The nearer a dot is to the diagonal, the better its
    prediction.

    runs: {"A100, 3-D": (measured, predicted), ...}, each a list of positive numbers in `unit`; 1 to
    8 groups. within: the relative error whose band is drawn; the title says which share of the runs
    is inside. Raises ValueError for any other number of groups, unequal lengths, or values that are
    not above 0 and have no logarithm.
    """
    if not 1 <= len(runs) <= len(RANK_COLORS):
        raise ValueError(f"{len(runs)} groups of runs: 1 to {len(RANK_COLORS)} can be told apart")
    for name, (measured, predicted) in runs.items():
        if len(measured) != len(predicted) or len(measured) == 0:
            raise ValueError(
                f"{name}: {len(measured)} measured and {len(predicted)} predicted must be equally "
                f"many"
            )
        if min(*measured, *predicted) <= 0:
            raise ValueError(
                f"{name}: {min(*measured, *predicted):g} has no logarithm, leave that run out"
            )
    measured = np.concatenate([m for m, _ in runs.values()])
    predicted = np.concatenate([p for _, p in runs.values()])
    error = np.abs(predicted / measured - 1)
    low, high = (
        0.7 * min(measured.min(), predicted.min()),
        1.4 * max(measured.max(), predicted.max()),
    )

    figure, axes = page(4.6, most=4.6)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    line = np.array([low, high])
    axes.fill_between(line, line * (1 - within), line * (1 + within), color=FAINT, alpha=0.18, lw=0)
    axes.plot(line, line, color=INK, lw=1.2, ls=DASHED)
    for place, ((name, (x, y)), color) in enumerate(zip(runs.items(), RANK_COLORS, strict=False)):
        axes.plot(x, y, ls="", marker="os^Dv<>p"[place], ms=4, mec=color, mfc=color, alpha=0.65)
        off = np.mean(np.abs(np.asarray(y) / np.asarray(x) - 1))
        label = f"{name}: {len(x)} runs, {off:.0%} off on average"
        height = 0.96 - 0.055 * place
        axes.plot(
            [0.025], [height], marker="os^Dv<>p"[place], ms=6, color=color, transform=axes.transAxes
        )
        axes.text(0.05, height, label, transform=axes.transAxes, va="center", color=readable(color),
                  size=9,
                  weight="bold")  # fmt: skip
    return (
        figure,
        f"{np.mean(error <= within):.0%} of {len(measured)} published runs are predicted within "
        f"{within:.0%}",
        f"On the dashed line prediction and measurement agree; the grey band is {within:.0%} to "
        f"either side. Mean error {error.mean():.1%}, 90% of the runs are within "
        f"{np.percentile(error, 90):.1%}.",
        f"Predicted against measured {unit} of {len(measured)} runs in {len(runs)} groups "
        f"({', '.join(runs)}), from {measured.min():.2g} to {measured.max():.2g}.",
        f"{np.mean(error <= within):.0%} within {within:.0%} of the diagonal, mean error "
        f"{error.mean():.1%}.",
    )  # fmt: skip


@drawing
def prediction_errors(kinds):
    """A row per kind of run: how large the errors are when such runs are left out of the fit. A
    line reaches from the median of the errors to their 90% quantile, a dot is their mean, and a
    diamond the mean error in sample.

    kinds: {"Megatron on H100": (errors left out, errors in sample or None), ...}, lists in which
    0.1 is 10% off, as `lib.calibration.score.left_out` returns them; 1 to 10 kinds. Raises
    ValueError for any other number of kinds, no kind with errors in sample, unequal lengths, or
    errors below 0.
    """
    both = [kind for kind in kinds.values() if kind[1] is not None]
    if not 1 <= len(kinds) <= 10 or not both:
        raise ValueError(
            f"{len(kinds)} kinds, {len(both)} of them with errors in sample: 1 to 10, and one at "
            f"least"
        )
    for name, (out, inside) in kinds.items():
        if (
            not len(out)
            or (inside is not None and len(inside) != len(out))
            or min(*out, *(inside or out)) < 0
        ):
            raise ValueError(f"{name}: give as many errors left out as in sample, 0 or more")
    figure, axes = page(1.6 + 0.3 * len(kinds))
    means = []
    for row, (out, inside) in enumerate(kinds.values()):
        half, most = 100 * np.quantile(out, [0.5, 0.9])
        axes.plot(
            [half, most], [row, row], color=RANK_COLORS[0], lw=3, solid_capstyle="butt", zorder=2
        )
        means.append((100 * np.mean(out), None if inside is None else 100 * np.mean(inside)))
        axes.plot([means[-1][0]], [row], marker="o", ms=8, color=RANK_COLORS[0], zorder=4)
        if inside is not None:
            axes.plot([means[-1][1]], [row], marker="D", ms=6, mfc="none", mec=INK, zorder=3)
        at_edge(axes, row, f"{means[-1][0]:.0f}%", weight="bold")
    rows(axes, [f"{name} ({len(out):,})" for name, (out, _) in kinds.items()], size=9)
    axes.set(xlim=(0, None), xlabel="off by (%)")
    grid(axes, "x")
    mean = lambda which: 100 * np.mean(np.concatenate([kind[which] for kind in both]))
    count = sum(len(kind[0]) for kind in both)
    claim = (
        f"Left out of the fit, {count:,} published runs are {mean(0):.1f}% off on average; in "
        f"sample {mean(1):.1f}%"
    )
    said = [
        f"{name}, {len(kinds[name][0])} runs: {out:.1f}% off"
        + ("" if inside is None else f", {inside:.1f}% in sample")
        for name, (out, inside) in zip(kinds, means, strict=True)
    ]
    return (
        figure, claim,
        "Dot: the mean where a run's configuration was left out of the fit; line: from half of "
        "these runs to 90% of them. Diamond: the mean if it was in the fit. Number of runs in "
        "brackets.",
        "Errors of predicted step times by kind of run.", f"{'; '.join(said)}.",
    )  # fmt: skip
