"""The time of a collective against its size, or of a layer or a step against tp, on two logarithmic
axes. Predictions are dashed."""

import math
from itertools import pairwise

import numpy as np

from lib.plots.draw import above, curves, grid, named_ends, page, ticks
from lib.plots.labels import capital, in_sentences, lines_in_words, size_in_words, time_in_words
from lib.plots.style import FAINT, INK, PAPER, RANK_COLORS, drawing

ALGORITHM_COLOR = {  # the same in every figure; no rank has one of these colours
    "star": "#5c6470",
    "tree": "#3f7f3f",
    "ring": "#c04a8b",
    "flat ring": "#c04a8b",
    "recursive doubling": "#0f7f95",
    "halving doubling": "#a87400",
    "direct": "#8c8c8c",
    "hierarchical": "#5b4fb0",
}


@drawing
def cost_curves(measured, predicted, title=None, at=None):
    """Time against size, one colour per algorithm. A diamond marks each size at which another
    algorithm becomes the fastest.

    measured, predicted: {"ring": (sizes, seconds), ...}, sizes in bytes, ascending; either may be
    {}. A name has the same colour in both, and an algorithm of `ALGORITHM_COLOR` has it in all
    figures; underscores in a name are drawn as spaces.
    at: a size in bytes, such as the value of a slider, at which the times are marked. title:
    replaces the claim about the fastest algorithm, and no diamonds are drawn then. Raises
    ValueError for nothing to draw, more than 8 algorithms, unequal lengths, or values that are not
    above 0 and have no logarithm.
    """
    for name, (sizes, seconds) in [*measured.items(), *predicted.items()]:
        if np.shape(sizes) != np.shape(seconds) or np.ndim(sizes) != 1 or len(sizes) == 0:
            raise ValueError(
                f"{name}: {np.shape(sizes)} sizes and {np.shape(seconds)} times must be lists of "
                f"one length"
            )
        if min(sizes) <= 0 or min(seconds) <= 0:
            raise ValueError(
                f"{name}: size {min(sizes):g} or time {min(seconds):g} has no logarithm, start "
                f"above 0"
            )
    measured, predicted = (
        {name.replace("_", " "): curve for name, curve in curves.items()}
        for curves in (measured, predicted)
    )
    names = list(dict.fromkeys([*measured, *predicted]))
    if not 1 <= len(names) <= len(RANK_COLORS):
        raise ValueError(f"{len(names)} algorithms: 1 to {len(RANK_COLORS)} can be told apart")
    color = _colors(names)
    judged = measured or predicted  # the curves that the title and the diamonds are about

    figure, axes = page(4)
    axes.set(xscale="log", yscale="log", xlabel="size of the tensor", ylabel="time")
    ends = curves(axes, measured, predicted, color)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.5, high)  # room for the labels under the diamonds
    named_ends(axes, ends, 0.056)
    takeovers = [] if title else crossings(judged)
    for size, seconds, _, _ in takeovers:
        axes.plot([size], [seconds], marker="D", ms=8, mfc=PAPER, mec=INK, mew=1.8, zorder=6)
        axes.annotate(size_in_words(size), (size, seconds), xytext=(5, -8),
                      textcoords="offset points", va="top",
                      weight="bold", zorder=7)  # fmt: skip
    if at is not None:
        axes.axvline(at, color=FAINT, lw=1.2, zorder=1)
        for name, curve in judged.items():
            axes.plot([at], [_time_at(curve, at)], marker="o", ms=6, mfc=PAPER, mec=color[name],
                      mew=2, zorder=5)  # fmt: skip
        above(axes, at, size_in_words(at), color=FAINT)
    axes.set_xlim(
        min(min(x) for x, _ in judged.values()) / 1.15,
        max(max(x) for x, _ in judged.values()) * 1.15,
    )
    for axis, words in ((axes.xaxis, size_in_words), (axes.yaxis, time_in_words)):
        low, high = axis.get_view_interval() * (1 - 1e-9, 1 + 1e-9)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1,) if high / low > 50 else (1, 2, 5)
        ticks(
            axis,
            [step * 10.0**e for e in decades for step in steps if low <= step * 10.0**e <= high],
            words,
        )
    grid(axes)

    claim = _claim(judged, takeovers, at)
    marks = " Diamond: from this size on another is the fastest." if takeovers else ""
    words = in_sentences({"measured": measured, "predicted": predicted}, _from_to)
    look = f"{lines_in_words(measured, predicted)}.{marks}"
    return figure, claim, look, "Line chart of time against size on logarithmic axes.", words


