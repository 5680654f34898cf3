"""What was simulated against what ranks measured, on one time axis: two thin lanes for each rank.

rank 0   ' 0 '' 1 '' 2 '      ' 0 '' 1 '        above, dashed: the simulation
         [ 0 ][ 1 ][ 2  ]     [  0 ][ 1  ]      below, filled: the ranks
"""

from matplotlib.figure import Figure

from lib.pipeline.actions import count_stages
from lib.plots.boxes import amount, draw_boxes, draw_key, draw_lanes, on_clock
from lib.plots.style import FAINT, INK, finish, styled


@styled
def simulated_and_measured(simulation, bars, title=None, note=""):
    """The same schedule twice on one axis, simulated and measured, and by how much the simulation is off.

    simulation: a Simulation with times in seconds. bars: the Bars of all ranks, in seconds, as `record` got them.
    Each begins at 0 with its first action. note: a sentence to begin the caption with, such as p and m.
    Raises ValueError if a rank did other actions than the simulation's, or in another order.
    """
    (simulated, _), (measured, _) = on_clock(simulation, "s"), on_clock(bars, "s")
    p, n_stages = len(simulated.schedule), count_stages(simulated.schedule)
    if len(measured.schedule) != p:
        raise ValueError(f"{len(measured.schedule)} ranks measured, {p} simulated: draw the same schedule")
    for rank, (said, did) in enumerate(zip(simulated.schedule, measured.schedule, strict=True)):
        if list(said) != list(did):
            raise ValueError(f"rank {rank} measured {' '.join(map(str, did))}, simulated {' '.join(map(str, said))}: "
                             "draw the same schedule")  # fmt: skip
    off = measured.makespan / simulated.makespan - 1
    longest = max(simulated.makespan, measured.makespan)

    figure = Figure(figsize=(8, min(4.0, 1.6 + 0.48 * p)))
    axes = figure.add_subplot()
    draw_lanes(axes, p, longest)
    for patch in axes.patches:  # outlines are not seen on grey
        patch.set_facecolor("#f1efe9")
    inches = 7.0 / longest, (figure.get_figheight() - 1.5) / p
    draw_boxes(axes, simulated.bars, p, n_stages, inches, low=-0.38, high=-0.03, dashed=True)
    draw_boxes(axes, measured.bars, p, n_stages, inches, low=0.0, high=0.38)
    ends = {"simulated": (simulated.makespan, (0, (4, 2)), 10.5), "measured": (measured.makespan, "-", 0)}
    for name, (end, dashes, up) in ends.items():
        axes.axvline(end, color=INK, lw=1.4, ls=dashes, zorder=3)
        text = f"{name} {amount(end)} ms" + f", {off:+.1%}" * (name == "measured")
        axes.annotate(text, (end, 1), xycoords=("data", "axes fraction"), xytext=(0, 3 + up), ha="right", va="bottom",
                      textcoords="offset points", weight="bold", size=9)  # fmt: skip
    axes.set_xlim(0, 1.003 * longest)
    axes.spines["bottom"].set_color(FAINT)
    draw_key(axes, {bar.action.kind for bar in measured.bars}, "ms", idle=False)
    claim = (
        f"Measured {amount(measured.makespan)} ms, simulated {amount(simulated.makespan)} ms: "
        f"{abs(off):.1%} {'longer' if off >= 0 else 'shorter'}"
    )
    each = "; ".join(
        f"rank {r} is idle {s:.0%} simulated, {m:.0%} measured"
        for r, (s, m) in enumerate(zip(simulated.bubbles, measured.bubbles, strict=True))
    )
    return finish(
        figure,
        title or claim,
        f"{note} Dashed: simulated. Filled: measured; in a box: its micro-batch. Upright: the ends.".strip(),
        f"Gantt chart of a schedule on {p} ranks, simulated and measured. {claim}. {note} Bubble "
        f"{simulated.bubble:.1%} simulated, {measured.bubble:.1%} measured: {each}.",
    )
