"""A step on ranks of unequal speed: how long each rank computes, and how long it waits for the
slowest.

equal           rank 0  [ 4 rows ]::::::::::::::::|
                rank 1  [    3 rows   ]:::::::::::|
                rank 2  [          3 rows         ]         a step ends when the last rank does
in proportion   rank 0  [   6 rows   ]|
                rank 1  [   3 rows   ]|
                rank 2  [ 1 row ]:::::|
"""

from lib.plots.draw import DASHES, beside, box, heading, page, rows, time_axis
from lib.plots.labels import amount, clock, each, short
from lib.plots.style import FAINT, INK, OP_COLOR, drawing, rank_color


@drawing
def unequal_steps(splits, speeds, measured=None):
    """A panel per way to split the batch, a lane per rank: it computes its rows, and then waits
    until the slowest rank is done.

    splits: {"equal": [rows of rank 0, rows of rank 1, ...], "in proportion": [...]}, 1 to 3; the
    title compares the fastest with the first. speeds: rows per second of each rank, 1 to 8 ranks
    and at most 16 lanes in all. measured: {"equal": seconds of a step, ...}, for some or all of
    them: a solid vertical line where a step ended. Raises ValueError for other numbers of splits,
    ranks or lanes, a speed that is not above 0, a split with a number of rows below 0 or without
    any row, or a measurement of another split.
    """
    measured, N = measured or {}, len(speeds)
    if not 1 <= len(splits) <= 3 or not 1 <= N <= 8 or min(speeds) <= 0 or len(splits) * N > 16:
        raise ValueError(f"{len(splits)} splits over speeds {list(speeds)}: 1 to 3 splits over 1 "
                         f"to 8 ranks, 16 lanes "
                         "in all, of speeds above 0")  # fmt: skip
    for name, batch in splits.items():
        if len(batch) != N or min(batch) < 0 or not any(batch):
            raise ValueError(
                f"{name}: {list(batch)} rows on {N} ranks: give 0 or more for each rank, and a row "
                f"in all"
            )
    if not set(measured) <= set(splits):
        raise ValueError(
            f"measured {', '.join(measured)} of the splits {', '.join(splits)}: measure some of "
            f"them"
        )
    busy = {
        name: [b / v for b, v in zip(batch, speeds, strict=True)] for name, batch in splits.items()
    }
    ends = {name: max(seconds) for name, seconds in busy.items()}
    longest = max([*ends.values(), *measured.values()])
    factor, unit = clock(longest)
    lane = min(0.25, (2.65 - 0.32 * len(splits)) / (len(splits) * N))  # inches
    size = min(9, 60 * lane)
    figure, panels = page(1.35 + len(splits) * (0.32 + lane * N), rows=len(splits), sharex=True)
    for axes, (name, batch) in zip(panels, splits.items(), strict=True):
        end, done = ends[name] * factor, measured.get(name, 0.0) * factor
        for rank, (b, seconds) in enumerate(zip(batch, busy[name], strict=True)):
            box(axes, 0, rank - 0.4, max(end, done), 0.8, OP_COLOR["idle"], ec="none", zorder=1)
            words, wide = f"{b} row{'s' * (b != 1)}", seconds / longest * 6.4  # inches
            box(axes, 0, rank - 0.4, seconds * factor, 0.8, OP_COLOR["F"], words, wide, size,
                ec="none")  # fmt: skip
            if b == 0:
                beside(axes, 0, rank, "none", FAINT, 4, size=size, weight="normal", bbox=None)
        axes.axvline(end, color=INK, lw=1.6, ls=DASHES, zorder=4)
        if done:
            axes.axvline(done, color=INK, lw=1.8, zorder=4)
        axes.set_xlim(0, 1.03 * longest * factor)
        rows(axes, [f"rank {rank}, {short(v)}/s" for rank, v in enumerate(speeds)],
             map(rank_color, range(N)),
             size=min(10, 58 * lane))  # fmt: skip
        axes.tick_params(axis="x", length=3 if axes is panels[-1] else 0)
        idle = 1 - sum(busy[name]) / (N * ends[name])
        took = f", measured {amount(done)}" if done else ""
        heading(
            axes,
            f"{name}: {amount(end)} {unit}{took}; the ranks wait {idle:.0%} of the time",
            pad=3,
        )
    waits = {"fc": OP_COLOR["idle"], "ec": FAINT, "lw": 0.4}
    time_axis(panels[-1], unit, {"computes": OP_COLOR["F"], "waits": waits})
    took = {name: f", measured {amount(seconds * factor)}" for name, seconds in measured.items()}
    of_ranks = lambda name, batch: ", ".join(
        f"rank {r} {b} rows in {amount(s * factor)}"
        for r, (b, s) in enumerate(zip(batch, busy[name], strict=True))
    )
    words = lambda name, batch: (
        f"{of_ranks(name, batch)}; a step {amount(ends[name] * factor)} {unit}{took.get(name, '')}"
    )
    look = "Dashed: a step ends, by rows over speed." + " Solid: measured." * bool(measured)
    what = (
        f"Lanes of {N} ranks of speeds {', '.join(map(short, speeds))} rows per second, a panel "
        f"per split."
    )
    return figure, _claim(ends, measured, factor, unit), look, what, each(splits, words)


def _claim(ends, measured, factor, unit):
    """The fastest split compared with the first, as measured if both were."""
    first, best = next(iter(ends)), min(reversed(ends), key=ends.get)  # the last of equal ones
    if ends[best] == ends[first]:
        return (
            f"{first}: a step of {amount(ends[first] * factor)} {unit}, and no other split is "
            f"faster"
        )
    both = first in measured and best in measured
    times = measured if both else ends
    claim = (
        f"{best}: {amount(times[best] * factor)} {unit} instead of {amount(times[first] * factor)}"
    )
    ratio = f"{times[first] / times[best]:.2f} times as fast"
    return f"{claim}, {ratio}" + (f" (predicted {ends[first] / ends[best]:.2f})" if both else "")
