"""How many elements attention sends if a sequence is split over cp ranks: a panel per number of
key/value heads, and in it a curve per method.

32 heads on 32           32 on 8             32 on 1           solid: counted by the ledger
    / ring                 _/ ring           ---- Ulysses      dashed: by the formula
--------- Ulysses       ----- Ulysses        ____ ring
"""

import numpy as np

from lib.plots.draw import curves, grid, heading, named_ends, numbers, page, ticks
from lib.plots.labels import in_sentences, lines_in_words, short
from lib.plots.style import RANK_COLORS, drawing

COLOR = {"ring": RANK_COLORS[2], "gathered": RANK_COLORS[0], "Ulysses": RANK_COLORS[3]}


@drawing
def attention_volume(measured, predicted):
    """Elements that one rank sends, relative to the elements of its own queries, against cp.

    measured, predicted: {heads in words: {"ring": ([2, 4, 8], sent), "gathered": ..., "Ulysses":
    ...}}, where `sent` is that ratio. `predicted` decides which panels there are, 1 to 3;
    `measured` may lack some of them. Raises ValueError for any other number of panels, a panel that
    is only measured, an unknown method, unequal lengths, cp below 2, or ratios that are not above
    0.
    """
    for heads, ways in [*measured.items(), *predicted.items()]:
        for way, (cp, sent) in ways.items():
            if way not in COLOR or np.shape(cp) != np.shape(sent) or min(cp) < 2 or min(sent) <= 0:
                raise ValueError(
                    f"{heads}: {way} sends {list(sent)} at cp {list(cp)}: above 0 from cp 2 on, "
                    f"one each"
                )
    if not 1 <= len(predicted) <= 3 or not set(measured) <= set(predicted):
        raise ValueError(
            f"measured {list(measured)}, predicted {list(predicted)}: 1 to 3 panels, all predicted"
        )
    degrees = sorted({n for ways in predicted.values() for cp, _ in ways.values() for n in cp})
    figure, panels = page(3.4, columns=len(predicted), sharey=True)
    for axes, (heads, ways) in zip(panels, predicted.items(), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="cp")
        heading(axes, heads)
        ends = curves(axes, measured.get(heads, {}), ways, COLOR)
        ticks(axes.xaxis, degrees)
        grid(axes)
    numbers(panels[0].yaxis, short)
    panels[0].set_ylabel("elements sent / elements of q")
    named_ends(panels[-1], [(way, ways[way][1][-1], COLOR[way]) for way, *_ in ends], 0.075)
    least = {
        heads: min(ways, key=lambda way: ways[way][1][-1]) for heads, ways in predicted.items()
    }
    claim = f"At cp = {degrees[-1]} least is sent by: " + "; ".join(
        f"{way}, {heads}" for heads, way in least.items()
    )
    both = [{f"{heads}, {way}": x for heads, ways in some.items() for way, x in ways.items()}
            for some in (measured, predicted)]  # fmt: skip
    what = "Numbers that a rank sends over those of its queries, against cp, on logarithmic axes."
    at = lambda curve: ", ".join(f"{short(y)} at {n}" for n, y in zip(*curve, strict=True))
    words = in_sentences(dict(zip(("measured", "predicted"), both, strict=True)), at)
    return (
        figure,
        claim,
        f"{lines_in_words(*both)}. All are for one rank, on logarithmic axes.",
        what,
        words,
    )