def links(found):
    """The time of a message against its size for several links, as measured and as the line alpha +
    bytes * beta predicts it.

    found: objects with `name`, `sizes`, `seconds` and `time(n_bytes)`, such as
    lib.measuring.links.Link.
    """
    return cost_curves(
        {link.name: (link.sizes, link.seconds) for link in found},
        {link.name: (link.sizes, [link.time(m) for m in link.sizes]) for link in found},
        title="A message: flat while latency counts, then in proportion to its bytes",
    )


@drawing
def tp_volume(measured, predicted, of="a layer", domain=None):
    """Time against tp on logarithmic axes, a curve per link or model. A diamond marks the fastest
    tp of each.

    measured, predicted: {"inside a node": ([1, 2, 4, 8], seconds), "across nodes": ...}; either may
    be {}. The same name has the same colour in both. If a curve begins with tp=1, a thin line shows
    its time at tp=1 (the longest, if several do) divided by tp, which is what tp would achieve if
    nothing had to be sent. of: what takes this time, such as "a layer". domain: the number of GPUs
    in an NVLink domain; its end is marked if there are points beyond it. Raises ValueError for
    nothing to draw, more than 8 names, unequal lengths, tp below 1, or times that are not above 0.
    """
    names = list(dict.fromkeys([*measured, *predicted]))
    if not 1 <= len(names) <= len(RANK_COLORS):
        raise ValueError(f"{len(names)} links: 1 to {len(RANK_COLORS)} can be told apart")
    for name, (tp, seconds) in [*measured.items(), *predicted.items()]:
        if np.ndim(tp) != 1 or np.shape(tp) != np.shape(seconds) or len(tp) == 0:
            raise ValueError(
                f"{name}: {np.shape(tp)} values of tp and {np.shape(seconds)} times must be one "
                f"length"
            )
        if min(tp) < 1 or min(seconds) <= 0:
            raise ValueError(
                f"{name}: tp {min(tp)} or time {min(seconds):g}; tp begins with 1, and time is "
                f"above 0"
            )
    color, judged = dict(zip(names, RANK_COLORS, strict=False)), measured or predicted
    degrees = sorted({int(n) for tp, _ in [*measured.values(), *predicted.values()] for n in tp})

    figure, axes = page(3.7)
    axes.set(xscale="log", yscale="log", xlabel="tp", ylabel=f"time of {of}")
    starts = [seconds[0] for tp, seconds in judged.values() if tp[0] == 1]
    if starts:
        axes.plot(degrees, [max(starts) / n for n in degrees], color=FAINT, lw=1.2, zorder=1)
        axes.annotate("nothing sent: 1/tp", (degrees[-1], max(starts) / degrees[-1]),
                      xytext=(-4, -5), size=9,
                      textcoords="offset points", color=FAINT, ha="right", va="top")  # fmt: skip
    ends = curves(axes, measured, predicted, color)
    best = {name: int(np.argmin(seconds)) for name, (_, seconds) in judged.items()}
    for name, i in best.items():
        tp, seconds = judged[name]
        axes.plot(
            [tp[i]], [seconds[i]], marker="D", ms=8, mfc=PAPER, mec=color[name], mew=2, zorder=6
        )
    low, high = axes.get_ylim()
    axes.set(ylim=(low / 1.25, high * 1.1), xlim=(degrees[0] / 1.06, degrees[-1] * 1.06))
    named_ends(axes, ends, 0.075)
    if domain is not None and degrees[0] <= domain < degrees[-1]:
        end = math.sqrt(domain * min(n for n in degrees if n > domain))
        axes.axvline(end, color=FAINT, ls=(0, (2, 2)), lw=1.4, zorder=1)
        above(axes, end, f"end of the NVLink domain of {domain} GPUs", color=FAINT)
    ticks(axes.xaxis, degrees)
    steps = [f * 10.0**e for e in range(-9, 4) for f in (1, 2, 5)]
    ticks(axes.yaxis, [t for t in steps if low / 1.25 <= t <= high * 1.1], time_in_words)
    grid(axes)
    claim = capital("; ".join(_of_one(name, judged[name], i) for name, i in best.items()))
    look = f"{lines_in_words(measured, predicted)}. A diamond marks the fastest."
    at = lambda curve: ", ".join(f"{time_in_words(s)} at {n}" for n, s in zip(*curve, strict=True))
    words = in_sentences({"measured": measured, "predicted": predicted}, at)
    return figure, claim, look, f"Time of {of} against tp on logarithmic axes.", words


