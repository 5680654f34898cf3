"""Gantt charts of pipeline schedules: a lane per rank, a box per action, and the share of time in
which the rank is idle.

    rank 0  [0][1][2][3]:::::::::[ 0 ][ 1 ][ 2 ][ 3 ]    20%  4  idle, and the most
    rank 1  :::[0][1][2][3]:::[ 0 ][ 1 ][ 2 ][ 3 ]:::    20%  4  that is kept at a time
                                                    all  20%

Times are those of a simulation, or those that ranks measured; boxes.py draws both.
"""

from lib.pipeline.actions import count_stages
from lib.plots.boxes import draw_boxes, draw_key, draw_lanes, on_clock
from lib.plots.draw import LANE, above, at_edge, heading, page
from lib.plots.labels import amount
from lib.plots.style import FAINT, INK, drawing

ORDINALS = ("first", "second", "third", "fourth")


@drawing
def gantt(timed, unit=None, title=None):
    """One schedule. At the right of each rank are its share of idle time, and the most
    micro-batches x stages whose activations it keeps at a time (until their B, or until W where B
    is split).

    timed: a Simulation, or the Bars of all ranks as `record` returned them.
    unit: the unit of the times, such as "forwards"; "s" is drawn in ms. Bars are in seconds unless
    another unit is given.
    """
    timed, unit = on_clock(timed, unit)
    p, n_stages, makespan = len(timed.schedule), count_stages(timed.schedule), timed.makespan
    figure, axes = page(1.75 + 0.32 * p)
    draw_lanes(axes, p, makespan)
    inches = 5.9 / makespan, (figure.get_figheight() - 1.5) / p
    draw_boxes(axes, timed.bars, p, n_stages, inches)
    axes.set_xlim(0, makespan)
    for x, header, values in (
        (1.075, "idle", [f"{bubble:.0%}" for bubble in timed.bubbles]),
        (1.165, "keeps", timed.peak_kept),
    ):
        at_edge(axes, -0.78, header, x, color=FAINT, ha="right", weight="normal")
        for rank, value in enumerate(values):
            at_edge(axes, rank, f"{value}", x, ha="right")
    below = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
    axes.annotate(
        f"{timed.bubble:.0%}", (1.075, 0), xytext=(0, -2), ha="right", weight="bold", **below
    )
    axes.annotate("of all", (1.085, 0), xytext=(0, -2), ha="left", color=FAINT, **below)
    draw_key(axes, {bar.action.kind for bar in timed.bars}, unit)
    claim = f"{timed.bubble:.0%} of all ranks' time is idle, in {amount(makespan)} {unit}"
    return (
        figure, claim,
        f"The number in a box is its micro-batch.{_shades(n_stages // p)} \"Keeps\" is the most "
        f"micro-batches{' x stages' * (n_stages > p)} whose backward is not done.",
        f"Gantt chart of a schedule on {p} ranks.{f' {title}.' if title else ''}", _of_ranks(timed),
    )  # fmt: skip


