"""Which experts each rank's tokens choose, for several ways to balance a router.

        no balancing   loss per rank   loss over all ranks
rank 0  [0000|11|3]    [0 |1 |2 |3 ]   [00000000|11]         a bar: how a rank's choices are divided
rank 1  [00|2222|3]    [0 |1 |2 |3 ]   [1111|222222]         among the experts, in their colours
all     [000|12|33]    [0 |1 |2 |3 ]   [0 |1  |2 |3 ]        below: the mean of the ranks
"""

import numpy as np

from lib.plots.draw import heading, numbers, page
from lib.plots.labels import each
from lib.plots.style import PAPER, drawing, on_color, rank_color


@drawing
def rank_shares(shares):
    """A panel per run. Each has a bar per rank, with the experts' shares of the rank's choices end
    to end, and one bar for the mean of the ranks.

    shares: {"no balancing": (N, E), ...}, 1 to 4 runs with the same N ranks and E experts, E from 2
    to 8; each row adds up to 1. Raises ValueError for any other number of runs or experts,
    different shapes, or rows that are not shares.
    """
    shares = {name: np.asarray(of_run, dtype=float) for name, of_run in shares.items()}
    shapes = {of_run.shape for of_run in shares.values()}
    if not 1 <= len(shares) <= 4 or len(shapes) != 1 or not all(
        len(shape) == 2 and shape[0] >= 1 and 2 <= shape[1] <= 8 for shape in shapes
    ):  # fmt: skip
        raise ValueError(f"runs {', '.join(shares)} of shapes {sorted(shapes)}: give 1 to 4 runs "
                         f"of the same (ranks, experts), 2 to 8 experts")  # fmt: skip
    for name, of_run in shares.items():
        if (of_run < 0).any() or not np.allclose(of_run.sum(1), 1, atol=1e-3):
            raise ValueError(
                f"{name}: rows from {of_run.min():g}, with sums {of_run.sum(1).round(3).tolist()}: "
                f"shares are 0 or more and add up to 1"
            )
    N = next(iter(shapes))[0]
    figure, panels = page(1.5 + 0.34 * (N + 1), columns=len(shares), sharey=True)
    y = [*range(N), N + 0.35]
    for axes, (name, of_run) in zip(panels, shares.items(), strict=True):
        _bars(axes, y, np.vstack([of_run, of_run.mean(0)]))
        heading(axes, f"{name}\n{of_run.mean(0).max():.0%} of all choices")
    panels[0].set_yticks(y, [*(f"rank {r}" for r in range(N)), "all ranks"])
    panels[0].set_ylim(N + 0.85, -0.5)
    panels[0].set_xlabel("share of the choices", loc="left")
    own = {name: of_run.max(1).mean() for name, of_run in shares.items()}
    whole = {name: of_run.mean(0).max() for name, of_run in shares.items()}
    words = lambda name, _: (
        f"the busiest expert has {whole[name]:.0%} of all choices, a rank's busiest one "
        f"{own[name]:.0%} of the rank's"
    )
    most, least = max(own, key=own.get), min(own, key=own.get)
    claim = (
        f"A rank's busiest expert gets {own[least]:.0%} of its choices ({least}), or "
        f"{own[most]:.0%} ({most})"
    )
    return (
        figure, claim,
        f"Each colour is an expert. If all were chosen equally often, each would get "
        f"{1 / next(iter(shapes))[1]:.1%}. The headings name the share of the busiest one.",
        "Bars of the experts' shares of each rank's choices, a panel per run.",
        each(shares, words),
    )  # fmt: skip


def _bars(axes, y, rows):
    """A bar per row, its parts end to end in the experts' colours. Wide parts carry the expert's
    number."""
    left = np.zeros(len(rows))
    for e, width in enumerate(rows.T):
        axes.barh(y, width, 0.82, left=left, color=rank_color(e), ec=PAPER, lw=0.8, zorder=2)
        for at, begin, share in zip(y, left, width, strict=True):
            if share > 0.09:
                axes.text(begin + share / 2, at, str(e), ha="center", va="center_baseline", size=8,
                          color=on_color(rank_color(e)), zorder=3)  # fmt: skip
        left = left + width
    axes.set(xlim=(0, 1))
    axes.set_xticks([0, 0.5, 1])
    numbers(axes.xaxis, "{:.0%}".format)
    axes.tick_params(axis="y", length=0)
