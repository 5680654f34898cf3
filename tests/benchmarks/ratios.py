"""The figure of paired ratios: who is faster, by how much, and what noise alone does."""

from matplotlib.figure import Figure

from lib import plots


def ratios(rows, height, panel):
    """A panel per world size, a lane per comparison: the ratio with its interval, and below it,
    grey, the control's.

    rows: report.Rows. height: in inches. panel: a panel's title, with {} for the number of ranks.
    """
    figure = Figure(figsize=(8, height))
    worlds, names = (
        [*dict.fromkeys(getattr(row, key) for row in rows)] for key in ("ranks", "what")
    )
    panels = figure.subplots(1, len(worlds), sharex=True, sharey=True, squeeze=False)[0]
    for axes, N in zip(panels, worlds, strict=True):
        draw_lanes(axes, [row for row in rows if row.ranks == N], names)
        axes.set_xlabel("time of a step, lib / torch")
        axes.set_title(panel.format(N), size=10.5)
    return figure


def draw_lanes(axes, rows, names):
    """A lane for each of `rows`, called `names`, from the top."""
    axes.axvline(1, color=plots.FAINT, lw=0.8, zorder=1)
    for lane, row in enumerate(rows):
        sides = (
            (row.comparison.ratio, plots.RANK_COLORS[0], 0.0),
            (row.comparison.control, plots.FAINT, 0.3),
        )
        for value, color, below in sides:
            axes.plot([value.low, value.high], [lane + below] * 2, color=color, lw=2.4)
            axes.plot(value.median, lane + below, "o", color=color, ms=6)
        ratio = row.comparison.ratio.median
        axes.text(
            ratio, lane - 0.2, f"{ratio:.2f}", ha="center", color=plots.RANK_COLORS[0], size=9
        )
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.7)
