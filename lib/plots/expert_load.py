"""The load of each expert during training. If nothing balances the router, a few experts are chosen
for nearly all tokens.

1 +----------------+  +----------------+
  |  0    _________|  |  0             |  a band: an expert's share of the choices
  |  1 __/         |  |- - - - - - - - |  dashed: where bands of equal shares, 1/E, would end
  |  2/   0        |  |  1             |  hatched: what is over an expert's capacity
0 +----------------+  +----------------+
"""

import numpy as np
from matplotlib.patheffects import withStroke

from lib.plots.draw import DASHED, heading, numbers, page, paper
from lib.plots.labels import each
from lib.plots.style import INK, PAPER, drawing, on_color, rank_color

ON_DARK = withStroke(linewidth=2.4, foreground=PAPER)  # makes a dark line visible on dark bands


@drawing
def expert_load(loads, titles, capacity=None, every=1):
    """A panel per run: the experts' shares of the choices, before capacity is applied, as stacked
    bands over the steps of training.

    loads: [(steps, E), ...] of 1 or 2 runs: how many choices each expert gets, or its share of
    them; each row is divided by its sum. E: 2 to 16. titles: one per panel, such as ["without
    balancing", "with the auxiliary loss"]; they also end the sentence in the title. capacity: a
    factor; an expert's share beyond capacity / E is hatched. every: the number of training steps
    that a row of loads adds up. Raises ValueError for any other number of panels or experts, fewer
    than 2 rows, loads below 0, or a row without any load.
    """
    loads = [np.asarray(load, dtype=float) for load in loads]
    shapes = [load.shape for load in loads]
    if not 1 <= len(loads) <= 2 or len(titles) != len(loads) or not all(
        len(shape) == 2 and shape[0] >= 2 and 2 <= shape[1] <= 16 for shape in shapes
    ):  # fmt: skip
        raise ValueError(f"loads {shapes}, titles {', '.join(titles)}: give 1 or 2 of (steps, "
                         f"experts), 2 steps or "
                         "more and 2 to 16 experts, and a title each")  # fmt: skip
    for name, load in zip(titles, loads, strict=True):
        if (load < 0).any() or not (load.sum(1) > 0).all():
            raise ValueError(f"{name}: from {load.min():g}, in all from {load.sum(1).min():g} a "
                             f"step; a load is 0 or "
                             "more, and a step has tokens")  # fmt: skip
    shares = [load / load.sum(1, keepdims=True) for load in loads]
    figure, panels = page(3.8, columns=len(loads), sharey=True)
    for axes, name, share in zip(panels, titles, shares, strict=True):
        _bands(axes, every * np.arange(len(share)), share, capacity)
        axes.set(xlim=(0, every * (len(share) - 1)), ylim=(1, 0), xlabel="step")
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        numbers(axes.yaxis, "{:.0%}".format)
        busiest = f"busiest {share[-1].max():.0%}"
        over = None if capacity is None else f"{_over(share[-1:], capacity):.0%} over capacity"
        heading(axes, f"{name}: {over or busiest}")
    panels[0].set_ylabel("share of the choices")
    E = shares[0].shape[1]
    ends = [
        f"{share[-1].max():.0%}{' of the choices' * (i == 0)} {titles[i]}"
        for i, share in enumerate(shares)
    ]
    claim = f"The busiest of {E} experts ends with {' and '.join(ends)}"
    hatched = (
        "" if capacity is None else f" Hatched: over {capacity:g} times that, an expert's capacity."
    )
    listed = lambda share: ", ".join(f"{s:.0%}" for s in share)
    words = lambda _, share: (
        f"at first {listed(share[0])}; at last {listed(share[-1])}"
        + (
            ""
            if capacity is None
            else f"; over capacity {_over(share, capacity):.1%} of all steps' tokens"
        )
    )
    return (
        figure, claim,
        f"Each band is an expert. Dashed lines would separate equal shares of 1/E.{hatched}",
        "Bands of each expert's share of the choices before capacity, a panel per run.",
        f"Even would be {1 / E:.1%} each. {each(dict(zip(titles, shares, strict=True)), words)}",
    )  # fmt: skip


def _bands(axes, x, share, capacity):
    """A band per expert, hatched over its capacity, and dashed lines where bands of equal shares
    would end."""
    steps, E = share.shape
    edges = np.hstack([np.zeros((steps, 1)), share.cumsum(1)])
    for e in range(E):
        color, low, high = rank_color(e), edges[:, e], edges[:, e + 1]
        axes.fill_between(x, low, high, color=color, lw=0, zorder=1)
        if capacity is not None:
            fits = np.minimum(high, low + capacity / E)
            axes.fill_between(
                x, fits, high, where=high > fits, fc="none", ec=PAPER, hatch="/////", lw=0, zorder=2
            )
        axes.plot(x, high, color=PAPER, lw=0.8, zorder=3)
        if share[-1, e] > 0.05:
            axes.annotate(str(e), (0.985, (low[-1] + high[-1]) / 2),
                          xycoords=("axes fraction", "data"), size=9,
                          ha="right", va="center_baseline", zorder=6, weight="bold",
                          color=on_color(color),
                          bbox=paper(0.1, color))  # fmt: skip
    for e in range(1, E):
        axes.axhline(e / E, color=INK, ls=DASHED, lw=1.1, zorder=5, path_effects=[ON_DARK])


def _over(share, capacity):
    """The share of all choices that is over the experts' capacity, as the mean over the steps.
    share: (steps, E)."""
    return float(np.maximum(share - capacity / share.shape[1], 0).sum(1).mean())
