"""Scaling: throughput against the number of ranks, and the share of a step that is exposed
communication, that is, not hidden by compute."""

import numpy as np

from lib.plots.draw import above, curves, grid, heading, named_ends, page, ticks
from lib.plots.labels import amount, each, few, in_sentences, lines_in_words, short
from lib.plots.style import FAINT, RANK_COLORS, drawing, readable


@drawing
def scaling(measured, predicted):
    """A panel per kind of scaling: the throughput, as a multiple of that of one rank, against the
    number of ranks.

    measured, predicted: {"strong": {"20 MB/s": (ranks, throughput), ...}, "weak": {...}}, with a
    panel per kind and a colour per link; either may be {}. Throughput may have any unit, such as
    rows per second. Every curve has to begin with one rank. Raises ValueError for nothing to draw,
    unequal lengths, or a curve that begins with more ranks.
    """
    kinds = list(dict.fromkeys([*measured, *predicted]))
    if not kinds:
        raise ValueError("no measured and no predicted throughput: there is nothing to draw")
    speedup = {}  # {(kind, "measured" or "predicted", link): (ranks, multiple of one rank)}
    for how, of_kind in (("measured", measured), ("predicted", predicted)):
        for kind, of_link in of_kind.items():
            for link, (ranks, throughput) in of_link.items():
                _same_length(f"{kind}, {link}", ranks, throughput)
                if ranks[0] != 1:
                    raise ValueError(
                        f"{kind}, {link}: begins with {ranks[0]} ranks; begin with 1, to compare "
                        f"with"
                    )
                speedup[kind, how, link] = ranks, [t / throughput[0] for t in throughput]
    links = list(dict.fromkeys(link for *_, link in speedup))
    color = dict(zip(links, RANK_COLORS, strict=False))
    most = max(ranks[-1] for ranks, _ in speedup.values())
    low, high = 0.9 * min(1.0, *(min(times) for _, times in speedup.values())), 1.2 * most

    figure, panels = page(3.9, columns=len(kinds), sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        axes.set(
            xscale="log", yscale="log", xlabel="ranks", xlim=(0.93, 1.08 * most), ylim=(low, high)
        )
        axes.plot([1, most], [1, most], color=FAINT, lw=1.2, zorder=1)
        axes.annotate("perfect", (most**0.5, most**0.5), xytext=(-4, 4), textcoords="offset points",
                      color=FAINT,
                      ha="right", size=9)  # fmt: skip
        found, theory = ({link: curve for (of, as_, link),
        curve in speedup.items() if (of, as_) == (kind, how)}
                         for how in ("measured", "predicted"))  # fmt: skip
        curves(axes, found, theory, color)
        ends = {link: (ranks[-1], times[-1]) for link, (ranks, times) in (theory | found).items()}
        shares = [
            (f"{link}\n" * (len(kinds) == 1) + f"{t / n:.0%}", t, color[link])
            for link, (n, t) in ends.items()
        ]
        named_ends(axes, shares, 0.075, 1.03, size=9.5)
        every = 1 + int(np.log2(most) / 7)  # doublings between two ticks
        for axis, begin, end in ((axes.xaxis, 1, most), (axes.yaxis, low, high)):
            powers = [2.0**k for k in range(-30, 30) if begin <= 2.0**k <= end and k % every == 0]
            ticks(
                axis, powers, lambda times: f"{times:,.0f}" if times >= 1 else f"1/{1 / times:.0f}"
            )
        grid(axes)
        heading(axes, _KINDS.get(kind, kind))
    panels[0].set_ylabel("throughput, times one rank's")
    for i, link in enumerate(links):
        panels[0].text(0.04, 0.95 - 0.085 * i, link, transform=panels[0].transAxes,
                       color=readable(color[link]),
                       weight="bold", va="top")  # fmt: skip
    of = {f"{kind}, {link}, {how}": curve for (kind, how, link), curve in speedup.items()}
    words = lambda _, curve: ", ".join(
        f"{short(curve[1][i])} times on {curve[0][i]}" for i in few(len(curve[0]))
    )
    return (
        figure, _scaling_claim(links, speedup),
        f"{lines_in_words(measured, predicted)}. At the right: efficiency, a share of N times one "
        f"rank's.",
        "Throughput against ranks on logarithmic axes, a panel per kind of scaling.",
        each(of, words),
    )  # fmt: skip


_KINDS = {"strong": "strong: one batch, divided", "weak": "weak: one batch per rank"}


def _scaling_claim(links, speedup):
    """The best and the worst efficiency, each at the curve's largest number of ranks, among the
    measured curves, or among the predicted ones if nothing was measured."""
    how = "measured" if any(how == "measured" for _, how, _ in speedup) else "predicted"
    efficiency = {}
    for (kind, of, link), (ranks, times) in speedup.items():
        if of == how:
            efficiency[kind, link] = ranks[-1], times[-1] / ranks[-1]
    (best, at_best), (worst, at_worst) = (
        pick(efficiency.items(), key=lambda e: e[1][1]) for pick in (max, min)
    )
    if best == worst:
        return (
            f"{best[0].capitalize()} scaling ({best[1]}) keeps {at_best[1]:.0%} on {at_best[0]:,} "
            f"ranks"
        )
    words = lambda who: f"{who[0]} scaling" + f" ({who[1]})" * (len(links) > 1)
    keeps = f"{words(best)} keeps {at_best[1]:.0%} of perfect, {words(worst)} {at_worst[1]:.0%}"
    return f"On {at_best[0]:,} ranks {keeps}"


@drawing
def communication_share(measured, predicted, break_even=None):
    """The share of a step that is exposed communication, against the batch of each rank.

    measured, predicted: {"20 MB/s": (batch per rank in rows, share), ...}, shares from 0 to 1;
    either may be {}. break_even: {"20 MB/s": batch per rank, ...}, above which communication takes
    less time than the backward pass; marked by a vertical line. Raises ValueError for nothing to
    draw, unequal lengths, or a share that is not from 0 to 1.
    """
    names = list(dict.fromkeys([*measured, *predicted]))
    if not names:
        raise ValueError("no measured and no predicted share: there is nothing to draw")
    for name, (batch, share) in [*measured.items(), *predicted.items()]:
        _same_length(name, batch, share)
        if not 0 <= min(share) <= max(share) <= 1:
            raise ValueError(
                f"{name}: shares from {min(share):g} to {max(share):g}; a share is from 0 to 1"
            )
    color = dict(zip(names, RANK_COLORS, strict=False))
    batches = sorted({b for x, _ in [*measured.values(), *predicted.values()] for b in x})
    figure, axes = page(3.6)
    axes.set(xscale="log", xlabel="rows per rank and step", ylabel="exposed (% of the step)",
             xlim=(batches[0] / 1.08, batches[-1] * 1.08), ylim=(0, 103))  # fmt: skip
    named_ends(axes, curves(axes, measured, predicted, color, 100), 0.078)
    marked = {name: b for name, b in (break_even or {}).items() if batches[0] <= b <= batches[-1]}
    for name, b in marked.items():
        axes.axvline(b, color=color[name], lw=1.2, zorder=1)
        above(axes, b, amount(b, 2), xytext=(3, -2), color=color[name], ha="left", va="top",
              weight="bold", size=9)  # fmt: skip
    powers = [10.0**e for e in range(20) if batches[0] <= 10.0**e <= batches[-1]]
    ticks(axes.xaxis, batches if len(batches) <= 8 else powers, lambda b: amount(b, 2))
    grid(axes, "y")
    judged = measured or predicted
    claim = "; ".join(
        f"over {name} from {judged[name][1][0]:.0%} to {judged[name][1][-1]:.0%}"
        for name in dict.fromkeys((names[0], names[-1]))
        if name in judged
    )
    claim = f"More rows per rank, less waiting: {claim} of the step"
    marks = " Vertical line: here communication becomes shorter than backward." if marked else ""
    outside = [
        f"{name} at {amount(b, 2)}" for name, b in (break_even or {}).items() if name not in marked
    ]
    beyond = f" Outside the axis: {' and '.join(outside)}." if outside else ""
    points = lambda curve: ", ".join(
        f"{curve[1][i]:.0%} at {amount(curve[0][i], 2)}" for i in few(len(curve[0]))
    )
    words = in_sentences({"measured": measured, "predicted": predicted}, points)
    words += f" {each(break_even or {}, lambda _, b: f'break-even at {amount(b, 2)}')}{beyond}"
    look = f"{lines_in_words(measured, predicted)}.{marks}{beyond}"
    return (
        figure,
        claim,
        look,
        "Exposed communication in percent of the step, against rows per rank.",
        words,
    )


def _same_length(name, x, y):
    if np.ndim(x) != 1 or np.shape(x) != np.shape(y) or len(x) == 0:
        raise ValueError(
            f"{name}: {np.shape(x)} and {np.shape(y)} must be two lists of one length, not empty"
        )
