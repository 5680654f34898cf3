"""What is lost in 16 bits: updates that are too small to change a weight, and gradients that are
too small for fp16."""

import numpy as np

from lib.plots.draw import grid, heading, named_ends, page, ticks
from lib.plots.labels import each
from lib.plots.style import ALARM, FAINT, INK, OP_COLOR, RANK_COLORS, drawing

# fp16 has 5 bits of exponent and 10 of fraction. Below the smallest normal number, each factor of 2
# costs one binary digit.
SMALLEST, SMALLEST_NORMAL, LARGEST = 2.0**-24, 2.0**-14, 65504.0


@drawing
def underflow(values):
    """The value of one parameter over many small updates, a line per way to store it.

    values: {"fp32": (steps + 1,), "fp16": ..., "fp16 with an fp32 master": ...}; the others are
    compared with the first. Raises ValueError for fewer than 2 or more than 8 ways, unequal
    lengths, or if the first does not move.
    """
    values = {name: np.asarray(y, dtype=float) for name, y in values.items()}
    if not 2 <= len(values) <= len(RANK_COLORS) or len({y.shape for y in values.values()}) != 1:
        raise ValueError(
            f"{ {name: y.shape for name, y in values.items()} }: give 2 to {len(RANK_COLORS)} "
            f"lists of one length"
        )
    figure, axes = page(3.6)
    (truth, right), *_ = values.items()
    steps, moved = len(right) - 1, right[-1] - right[0]
    if steps < 1 or moved == 0:
        raise ValueError(
            f"{truth}: {steps} steps that move it by {moved:g}; give at least one, that moves it"
        )
    # the share of the distance that the parameter should move
    share = {name: (y[-1] - y[0]) / moved for name, y in values.items()}
    for i, y in enumerate(values.values()):
        # Each line is narrower than the one before, so that all can be seen where they are equal.
        axes.plot(y, color=RANK_COLORS[i], lw=10 * 0.6**i, solid_capstyle="butt", zorder=2 + i)
    low, high = min(y.min() for y in values.values()), max(y.max() for y in values.values())
    room = 0.08 * (high - low)
    axes.set(
        xlim=(0, steps),
        ylim=(low - room, high + room),
        xlabel="step",
        ylabel="value of the parameter",
    )
    ends = zip(values.items(), RANK_COLORS, strict=False)
    named_ends(
        axes, [(f"{name}: {share[name]:.0%}", y[-1], color) for (name, y), color in ends], 0.082
    )
    grid(axes, "y")
    lost = [name for name in values if abs(share[name]) < 0.01]
    claim = (
        f"{' and '.join(lost)}: after {steps:,} updates the parameter has not moved"
        if lost
        else f"After {steps:,} updates every copy has moved"
    )
    went = [
        f"{name} from {y[0]:.6g} to {y[-1]:.6g}, {share[name]:.0%}" for name, y in values.items()
    ]
    look = f"In percent: how far it went, of the way that it goes in {truth}."
    return (
        figure,
        claim,
        look,
        f"Value of one parameter over {steps:,} updates.",
        f"{'; '.join(went)}.",
    )


