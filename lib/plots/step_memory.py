"""Activations and model state over a step, stacked on top of each other as bands, with a panel per
remedy for running out of memory.

GB |          /|           - - - - - - - - - - - - -  what a GPU has
   |        /   \\
   |      / act. \\
   |    /         \\            /\\______
   |===============|        /==========|   model state
   forward backward         with a remedy
"""

from matplotlib.patches import Rectangle

from lib.plots.draw import grid, heading, numbers, page
from lib.plots.labels import amount, each, listed
from lib.plots.memory import PART_COLOR
from lib.plots.style import ALARM, INK, drawing

BANDS = {
    "optimizer": PART_COLOR["fp32 weights"],
    "weights": PART_COLOR["weights"],
    "gradients": PART_COLOR["gradients"],
    "unsharded units": "#b9c6d3",
    "activations": PART_COLOR["activations"],
    "logits": "#c2658a",
}


@drawing
def memory_by_remedy(curves, memory):
    """A panel per remedy, 1 to 6 of them in rows of three: bytes on one GPU over a step.

    curves: {"data parallel": [{part: bytes}, ...], ...}, as from
    lib.cost.clinic.memory_over_a_step; parts as in BANDS. memory: usable bytes of a GPU, a dashed
    line. Raises ValueError for any other number of panels, or a part without a colour.
    """
    parts = {part for curve in curves.values() for moment in curve for part in moment}
    if not 1 <= len(curves) <= 6 or parts - set(BANDS):
        raise ValueError(
            f"{len(curves)} remedies, parts {', '.join(sorted(parts))}: give 1 to 6 remedies, and "
            f"parts from {', '.join(BANDS)}"
        )
    peaks = {
        name: max(sum(moment.values()) for moment in curve) / 1e9 for name, curve in curves.items()
    }
    shown = [part for part in BANDS if part in parts]
    columns = min(3, len(curves))
    n_rows = -(-len(curves) // columns)
    figure, panels = page(2.4 + 1.6 * (n_rows - 1), n_rows, columns, sharey=True, sharex=True)
    grid_of = [panels] if n_rows == columns == 1 else list(panels.flat)
    for axes, (name, curve) in zip(grid_of, curves.items(), strict=False):
        at = range(len(curve))
        heights = [[moment.get(part, 0.0) / 1e9 for moment in curve] for part in shown]
        axes.stackplot(at, *heights, colors=[BANDS[part] for part in shown], lw=0)
        axes.axhline(memory / 1e9, color=INK, ls=(0, (5, 2.5)), lw=1.3, zorder=4)
        over = peaks[name] > memory / 1e9
        room = " \n" if axes in grid_of[:columns] else ""
        heading(axes, f"{room}{name}\n{amount(peaks[name])} GB", color=ALARM if over else INK)
        middle = (len(curve) - 1) / 2
        axes.set_xticks([middle / 2, 1.5 * middle], ["forward", "backward"])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(0, len(curve) - 1)
        axes.set_ylim(0, 1.05 * max(peaks.values()))
        grid(axes, "y")
        numbers(axes.yaxis)
    for axes in grid_of[len(curves) :]:
        axes.set_visible(False)
    for axes in grid_of[::columns]:
        axes.set_ylabel("GB per GPU")
    bands = [Rectangle((0, 0), 1, 1, label=part, fc=BANDS[part]) for part in shown]
    # The legend is above the headings of the first row, which begin with an empty line for it.
    look = {"ncols": 6, "frameon": False, "handlelength": 1.2, "borderaxespad": 0, "borderpad": 0}
    legend = grid_of[0].legend(handles=bands, loc="lower left", bbox_to_anchor=(0, 1.42), **look)
    legend.set_in_layout(False)
    fits = [name for name, peak in peaks.items() if peak <= memory / 1e9]
    claim = (
        f"{len(fits)} of {len(curves)} remedies fit: {listed(fits)}"
        if 0 < len(fits) < len(curves)
        else "All of these fit"
        if fits
        else "None of these fits"
    )
    look = f"The dashed line is the usable memory of a GPU, {amount(memory / 1e9)} GB."
    words = lambda name, peak: f"at most {amount(peak)} GB"
    return (
        figure,
        claim,
        look,
        "Bands of memory over a step, a panel per remedy.",
        each(peaks, words),
    )
