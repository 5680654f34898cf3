"""The bubble against the number of micro-batches: by a schedule's formula, as simulated, and as
measured on ranks."""

import numpy as np

from lib.plots.draw import DASHED, grid, heading, page, ticks
from lib.plots.labels import in_sentences
from lib.plots.style import PAPER, RANK_COLORS, drawing


@drawing
def bubble_curve(simulated, formulas, measured=None):
    """A panel per schedule, a curve per number of ranks: the share of all ranks' time that is idle.

    simulated: {"1F1B": {p: {m: bubble, ...}, ...}, ...}, bubbles from 0 to 1, of 1 to 3 schedules;
    hollow points. formulas: {"1F1B": lambda p, m: (p - 1) / (m + p - 1), ...}; a dashed line for
    each schedule that has a formula.
    measured: the same as simulated, from ranks; filled points.
    Raises ValueError for any other number of schedules, a schedule without points, or a bubble that
    is below 0, or 1 or more.
    """
    measured = measured or {}
    if not 1 <= len(simulated) <= 3:
        raise ValueError(f"{len(simulated)} schedules: 1 to 3 fit beside each other")
    for name, curves in [*simulated.items(), *measured.items()]:
        shares = [bubble for curve in curves.values() for bubble in curve.values()]
        if not shares or not 0 <= min(shares) <= max(shares) < 1 or not all(curves.values()):
            raise ValueError(
                f"{name}: {curves}: give {{p: {{m: bubble}}}}, each bubble from 0 to 1"
            )
    ps = sorted({p for curves in simulated.values() for p in curves})
    ms = sorted({m for curves in simulated.values() for curve in curves.values() for m in curve})
    color = dict(zip(ps, RANK_COLORS, strict=False))

    figure, panels = page(3.7, columns=len(simulated), sharey=True)
    for axes, (name, curves) in zip(panels, simulated.items(), strict=True):
        axes.set(
            xscale="log", xlim=(0.4 * ms[0], 1.25 * ms[-1]), ylim=(0, 100), xlabel="micro-batches m"
        )
        for p, curve in curves.items():
            if name in formulas:
                along = np.geomspace(min(curve), max(curve), 60)
                axes.plot(along, [100 * formulas[name](p, m) for m in along], color=color[p],
                          ls=DASHED, lw=1.4)  # fmt: skip
            for of, look in (
                (curve, {"mew": 1.6, "mfc": PAPER}),
                (measured.get(name, {}).get(p, {}), {}),
            ):
                axes.plot(list(of), [100 * b for b in of.values()], "o", color=color[p], lw=0,
                          ms=5.5, zorder=3, **look)  # fmt: skip
            first, text = min(curve), f"p = {p}" if axes is panels[0] else f"{p}"
            axes.annotate(text, (first, 100 * curve[first]), xytext=(3, 4),
                          textcoords="offset points", ha="right",
                          va="bottom", color=color[p], weight="bold", size=9.5)  # fmt: skip
        ticks(axes.xaxis, ms)
        grid(axes, "y")
        heading(axes, name)
    panels[0].set_ylabel("bubble (% of all ranks' time)")
    claim = _claim(simulated)
    marks = (
        "Hollow points are simulated"
        + ", filled points are measured" * bool(measured)
        + ", and dashed lines show the formula" * bool(formulas)
    )
    of_all = {how: {f"{name}, p = {p}": curve for name, curves in every.items() for p,
        curve in curves.items()}
              for how, every in (("simulated", simulated), ("measured", measured))}  # fmt: skip
    words = in_sentences(
        of_all, lambda curve: ", ".join(f"{bubble:.1%} at {m}" for m, bubble in curve.items())
    )
    return (
        figure,
        claim,
        f"{marks}.",
        "Bubble against the number of micro-batches, a panel per schedule.",
        words,
    )


def _claim(simulated):
    """How far the bubble of the first schedule, on the largest number of ranks, falls as m grows.
    If another schedule has a smaller bubble at the largest m, that one is named, too."""
    name, curves = next(iter(simulated.items()))
    p = max(curves)
    first, last = min(curves[p]), max(curves[p])
    claim = (
        f"{name}, p = {p}: from {curves[p][first]:.0%} with m = {first} to {curves[p][last]:.0%} "
        f"with {last}"
    )
    at_last = {
        name: curves[p][last] for name, curves in simulated.items() if last in curves.get(p, {})
    }
    least = min(at_last, key=at_last.get)
    return claim if least == name else f"{claim}; {least}: {at_last[least]:.0%}"
