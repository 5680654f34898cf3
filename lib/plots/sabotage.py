"""The losses of several training runs, each next to the single process that it should equal."""

import numpy as np

from lib.plots.draw import grid, heading, page, ticks
from lib.plots.labels import each
from lib.plots.style import FAINT, RANK_COLORS, drawing


@drawing
def against_baselines(runs):
    """A panel per run: its loss and that of its baseline, step by step.

    runs: {"A": (losses, baseline losses, steps per epoch), ...}, 2 to 6 of them. Raises ValueError
    for any other number of runs, losses that are not finite, or a baseline of another length.
    """
    if not 2 <= len(runs) <= 6:
        raise ValueError(f"{len(runs)} runs: give 2 to 6")
    for name, (losses, baseline, _) in runs.items():
        if np.shape(losses) != np.shape(baseline) or not np.isfinite(losses).all():
            raise ValueError(f"{name}: losses and baseline must be finite and of one length")
    columns = (len(runs) + 1) // 2
    figure, panels = page(4.6, rows=2, columns=columns, sharex=True, sharey=True)
    panels = np.ravel(panels)
    for axes in panels[len(runs) :]:
        axes.set_visible(False)
    apart = {}
    for axes, (name, (losses, baseline, per_epoch)) in zip(panels, runs.items(), strict=False):
        axes.plot(baseline, color=FAINT, lw=5, alpha=0.5, solid_capstyle="butt")
        axes.plot(losses, color=RANK_COLORS[0], lw=1.6)
        for end in range(per_epoch, len(losses), per_epoch):
            axes.axvline(end, color=FAINT, lw=1, ls=(0, (3, 3)))
        heading(axes, f"run {name}")
        grid(axes, "y")
        ticks(axes.xaxis, range(0, len(losses), per_epoch // 2 or 1), str)
        apart[name] = float(np.max(np.abs(np.divide(losses, baseline) - 1)))
    for axes in panels[::columns]:
        axes.set_ylabel("loss")
    for axes in panels[columns:]:
        axes.set_xlabel("step")
    off = [name for name, share in apart.items() if share > 1e-3]
    words = each(apart, lambda _, share: f"differs from its baseline by at most {share:.1%}")
    return (
        figure,
        f"{len(off)} of {len(runs)} runs leave the loss of a single process",
        "Blue is the run, broad grey the single process; a dashed line begins an epoch.",
        f"{len(runs)} line charts of loss against step, each with its baseline.",
        f"Runs: {words}",
    )
