"""Time against message size, on two logarithmic axes: predictions dashed, measurements solid."""

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from lib.plots.labels import spread
from lib.plots.style import FAINT, INK, OP_COLOR, PAPER, RANK_COLORS, finish, styled


@styled
def cost_curves(measured, predicted, title=None, at=None, note=""):
    """One colour per algorithm; where another becomes the fastest is marked.

    measured, predicted: {"ring": (sizes, seconds), ...}, sizes in bytes, ascending; either may be {}. The same name has
    the same colour in both. at: a size in bytes, to be marked with the times there (a slider's).
    note: a sentence to begin the caption with, such as how many ranks.
    Raises ValueError for nothing to draw, unequal lengths, or values that a logarithm does not have.
    """
    for name, (sizes, seconds) in [*measured.items(), *predicted.items()]:
        if np.shape(sizes) != np.shape(seconds) or np.ndim(sizes) != 1 or len(sizes) == 0:
            raise ValueError(
                f"{name}: {np.shape(sizes)} sizes and {np.shape(seconds)} times must be lists of one length"
            )
        if min(sizes) <= 0 or min(seconds) <= 0:
            raise ValueError(f"{name}: size {min(sizes):g} or time {min(seconds):g} has no logarithm, start above 0")
    names = list(dict.fromkeys([*measured, *predicted]))
    if not 1 <= len(names) <= len(RANK_COLORS):
        raise ValueError(f"{len(names)} algorithms: 1 to {len(RANK_COLORS)} can be told apart")
    color = dict(zip(names, RANK_COLORS, strict=False))
    judged = measured or predicted  # whose crossings count

    figure = Figure(figsize=(8, 4))
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel="size of the tensor", ylabel="time")
    for name, (sizes, seconds) in predicted.items():
        axes.plot(sizes, seconds, color=color[name], ls=(0, (5, 2.5)), lw=1.6)
    for name, (sizes, seconds) in measured.items():
        axes.plot(sizes, seconds, color=color[name], marker="o", ms=4.5, lw=2)
    ends = {name: (measured.get(name) or predicted[name])[1][-1] for name in names}
    low, high = axes.get_ylim()
    low /= 1.5  # room for the labels under the diamonds
    axes.set_ylim(low, high)
    places = spread([np.log10(y) for y in ends.values()], 0.056 * np.log10(high / low))
    for name, y in zip(names, places, strict=True):
        axes.annotate(name, (1.015, 10**y), xycoords=("axes fraction", "data"), color=color[name], va="center",
                      weight="bold")  # fmt: skip
    takeovers = crossings(judged)
    for size, seconds, _, _ in takeovers:
        axes.plot([size], [seconds], marker="D", ms=8, mfc=PAPER, mec=INK, mew=1.8, zorder=6)
        axes.annotate(size_in_words(size), (size, seconds), xytext=(5, -8), textcoords="offset points", va="top",
                      weight="bold", zorder=7)  # fmt: skip
    if at is not None:
        axes.axvline(at, color=FAINT, lw=1.2, zorder=1)
        for name, curve in judged.items():
            axes.plot([at], [_time_at(curve, at)], marker="o", ms=6, mfc=PAPER, mec=color[name], mew=2, zorder=5)
        axes.annotate(size_in_words(at), (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), color=FAINT,
                      textcoords="offset points", ha="center", va="bottom")  # fmt: skip
    first, last = min(min(s) for s, _ in judged.values()), max(max(s) for s, _ in judged.values())
    axes.set_xlim(first / 1.15, last * 1.15)
    _ticks(axes)
    axes.grid(which="major", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)

    claim = _claim(judged, takeovers, at)
    lines = "; ".join(
        line for line in ("solid: measured" * bool(measured), "dashed: predicted" * bool(predicted)) if line
    )
    marks = " Diamond: from this size on another is the fastest." if takeovers else ""
    return finish(
        figure,
        title or claim,
        f"{note} {lines[0].upper()}{lines[1:]}.{marks}".strip(),
        f"Line chart of time against size on logarithmic axes. {claim}. {note} "
        + " ".join(
            f"{name}, {how}: {time_in_words(y[0])} at {size_in_words(x[0])} to {time_in_words(y[-1])} at "
            f"{size_in_words(x[-1])}."
            for how, curves in (("measured", measured), ("predicted", predicted))
            for name, (x, y) in curves.items()
        ),
    )


