"""Capacity factor: too small drops tokens, too large computes on empty slots."""

import numpy as np
from matplotlib.figure import Figure

from lib.plots.labels import short, spread
from lib.plots.style import FAINT, OP_COLOR, RANK_COLORS, finish, styled

DASHED = (0, (5, 2.5))


@styled
def capacity_trade(predicted, measured=None, at=None, title=None, note=""):
    """Shares against the capacity factor, such as of tokens that are dropped and of slots that stay empty.

    predicted: {"tokens dropped": (factors, shares), "slots empty": (...)}, shares from 0 to 1, dashed; 1 to 8 curves.
    measured: the same, points, for some of them. at: a factor to be marked, at which the title says the shares.
    note: a sentence to begin the caption with.
    Raises ValueError for another number of curves, a share that is none, or other curves measured.
    """
    measured = measured or {}
    if not 1 <= len(predicted) <= 8 or not set(measured) <= set(predicted):
        raise ValueError(f"predicted {', '.join(predicted) or 'nothing'}, measured {', '.join(measured) or 'nothing'}: "
                         "predict 1 to 8 curves, measure some of them")  # fmt: skip
    for name, (factors, shares) in [*predicted.items(), *measured.items()]:
        if len(factors) != len(shares) or len(factors) == 0 or not 0 <= min(shares) <= max(shares) <= 1:
            raise ValueError(f"{name}: {len(factors)} factors and {len(shares)} shares: give as many of both, shares "
                             "from 0 to 1")  # fmt: skip
    color = dict(zip(predicted, RANK_COLORS, strict=False))
    figure = Figure(figsize=(8, 3.6))
    axes = figure.add_subplot()
    for name, (factors, shares) in predicted.items():
        axes.plot(factors, [100 * s for s in shares], color=color[name], ls=DASHED, lw=1.8, zorder=3)
    for name, (factors, shares) in measured.items():
        axes.plot(factors, [100 * s for s in shares], color=color[name], marker="o", ms=5, lw=2, zorder=4)
    every = [f for factors, _ in [*predicted.values(), *measured.values()] for f in factors]
    highest = 100 * max(s for _, shares in [*predicted.values(), *measured.values()] for s in shares)
    axes.set(xlim=(min(every), max(every)), ylim=(0, min(100, 1.08 * highest) or 1), xlabel="capacity factor",
             ylabel="share (%)")  # fmt: skip
    top = axes.get_ylim()[1]
    ends = spread([100 * shares[-1] for _, shares in predicted.values()], 0.09 * top)
    for name, y in zip(predicted, ends, strict=True):
        axes.annotate(
            name, (1.015, y), xycoords=("axes fraction", "data"), color=color[name], va="center", weight="bold"
        )
    here = {}
    if at is not None:
        here = {name: float(np.interp(at, *curve)) for name, curve in predicted.items()}
        axes.axvline(at, color=FAINT, lw=1.2, zorder=1)
        for name, share in here.items():
            axes.plot([at], [100 * share], marker="o", ms=7, color=color[name], zorder=5, clip_on=False)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(axis="y", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    if here:
        claim = f"Capacity factor {at:g}: {', '.join(f'{share:.1%} of {name}' for name, share in here.items())}"
    else:
        name, (factors, shares) = next(iter(predicted.items()))
        claim = f"{name[0].upper()}{name[1:]}: {shares[0]:.1%} at {factors[0]:g}, {shares[-1]:.1%} at {factors[-1]:g}"
    lines = "Dashed: predicted; solid: measured." if measured else "Dashed: predicted."
    few = lambda x: sorted({round(i * (len(x) - 1) / 7) for i in range(8)})
    return finish(
        figure,
        title or claim,
        f"{note} {lines}".strip(),
        f"Shares against the capacity factor. {claim}. {note} "
        + " ".join(
            f"{name}, {how}: " + ", ".join(f"{shares[i]:.1%} at {factors[i]:.3g}" for i in few(factors)) + "."
            for how, curves in (("predicted", predicted), ("measured", measured))
            for name, (factors, shares) in curves.items()
        ),
    )