@drawing
def gradient_range(gradients, scale):
    """How large gradients are, compared with the range of fp16: one strip for the gradients as they
    are, and one for the gradients times `scale`.

    gradients: (n,), all gradients of a model; zeros are left out, because no scale changes them,
    and NaN as well. scale: the factor of a loss scaler, such as 2.0 ** 16. Raises ValueError if no
    gradient is left, one is infinite, or the scale is not above 1.
    """
    gradients = np.abs(np.asarray(gradients, dtype=np.float64).ravel())
    gradients = gradients[gradients > 0]
    if len(gradients) == 0 or not np.isfinite(gradients).all() or not scale > 1:
        raise ValueError(
            f"{len(gradients)} gradients that are not zero, scale {scale}: give finite ones, and a "
            f"scale above 1"
        )
    strips = {"as they are": gradients, f"times {scale:,.0f}": gradients * scale}
    fate = {name: _fate(g) for name, g in strips.items()}
    first = -36.0  # log2; smaller gradients are drawn here
    last = np.ceil(max(np.log2(strips[list(strips)[1]].max()), 16)) + 1
    edges = np.arange(first, last + 1)

    figure, panels = page(3.7, rows=2, sharex=True, sharey=True)
    zero, subnormal, overflow = np.log2(SMALLEST) - 1, np.log2(SMALLEST_NORMAL), np.log2(LARGEST)
    bands = ((first, zero, "#ecc4c9", "becomes 0"), (zero, subnormal, "#f4e3c3", "loses digits"),
             (overflow, last, "#ecc4c9", "becomes inf"))  # fmt: skip
    for axes, (name, g) in zip(panels, strips.items(), strict=True):
        percent = 100 * np.histogram(np.log2(g).clip(first), edges)[0] / len(g)
        for begin, end, color, _ in bands:
            axes.axvspan(begin, end, color=color, lw=0, zorder=0)
        axes.bar(edges[:-1] + 0.5, percent, width=0.9, color=OP_COLOR["F"], ec=RANK_COLORS[0],
                 lw=0.6, zorder=2)  # fmt: skip
        words = (
            f"{name}: {fate[name]['zero']:.2%} become 0, {fate[name]['subnormal']:.1%} lose digits"
        )
        words += f", {fate[name]['inf']:.2%} become inf" * (fate[name]["inf"] > 0)
        heading(axes, words, pad=3, color=ALARM if fate[name]["lost"] > 0.01 else INK)
        axes.tick_params(axis="y", length=0)
        axes.set_ylabel("% per\nfactor of 2", size=9)
    top = panels[0].get_ylim()[1]
    panels[0].set_ylim(0, 1.25 * top)
    for begin, end, _, text in (*bands, (subnormal, overflow, None, "normal numbers of fp16")):
        if end - begin >= 3:
            panels[0].text(
                (begin + end) / 2, 1.22 * top, text, ha="center", va="top", size=9, color=FAINT
            )
    ticks(
        panels[1].xaxis,
        [e for e in range(-60, 30, 6) if first <= e <= last],
        lambda e: f"$2^{{{e}}}$",
    )
    panels[1].set(xlim=(first, last), xlabel="size of a gradient")
    before, after = (fate[name] for name in strips)
    claim = (
        f"In fp16 {before['lost']:.0%} of gradients lose digits or become 0; times {scale:,.0f}, "
        f"{after['lost']:.1%}"
    )
    words = lambda name, g: (
        f"from 2^{np.log2(g.min()):.0f} to 2^{np.log2(g.max()):.0f}, median "
        f"2^{np.log2(np.median(g)):.0f}; {fate[name]['zero']:.2%} become 0, "
        f"{fate[name]['subnormal']:.1%} subnormal, {fate[name]['inf']:.2%} inf"
    )
    return (
        figure, claim,
        f"{len(gradients):,} gradients that are not zero. Red: lost. Yellow: fewer digits than "
        f"fp16 can hold.",
        f"Two histograms of the sizes of {len(gradients):,} gradients on a logarithmic axis, "
        f"against fp16's range: 0 below 2^-25, subnormal below 2^-14, infinite above "
        "65504.", each(strips, words),
    )  # fmt: skip


def _fate(gradients):
    """The shares of these gradients that rounding to fp16 turns into 0, into a subnormal number,
    and into infinity. "lost" is the sum of the first two."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = gradients.astype(np.float16).astype(np.float64)
    return {
        "zero": float((rounded == 0).mean()),
        "subnormal": float(((rounded > 0) & (rounded < SMALLEST_NORMAL)).mean()),
        "inf": float(np.isinf(rounded).mean()),
        "lost": float((rounded < SMALLEST_NORMAL).mean()),
    }