def crossings(curves):
    """[(size, seconds, who was the fastest, who is now), ...] where the fastest changes, between their common sizes.

    Between two sizes a curve is taken to be straight on the logarithmic axes. A lead counts if it reaches 10 % and
    lasts over a factor of 4 in size, because noise makes equal curves cross many times.
    """
    first, last = max(x[0] for x, _ in curves.values()), min(x[-1] for x, _ in curves.values())
    if not first < last:
        return []
    grid = np.geomspace(first, last, 2000)
    names = list(curves)
    times = np.array([np.interp(np.log(grid), np.log(x), np.log(y)) for x, y in curves.values()])  # (names, 2000)
    reigns = [(0, int(times[:, 0].argmin()))]  # (from which place of the grid, who)
    for i in range(len(grid)):
        leader, challenger = reigns[-1][1], int(times[:, i].argmin())
        if times[challenger, i] < times[leader, i] - np.log(1.1):
            behind = np.flatnonzero(times[challenger, :i] >= times[leader, :i])
            reigns.append((int(behind[-1]) + 1 if len(behind) else 0, challenger))
    ends = [place for place, _ in reigns[1:]] + [len(grid) - 1]
    lasting = [reign for reign, end in zip(reigns, ends, strict=True) if grid[end] >= 4 * grid[reign[0]]]
    return [
        (float(grid[place]), float(np.exp(times[who, place])), names[before], names[who])
        for (_, before), (place, who) in pairwise(lasting)
        if who != before
    ]


def _claim(curves, takeovers, at):
    if at is not None:
        times = {name: _time_at(curve, at) for name, curve in curves.items()}
        fastest, *others = sorted(times, key=times.get)
        slower = f", {others[0]} {time_in_words(times[others[0]])}" if others else ""
        return f"At {size_in_words(at)} {fastest} is the fastest: {time_in_words(times[fastest])}{slower}"
    if takeovers:
        (up_to, _, before, _), (since, _, _, after) = takeovers[0], takeovers[-1]
        return f"{before} is the fastest up to {size_in_words(up_to)}, {after} from {size_in_words(since)} on"
    if len(curves) == 1:
        return f"{next(iter(curves))}: time against size"
    sizes = sorted({size for x, _ in curves.values() for size in x})
    won = [min(curves, key=lambda name: _time_at(curves[name], size)) for size in sizes]
    fastest = max(curves, key=won.count)
    return f"{fastest} is the fastest at {'every size' if won.count(fastest) == len(sizes) else 'most sizes'}"


def _time_at(curve, size):
    """Seconds at a size between those of the curve, straight on the logarithmic axes."""
    sizes, seconds = curve
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds))))


def _ticks(axes):
    """Powers of ten by their names: 1 KB, 100 µs."""
    for axis, words in ((axes.xaxis, size_in_words), (axes.yaxis, time_in_words)):
        low, high = axis.get_view_interval()
        exponents = range(int(np.ceil(np.log10(low) - 1e-9)), int(np.floor(np.log10(high) + 1e-9)) + 1)
        axis.set_ticks([10.0**e for e in exponents], [words(10.0**e) for e in exponents])
        axis.set_ticks([], minor=True)


def size_in_words(n_bytes):
    """Two digits: 1234 -> "1.2 KB", 1e9 -> "1 GB"; powers of 1000."""
    return _scaled(n_bytes, (("B", 1), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)))


def time_in_words(seconds):
    """Two digits: 0.00123 -> "1.2 ms"."""
    return _scaled(seconds, (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1)))


def _scaled(value, units):
    value = float(f"{value:.2g}")
    unit, factor = [u for u in units if value >= 0.999 * u[1]][-1:][0] if value >= units[0][1] else units[0]
    return f"{float(f'{value / factor:.6g}'):,g} {unit}"