@drawing
def gantts(schedules, unit=None):
    """Schedules, one below the other, on one time axis, each with its makespan and its bubble.

    schedules: {"GPipe": Simulation, "1F1B": Simulation, ...}, or Bars in place of a Simulation; 1
    to 5 of them. unit: as for `gantt`. The figure is taller than others if its lanes would
    otherwise become too thin to read. Raises ValueError for any other number of schedules, or for
    schedules in different units, because they share one axis.
    """
    if not 1 <= len(schedules) <= 5:
        raise ValueError(f"{len(schedules)} schedules: 1 to 5 can be seen at once")
    on_clocks = {name: on_clock(timed, unit) for name, timed in schedules.items()}
    units = {name: unit for name, (_, unit) in on_clocks.items()}
    if len(set(units.values())) > 1:
        raise ValueError(
            f"units {units}: they share one time axis, so say one unit for all, unit='s'"
        )
    timed = {name: each for name, (each, _) in on_clocks.items()}
    unit = units[next(iter(units))]
    ranks = [len(each.schedule) for each in timed.values()]
    longest = max(each.makespan for each in timed.values())
    lane = max(0.13, min(0.25, (2.8 - 0.3 * len(timed)) / sum(ranks)))  # inches

    figure, panels = page(1.2 + 0.3 * len(timed) + lane * sum(ranks), rows=len(timed), most=9.0,
    sharex=True,
                          gridspec_kw={"height_ratios": ranks})  # fmt: skip
    for axes, (name, each), p in zip(panels, timed.items(), ranks, strict=True):
        draw_lanes(axes, p, each.makespan)
        draw_boxes(axes, each.bars, p, count_stages(each.schedule), (7.0 / longest, lane))
        axes.tick_params(axis="y", labelsize=min(10, 58 * lane))
        axes.axvline(each.makespan, color=FAINT, lw=1.2, zorder=0)
        heading(axes, f"{name}: {amount(each.makespan)} {unit}, bubble {each.bubble:.0%}", pad=3)
        axes.set_xlim(0, 1.005 * longest)
        axes.tick_params(axis="x", length=0 if axes is not panels[-1] else 3)
    draw_key(panels[-1], {bar.action.kind for each in timed.values() for bar in each.bars}, unit)
    claim = _claim(timed, unit)
    most = max(count_stages(each.schedule) // len(each.schedule) for each in timed.values())
    words = " ".join(
        f"{name}: {amount(each.makespan)} {unit}. {_of_ranks(each)}" for name, each in timed.items()
    )
    look = f"All panels share one time axis. The number in a box is its micro-batch.{_shades(most)}"
    return figure, claim, look, f"Gantt charts of {len(timed)} schedules on one time axis.", words


@drawing
def simulated_and_measured(simulation, bars):
    """One schedule twice on one time axis, with two thin lanes per rank: as simulated, and as
    measured. The title says by how much the simulation is off.

    rank 0   ' 0 '' 1 '' 2 '      ' 0 '' 1 '        above, dashed: the simulation
             [ 0 ][ 1 ][ 2  ]     [  0 ][ 1  ]      below, filled: the ranks

    simulation: a Simulation with times in seconds. bars: the Bars of all ranks, in seconds, as
    `record` returned them. Both are moved so that their first action begins at 0.
    Raises ValueError for different numbers of ranks, or if a rank ran other actions than the
    simulation's or in another order.
    """
    (simulated, _), (measured, _) = on_clock(simulation, "s"), on_clock(bars, "s")
    p, n_stages = len(simulated.schedule), count_stages(simulated.schedule)
    if len(measured.schedule) != p:
        raise ValueError(
            f"{len(measured.schedule)} ranks measured, {p} simulated: draw the same schedule"
        )
    for rank, (said, did) in enumerate(zip(simulated.schedule, measured.schedule, strict=True)):
        if list(said) != list(did):
            raise ValueError(f"rank {rank} measured {' '.join(map(str, did))}, simulated "
                             f"{' '.join(map(str, said))}: "
                             "draw the same schedule")  # fmt: skip
    off = measured.makespan / simulated.makespan - 1
    longest = max(simulated.makespan, measured.makespan)

    figure, axes = page(1.6 + 0.48 * p)
    draw_lanes(axes, p, longest, LANE)  # the darker grey would hide outlines
    inches = 7.0 / longest, (figure.get_figheight() - 1.5) / p
    draw_boxes(axes, simulated.bars, p, n_stages, inches, low=-0.38, high=-0.03, dashed=True)
    draw_boxes(axes, measured.bars, p, n_stages, inches, low=0.0, high=0.38)
    ends = {
        "simulated": (simulated.makespan, (0, (4, 2)), 10.5),
        "measured": (measured.makespan, "-", 0),
    }
    for name, (end, dashes, up) in ends.items():
        axes.axvline(end, color=INK, lw=1.4, ls=dashes, zorder=3)
        text = f"{name} {amount(end)} ms" + f", {off:+.1%}" * (name == "measured")
        above(axes, end, text, xytext=(0, 3 + up), ha="right", weight="bold", size=9)
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
    return (
        figure, claim,
        "Dashed boxes are simulated, and filled boxes are measured. The number in a box is its "
        "micro-batch, and the vertical lines show the ends.",
        f"Gantt chart of a schedule on {p} ranks, simulated and measured.",
        f"Bubble {simulated.bubble:.1%} simulated, {measured.bubble:.1%} measured: {each}.",
    )  # fmt: skip


def _claim(timed, unit):
    (slow, slowest), (fast, fastest) = (
        pick(timed.items(), key=lambda item: item[1].makespan) for pick in (max, min)
    )
    if slowest.makespan == fastest.makespan:
        return f"All take {amount(fastest.makespan)} {unit}"
    return (
        f"From {amount(slowest.makespan)} {unit} with {slow} to {amount(fastest.makespan)} with "
        f"{fast}"
    )


def _shades(v):
    return (
        f" Lighter boxes belong to the rank's {' and '.join(ORDINALS[1:v])} stage{'s' * (v > 2)}."
        if 1 < v <= 4
        else ""
    )


def _of_ranks(timed):
    per_rank = ", ".join(
        f"rank {rank} {bubble:.1%} idle and keeps at most {most}"
        for rank, (bubble, most) in enumerate(zip(timed.bubbles, timed.peak_kept, strict=True))
    )
    return f"Bubble {timed.bubble:.1%}: {per_rank}."
