r"""The micro-batches that each rank keeps for its backward passes, over time. Their number is the
reason for 1F1B: with GPipe every rank keeps all m micro-batches, and with 1F1B rank i of p ranks
keeps at most p - i.

        GPipe                     1F1B
rank 0     __/^^^^\__  8            /^^^^^^^\  4          micro-batches with F done and B (or I) not
rank 3      _/^^\_     8            /\/\/\/\   1
"""

from itertools import accumulate

from lib.plots.boxes import on_clock
from lib.plots.draw import at_edge, grid, heading, numbers, page
from lib.plots.labels import amount, each
from lib.plots.style import INK, drawing, rank_color, readable


@drawing
def kept_over_time(schedules, limits=None, unit=None):
    """A column per schedule, a row per rank: the live micro-batches x stages, as steps over time.

    schedules: {"GPipe": Simulation, "1F1B": Simulation}, or Bars in place of a Simulation; 1 to 3
        schedules of the same p, which is at most 6. With a split backward (ZB-H1) the activations
        that wait between I and W are not counted, because they take less memory than live ones; see
        `lib.pipeline.kept`.
    limits: {"1F1B": [min(m, p - i) for i in range(p)]}: what theory allows each rank, dashed.
    unit: as for `gantt`.
    Raises ValueError for any other number of schedules, different numbers of ranks, or limits that
    do not match them.
    """
    on_clocks = {name: on_clock(timed, unit) for name, timed in schedules.items()}
    ranks = {name: len(timed.schedule) for name, (timed, _) in on_clocks.items()}
    limits = limits or {}
    if not 1 <= len(schedules) <= 3 or len(set(ranks.values())) > 1 or max(ranks.values()) > 6:
        raise ValueError(
            f"ranks {ranks}: give 1 to 3 schedules, all of as many ranks, at most 6 to be read"
        )
    p = next(iter(ranks.values()))
    wrong = next((name for name in limits if len(limits[name]) != p or name not in schedules), None)
    if wrong is not None:
        raise ValueError(
            f"{wrong}: {len(limits[wrong])} limits, schedules {', '.join(schedules)}: give one for "
            f"each of {p} ranks"
        )
    steps = {
        name: [live_steps(timed.bars, rank) for rank in range(p)]
        for name, (timed, _) in on_clocks.items()
    }
    peaks = {
        name: [max(live for _, live in of_rank) for of_rank in steps[name]] for name in schedules
    }
    most = max(max(peak) for peak in peaks.values())

    figure, panels = page(1.5 + 0.62 * p, p, len(schedules), sharex=True, sharey=True)
    for column, (name, (timed, unit_name)) in enumerate(on_clocks.items()):
        for rank, axes in enumerate(panels[:, column]):
            times, live = zip(*steps[name][rank], (timed.makespan, 0), strict=True)
            axes.fill_between(times, live, step="post", color=rank_color(rank), alpha=0.25, lw=0)
            axes.step(times, live, where="post", color=rank_color(rank), lw=1.5)
            if name in limits:
                axes.axhline(limits[name][rank], color=INK, ls=(0, (4, 2.5)), lw=1.2, zorder=3)
            most_here = peaks[name][rank]
            at_edge(axes, most_here, amount(most_here), 1.01, size=9.5, color=rank_color(rank),
                    va="center")  # fmt: skip
            axes.set(ylim=(0, 1.12 * most))
            axes.set_yticks([0, most], ["", amount(most)])
            grid(axes, "y")
            if column == 0:
                axes.set_ylabel(f"rank {rank}", rotation=0, ha="right", va="center",
                                color=readable(rank_color(rank)),
                                weight="bold")  # fmt: skip
        heading(panels[0, column], name, pad=4)
        panels[-1, column].set_xlabel(f"time ({unit_name})", loc="left")
        numbers(panels[-1, column].xaxis)
        panels[-1, column].set_xlim(0, max(timed.makespan for timed, _ in on_clocks.values()))
    several = any(1 + bar.action.stage > p for timed, _ in on_clocks.values() for bar in timed.bars)
    what = "micro-batches" + " x stages" * several
    claim = "; ".join(f"{name}: at most {amount(max(peaks[name]))} {what}" for name in schedules)
    allowed = {
        name: f"; limits {', '.join(map(amount, of_ranks))}" for name, of_ranks in limits.items()
    }
    words = lambda name, peak: (
        ", ".join(f"rank {r} at most {amount(n)}" for r, n in enumerate(peak))
        + allowed.get(name, "")
    )
    return (
        figure, claim, f"Each rank keeps {what} from their forward to their backward."
        f"{' The dashed line is the limit.' * bool(limits)} The number at the right is the most.",
        f"What each rank keeps over time, in {what}, a column per schedule.", each(peaks, words),
    )  # fmt: skip


def live_steps(bars, rank):
    """[(time, number of live micro-batches x stages after it), ...] of one rank. The end of an F
    adds one, and the end of a B or I takes one away."""
    ends = sorted(
        (bar.end, {"F": 1, "W": 0}.get(bar.action.kind, -1)) for bar in bars if bar.rank == rank
    )
    times = [0, *(end for end, _ in ends)]
    return list(zip(times, accumulate([0, *(change for _, change in ends)]), strict=True))
