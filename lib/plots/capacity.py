"""The capacity factor of experts: if it is too small, tokens are dropped, and if it is too large,
experts compute on empty slots."""

import numpy as np

from lib.plots.draw import curves, grid, named_ends, numbers, page
from lib.plots.labels import few, in_sentences, listed
from lib.plots.style import FAINT, RANK_COLORS, drawing


@drawing
def capacity_trade(predicted, at=None):
    """Shares against the capacity factor, such as the share of tokens that are dropped and that of
    slots that stay empty.

    predicted: {"tokens dropped": (factors, shares), "slots empty": (...)}, shares from 0 to 1; 1 to
    8 curves. at: a factor to mark; the title then gives the shares at it. Raises ValueError for any
    other number of curves, empty lists, unequal lengths, or a share that is not from 0 to 1.
    """
    if not 1 <= len(predicted) <= 8:
        raise ValueError(f"predicted {listed(predicted)}: predict 1 to 8 curves")
    for name, (factors, shares) in predicted.items():
        if (
            len(factors) != len(shares)
            or len(factors) == 0
            or not 0 <= min(shares) <= max(shares) <= 1
        ):
            raise ValueError(f"{name}: {len(factors)} factors and {len(shares)} shares: give as "
                             f"many of both, shares "
                             "from 0 to 1")  # fmt: skip
    color = dict(zip(predicted, RANK_COLORS, strict=False))
    figure, axes = page(3.6)
    ends = curves(axes, {}, predicted, color, 100)
    every = list(predicted.values())
    highest = 100 * max(max(shares) for _, shares in every)
    axes.set(xlim=(min(min(x) for x, _ in every), max(max(x) for x, _ in every)),
             xlabel="capacity factor",
             ylim=(0, min(100, 1.08 * highest) or 1), ylabel="share (%)")  # fmt: skip
    named_ends(axes, ends, 0.09)
    here = {}
    if at is not None:
        here = {name: float(np.interp(at, *curve)) for name, curve in predicted.items()}
        axes.axvline(at, color=FAINT, lw=1.2, zorder=1)
        for name, share in here.items():
            axes.plot(
                [at], [100 * share], marker="o", ms=7, color=color[name], zorder=5, clip_on=False
            )
    numbers(axes.xaxis)
    grid(axes, "y")
    if here:
        claim = (
            f"Capacity factor {at:g}: "
            f"{', '.join(f'{share:.1%} of {name}' for name, share in here.items())}"
        )
    else:
        name, (factors, shares) = next(iter(predicted.items()))
        claim = f"{name}: {shares[0]:.1%} at {factors[0]:g}, {shares[-1]:.1%} at {factors[-1]:g}"
    at_factors = lambda curve: ", ".join(
        f"{curve[1][i]:.1%} at {curve[0][i]:.3g}" for i in few(len(curve[0]))
    )
    words = in_sentences({"predicted": predicted}, at_factors)
    return (
        figure,
        claim,
        "The curves are predictions.",
        "Shares against the capacity factor.",
        words,
    )
