"""The work of ring attention: which rank computes which pairs of query and key at which step, and
how evenly the pairs are distributed."""

from itertools import pairwise

import numpy as np
from matplotlib.colors import to_rgb

from lib.plots.draw import bar, heading, middle, page, rank_rows
from lib.plots.labels import each, short
from lib.plots.style import FAINT, OP_COLOR, PAPER, drawing, on_color, rank_color


@drawing
def ring_attention_work(layouts):
    """For each layout, all pairs that the causal mask allows, and a bar per rank with its number of
    pairs.

    layouts: {"contiguous": [positions of rank 0, of rank 1, ...], "zigzag": ...}, one or two
    layouts of the same T tokens over the same cp ranks, 2 to 8, as from
    lib.tensor_parallel.layouts. Raises ValueError for any other number of layouts or ranks, or
    positions that are not 0..T-1 once each.
    """
    sizes = {name: sum(map(len, layout)) for name, layout in layouts.items()}
    for name, layout in layouts.items():
        if sorted(p for positions in layout for p in positions) != list(range(sizes[name])):
            raise ValueError(
                f"{name}: {[list(p) for p in layout]} are not the positions 0..T-1, each on one "
                f"rank"
            )
    shapes = {(sizes[name], len(layout)) for name, layout in layouts.items()}
    if not 1 <= len(layouts) <= 2 or len(shapes) != 1 or not all(2 <= cp <= 8 for _, cp in shapes):
        raise ValueError(
            f"{len(layouts)} layouts with (tokens, ranks) {sorted(shapes)}: one or two, of one "
            f"size, on 2 to 8 ranks"
        )
    ((T, cp),) = shapes
    work = {name: _pairs(layout) for name, layout in layouts.items()}  # (cp, steps) each
    most = max(steps.sum(1).max() for steps in work.values())

    figure, panels = page(3.7, columns=2 * len(layouts), width_ratios=[3, 1.25] * len(layouts))
    for (name, layout), square, bars in zip(
        layouts.items(), panels[::2], panels[1::2], strict=True
    ):
        _square(square, layout, T)
        heading(square, name)
        rank_rows(bars, range(cp))
        for rank, pairs in enumerate(work[name].sum(1)):
            bar(bars, rank, pairs, rank_color(rank), short(pairs), 1.2 * most)
        bars.set(xlim=(0, 1.08 * most), xlabel="pairs")
        bars.set_xticks([])
        bars.spines["bottom"].set_visible(False)
    words = lambda _, of_ranks: "; ".join(
        f"rank {r} has {steps.sum():,} pairs, by step {', '.join(f'{n:,}' for n in steps)}"
        for r, steps in enumerate(of_ranks)
    )
    return (
        figure, _claim(work),
        "Pairs that the mask lets through have the colour of the rank that holds the query, and "
        "the number of the step. Each step takes as long as the rank with the most pairs.",
        f"For each layout of {T} tokens over {cp} ranks, the lower triangle of queries against "
        f"keys, coloured by rank, with the step of each block.", each(work, words),
    )  # fmt: skip


def _pairs(layout):
    """(cp, steps): the number of pairs that rank r computes at step s, when it has the keys of rank
    r - s."""
    cp = len(layout)
    seen = lambda queries, keys: int((np.asarray(keys) <= np.asarray(queries)[:, None]).sum())
    return np.array([[seen(layout[r], layout[r - s]) for s in range(cp)] for r in range(cp)])


def _square(axes, layout, T):
    """A square with the queries downwards and the keys to the right. Where a query may see a key,
    the cell has the colour of the query's rank."""
    image = np.empty((T, T, 3))
    image[:] = to_rgb(PAPER)
    for rank, positions in enumerate(layout):
        for q in positions:
            image[q, : q + 1] = to_rgb(rank_color(rank))
    axes.imshow(image, extent=(0, T, T, 0), interpolation="nearest")
    owner = np.empty(T, dtype=int)
    for rank, positions in enumerate(layout):
        owner[list(positions)] = rank
    cuts = [0, *(i for i in range(1, T) if owner[i] != owner[i - 1]), T]
    for rows in pairwise(cuts):
        for columns in pairwise(cuts):
            q, k = np.mgrid[slice(*rows), slice(*columns)]
            if (k <= q).any():
                step = (owner[rows[0]] - owner[columns[0]]) % len(layout)
                (top, bottom), (left, right) = rows, columns
                low = 0.5 if (k <= q).all() else 0.31  # for half a block: its lower left corner
                x, y = left + low * (right - left), bottom - low * (bottom - top)
                size = 9.5 if low == 0.5 or right - left > T / 6 else 8
                ink = on_color(rank_color(owner[rows[0]]))
                middle(axes, x, y, str(step), ink, size if len(cuts) < 12 else 6.5)
    for cut in cuts[1:-1]:
        axes.plot([0, cut], [cut, cut], color=PAPER, lw=1.6)
        axes.plot([cut, cut], [cut, T], color=PAPER, lw=1.6)
        axes.plot([cut, T], [cut, cut], color=OP_COLOR["idle"], lw=0.7, zorder=0.5)
        axes.plot([cut, cut], [0, cut], color=OP_COLOR["idle"], lw=0.7, zorder=0.5)
    axes.plot([0, T, T, 0, 0], [0, 0, T, T, 0], color=FAINT, lw=1.0, clip_on=False)
    axes.set(xticks=[0, T], yticks=[0, T], xlabel="key", ylabel="query", xlim=(0, T), ylim=(T, 0))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _claim(work):
    """How unequal the ranks' work is, and how long the ring takes if every step waits for the rank
    with the most pairs."""
    uneven = max(work, key=lambda name: work[name].sum(1).max())
    pairs, time = (
        work[uneven].sum(1),
        {name: int(steps.max(0).sum()) for name, steps in work.items()},
    )
    most, least = int(pairs.argmax()), int(pairs.argmin())
    if pairs[most] == pairs[least]:
        return f"{uneven.capitalize()}: every rank computes {pairs[most]:,} pairs"
    claim = (
        f"{uneven.capitalize()}: rank {most} computes {pairs[most] / pairs[least]:.1f} times rank "
        f"{least}'s pairs"
    )
    even = min(time, key=time.get)
    if even == uneven:
        return claim
    return f"{claim}; {even} is done after {time[even] / time[uneven]:.0%} of the time"
