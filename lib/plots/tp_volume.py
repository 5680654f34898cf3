"""The price of tensor parallelism: the time of a layer against tp, inside a node and across nodes."""

import numpy as np
from matplotlib.figure import Figure

from lib.plots.labels import short, spread
from lib.plots.style import FAINT, INK, OP_COLOR, PAPER, RANK_COLORS, finish, styled

DASHED = (0, (5, 2.5))


@styled
def tp_volume(measured, predicted, title=None, note="", at=None):
    """A curve per link, on logarithmic axes; a diamond where a layer is fastest.

    measured, predicted: {"inside a node": ([1, 2, 4, 8], seconds), "across nodes": ...}; either may be {}. The same
    name has the same colour in both. A curve that begins with tp=1 also shows what halving the work at each doubling
    would give. note: a sentence to begin the caption with. at: a tp, to be marked (a slider's).
    Raises ValueError for nothing to draw, unequal lengths, or values that a logarithm does not have.
    """
    names = list(dict.fromkeys([*measured, *predicted]))
    if not 1 <= len(names) <= len(RANK_COLORS):
        raise ValueError(f"{len(names)} links: 1 to {len(RANK_COLORS)} can be told apart")
    for name, (tp, seconds) in [*measured.items(), *predicted.items()]:
        if np.ndim(tp) != 1 or np.shape(tp) != np.shape(seconds) or len(tp) == 0:
            raise ValueError(f"{name}: {np.shape(tp)} values of tp and {np.shape(seconds)} times must be one length")
        if min(tp) < 1 or min(seconds) <= 0:
            raise ValueError(f"{name}: tp {min(tp)} or time {min(seconds):g}; tp begins with 1, and time is above 0")
    color, judged = dict(zip(names, RANK_COLORS, strict=False)), measured or predicted
    curves = [*measured.values(), *predicted.values()]
    degrees = sorted({int(n) for tp, _ in curves for n in tp})

    figure = Figure(figsize=(8, 3.7))
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel="tp", ylabel="time of a layer")
    starts = [seconds[0] for tp, seconds in judged.values() if tp[0] == 1]
    if starts:
        axes.plot(degrees, [max(starts) / n for n in degrees], color=FAINT, lw=1.2, zorder=1)
        axes.annotate("nothing sent: 1/tp", (degrees[-1], max(starts) / degrees[-1]), xytext=(-4, -5), size=9,
                      textcoords="offset points", color=FAINT, ha="right", va="top")  # fmt: skip
    for some, look in ((predicted, {"ls": DASHED, "lw": 1.6}), (measured, {"marker": "o", "ms": 5, "lw": 2})):
        for name, (tp, seconds) in some.items():
            axes.plot(tp, seconds, color=color[name], zorder=3, **look)
    best = {name: int(np.argmin(seconds)) for name, (_, seconds) in judged.items()}
    for name, i in best.items():
        tp, seconds = judged[name]
        axes.plot([tp[i]], [seconds[i]], marker="D", ms=8, mfc=PAPER, mec=color[name], mew=2, zorder=6)
    low, high = axes.get_ylim()
    low, high = low / 1.25, high * 1.1
    ends = {name: (measured.get(name) or predicted[name])[1][-1] for name in names}
    places = spread([np.log10(y) for y in ends.values()], 0.075 * np.log10(high / low))
    for name, y in zip(names, places, strict=True):
        axes.annotate(name, (1.015, 10**y), xycoords=("axes fraction", "data"), color=color[name], va="center",
                      weight="bold")  # fmt: skip
    if at is not None:
        axes.axvline(at, color=FAINT, lw=1.2, zorder=1)
    axes.set(ylim=(low, high), xlim=(degrees[0] / 1.06, degrees[-1] * 1.06))
    axes.xaxis.set_ticks(degrees, [str(n) for n in degrees])
    axes.xaxis.set_ticks([], minor=True)
    steps = [f * 10.0**e for e in range(-9, 4) for f in (1, 2, 5)]
    ticks = [t for t in steps if low <= t <= high]
    axes.yaxis.set_ticks(ticks, [_time(t) for t in ticks])
    axes.yaxis.set_ticks([], minor=True)
    axes.grid(color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelcolor=INK)
    claim = "; ".join(_of_one(name, judged[name], i) for name, i in best.items())
    claim = claim[0].upper() + claim[1:]
    lines = "; ".join(
        line for line in ("solid: measured" * bool(measured), "dashed: predicted" * bool(predicted)) if line
    )
    return finish(
        figure,
        title or claim,
        f"{note} {lines[0].upper()}{lines[1:]}. Diamond: the fastest.".strip(),
        f"Time of a layer against tp on logarithmic axes. {claim}. {note} "
        + " ".join(
            f"{name}, {how}: " + ", ".join(f"{_time(s)} at {n}" for n, s in zip(tp, seconds, strict=True)) + "."
            for how, some in (("measured", measured), ("predicted", predicted))
            for name, (tp, seconds) in some.items()
        ),
    )


def _of_one(name, curve, best):
    """What is the fastest on this link, and what the most ranks cost where they are not."""
    tp, seconds = curve
    words = f"{name} tp={tp[best]} is the fastest, {_time(seconds[best])}"
    return words if best == len(tp) - 1 else f"{words} (tp={tp[-1]}: {_time(seconds[-1])})"


def _time(seconds):
    """0.00123 -> "1.2 ms": two digits."""
    seconds = float(f"{seconds:.2g}")
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{short(float(f'{seconds / factor:.3g}'))} {unit}"
    return f"{short(float(f'{seconds / 1e-6:.3g}'))} µs"
