"""Capacity factor: too small drops tokens, too large computes on empty slots."""

import numpy as np

from lib.plots.draw import curves, grid, named_ends, numbers, page
from lib.plots.labels import capital, few, in_sentences
from lib.plots.style import FAINT, RANK_COLORS, finish, styled


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
    figure, axes = page(3.6)
    curves(axes, measured, predicted, color, 100)
    every = [*predicted.values(), *measured.values()]
    highest = 100 * max(max(shares) for _, shares in every)
    axes.set(xlim=(min(min(x) for x, _ in every), max(max(x) for x, _ in every)), xlabel="capacity factor",
             ylim=(0, min(100, 1.08 * highest) or 1), ylabel="share (%)")  # fmt: skip
    named_ends(axes, [(name, 100 * shares[-1], color[name]) for name, (_, shares) in predicted.items()], 0.09)
    here = {}
    if at is not None:
        here = {name: float(np.interp(at, *curve)) for name, curve in predicted.items()}
        axes.axvline(at, color=FAINT, lw=1.2, zorder=1)
        for name, share in here.items():
            axes.plot([at], [100 * share], marker="o", ms=7, color=color[name], zorder=5, clip_on=False)
    numbers(axes.xaxis)
    grid(axes, "y")
    if here:
        claim = f"Capacity factor {at:g}: {', '.join(f'{share:.1%} of {name}' for name, share in here.items())}"
    else:
        name, (factors, shares) = next(iter(predicted.items()))
        claim = f"{capital(name)}: {shares[0]:.1%} at {factors[0]:g}, {shares[-1]:.1%} at {factors[-1]:g}"
    return finish(
        figure,
        title or claim,
        f"{note} {'Dashed: predicted; solid: measured.' if measured else 'Dashed: predicted.'}",
        f"Shares against the capacity factor. {claim}. {note} "
        + in_sentences(
            {"predicted": predicted, "measured": measured},
            lambda curve: ", ".join(f"{curve[1][i]:.1%} at {curve[0][i]:.3g}" for i in few(len(curve[0]))),
        ),
    )
