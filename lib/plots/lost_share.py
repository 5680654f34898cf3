r"""The share of a job's time that is lost to saving and to failures, against the interval between
saves: by formula, as simulated, and as measured on ranks that were killed.

lost |  \                       _ /
     |   \  o             _ o -          dashed: the formula        o   simulated failures
     |     ` o _   |  _ -                bar: 90% of simulated jobs with as few failures as measured
     |          ` -<>-                   diamond: the least
     +---------------------------- interval
"""

import numpy as np

from lib.plots.draw import DASHED, grid, named_ends, numbers, page, ticks
from lib.plots.labels import TIMES, few, in_sentences, in_unit, listed
from lib.plots.style import INK, PAPER, RANK_COLORS, drawing

LONG = TIMES | {"min": 60.0, "h": 3600.0}
PLACES = [f * unit for unit in (1e-3, 1e-2, 0.1, 1.0) for f in (1, 2, 5)]
PLACES += (
    [10.0, 30.0]
    + [f * 60.0 for f in (1, 2, 5, 10, 20)]
    + [f * 3600.0 for f in (1, 2, 5, 10, 20, 50)]
)


@drawing
def lost_share(predicted, simulated=None, measured=None):
    """A dashed curve per job with a diamond at its minimum, circles for simulations, and squares
    with bars for measurements.

    predicted: {"16,384 GPUs": (intervals in seconds, ascending; shares from 0 to 1), ...}, 1 to 4.
    simulated: the same, for some of them. measured: {name: [(interval, low, share, high), ...]};
    90% of simulated jobs with as few failures must lie between low and high, as the caption says.
    Raises ValueError for any other number of curves, and for a name that is not in `predicted`; and
    in `predicted` and `simulated` for unequal lengths, intervals that are not above 0, or shares
    that are not from 0 to 1.
    """
    simulated, measured = simulated or {}, measured or {}
    if not 1 <= len(predicted) <= 4 or not {*simulated, *measured} <= set(predicted):
        names = (
            f"predicted {listed(predicted)}; simulated {listed(simulated)}; measured "
            f"{listed(measured)}"
        )
        raise ValueError(f"{names}: give 1 to 4 curves, and points of these")
    for name, (x, y) in [*predicted.items(), *simulated.items()]:
        if (
            np.shape(x) != np.shape(y)
            or len(x) == 0
            or min(x) <= 0
            or not 0 <= min(y) <= max(y) <= 1
        ):
            raise ValueError(f"{name}: {np.shape(x)} intervals and {np.shape(y)} shares: as many "
                             f"of both, intervals "
                             "above 0, shares from 0 to 1")  # fmt: skip
    color = dict(zip(predicted, RANK_COLORS, strict=False))
    points = [point for some in measured.values() for point in some]
    every = [y for _, shares in [*predicted.values(), *simulated.values()] for y in shares]
    highest = max([*every, *(high for *_, high in points)])

    figure, axes = page(3.7)
    axes.set(xscale="log", xlabel="interval between two saves", ylabel="lost share of time")
    for name, (x, y) in predicted.items():
        axes.plot(x, y, color=color[name], ls=DASHED, lw=1.8, zorder=3)
    for name, (x, y) in simulated.items():
        axes.plot(
            x, y, color=color[name], ls="none", marker="o", ms=5, mfc=PAPER, mew=1.5, zorder=4
        )
    best = {name: (x[i], y[i]) for name, (x, y) in predicted.items() for i in [int(np.argmin(y))]}
    for name, (x, y) in best.items():
        axes.plot([x], [y], marker="D", ms=8, mfc=PAPER, mec=color[name], mew=2, zorder=6)
    for name, some in measured.items():
        for x, low, share, high in some:
            axes.plot([x, x], [low, high], color=color[name], lw=2.4, zorder=5)
            axes.plot([x], [share], marker="s", ms=8, color=color[name], mec=INK, mew=1.2, zorder=7)
    low, high = (
        min(min(x) for x, _ in predicted.values()),
        max(max(x) for x, _ in predicted.values()),
    )
    axes.set(xlim=(low / 1.04, high * 1.04), ylim=(0, min(1.0, 1.12 * highest)))
    named_ends(axes, [(name, y[-1], color[name]) for name, (_, y) in predicted.items()], 0.075)
    ticks(axes.xaxis, [t for t in PLACES if low <= t <= high], lambda t: in_unit(t, LONG))
    numbers(axes.yaxis, lambda share: f"{share:.0%}")
    grid(axes)
    claim = _measured(measured, predicted) or _least(best)
    told = ["The dashed lines are the formula; a diamond marks the least loss."]
    told += ["Circles are simulated failures."] * bool(simulated)
    told += ["The square is measured; the bar holds 90% of jobs with so few failures."] * bool(
        measured
    )
    at = lambda curve: ", ".join(
        f"{curve[1][i]:.1%} at {in_unit(curve[0][i], LONG)}" for i in few(len(curve[0]))
    )
    words = [in_sentences({"the formula": predicted, "simulated": simulated}, at)]
    words += [
        f"{name}, measured: {share:.1%} at {in_unit(x, LONG)}, interval {low:.1%} to {high:.1%}."
        for name, some in measured.items()
        for x, low, share, high in some
    ]
    what = "Lost share of time against the interval between two saves, on a logarithmic axis."
    return figure, claim, " ".join(told), what, " ".join(words)


def _percent(share):
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _least(best):
    """The minima of the curves, in words."""
    least = {
        name: f"{_percent(share)} with a save every {in_unit(x, LONG)}"
        for name, (x, share) in best.items()
    }
    if len(least) == 1:
        return f"Least is lost: {', '.join(least.values())}"
    if len(least) > 2:
        low, high = (f(share for _, share in best.values()) for f in (min, max))
        return f"With the best interval {_percent(low)} to {_percent(high)} of the time is lost"
    return f"Least is lost: {'; '.join(f'{text} ({name})' for name, text in least.items())}"


def _measured(measured, predicted):
    """Each measured share, with the formula's in brackets; empty if nothing was measured."""
    told = []
    for name, some in measured.items():
        intervals, shares = predicted[name]
        for x, _, share, _ in some:
            formula = np.interp(np.log(x), np.log(intervals), shares)
            told.append(
                f"{_percent(share)} with a save every {in_unit(x, LONG)} (formula "
                f"{_percent(formula)})"
            )
    return f"Lost, measured: {'; '.join(told)}" if told else ""