def _colors(names):
    """{name: colour}: an algorithm has its own colour, and any other name gets the last rank colour
    that is still free."""
    own = {name: ALGORITHM_COLOR[name] for name in names if name in ALGORITHM_COLOR}
    free = (color for color in reversed(RANK_COLORS) if color not in own.values())
    return {name: own.get(name) or next(free) for name in names}


def _from_to(curve):
    x, y = curve
    return (
        f"{time_in_words(y[0])} at {size_in_words(x[0])} to {time_in_words(y[-1])} at "
        f"{size_in_words(x[-1])}"
    )


def crossings(curves):
    """[(size, seconds, the fastest before, the fastest now), ...]: where the fastest curve changes,
    among the sizes that all curves have in common.

    Between two sizes a curve is assumed to be straight on the logarithmic axes. A lead counts only
    if it reaches 10% and lasts over a factor of 4 in size, because noise makes two equal curves
    cross many times.
    """
    first, last = max(x[0] for x, _ in curves.values()), min(x[-1] for x, _ in curves.values())
    if not first < last:
        return []
    grid = np.geomspace(first, last, 2000)
    names = list(curves)
    # (names, 2000)
    times = np.array([np.interp(np.log(grid), np.log(x), np.log(y)) for x, y in curves.values()])
    reigns = [(0, int(times[:, 0].argmin()))]  # (index of the grid at which it begins, which curve)
    for i in range(len(grid)):
        leader, challenger = reigns[-1][1], int(times[:, i].argmin())
        if times[challenger, i] < times[leader, i] - np.log(1.1):
            behind = np.flatnonzero(times[challenger, :i] >= times[leader, :i])
            reigns.append((int(behind[-1]) + 1 if len(behind) else 0, challenger))
    ends = [place for place, _ in reigns[1:]] + [len(grid) - 1]
    lasting = [
        reign for reign, end in zip(reigns, ends, strict=True) if grid[end] >= 4 * grid[reign[0]]
    ]
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
        return (
            f"At {size_in_words(at)} {fastest} is the fastest: "
            f"{time_in_words(times[fastest])}{slower}"
        )
    if takeovers:
        (up_to, _, before, _), (since, _, _, after) = takeovers[0], takeovers[-1]
        return (
            f"{before} is the fastest up to {size_in_words(up_to)}, {after} from "
            f"{size_in_words(since)} on"
        )
    if len(curves) == 1:
        return f"{next(iter(curves))}: time against size"
    sizes = sorted({size for x, _ in curves.values() for size in x})
    won = [min(curves, key=lambda name: _time_at(curves[name], size)) for size in sizes]
    fastest = max(curves, key=won.count)
    return (
        f"{fastest} is the fastest at "
        f"{'every size' if won.count(fastest) == len(sizes) else 'most sizes'}"
    )


def _time_at(curve, size):
    """The curve's seconds at `size`, interpolated linearly on the logarithmic axes."""
    sizes, seconds = curve
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds))))


def _of_one(name, curve, best):
    """Which tp is the fastest for this curve, and if it is not the largest tp, how long the largest
    takes."""
    tp, seconds = curve
    words = f"{name} tp={tp[best]} is the fastest, {time_in_words(seconds[best])}"
    return words if best == len(tp) - 1 else f"{words} (tp={tp[-1]}: {time_in_words(seconds[-1])})"
