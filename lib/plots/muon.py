r"""Muon: what Newton-Schulz does to singular values, and how much each rank has to compute for the
matrices that it owns.

1.2 |---- after 5 ----\.....       rank 0   [ up ][down][q][k]   |
0.7 |.................\.....       rank 1   [ up ][down][v]      |       dashed: an equal share
    |\__ the gradient  \           rank 2   [ up ][down][q][v]   |
"""

import numpy as np

from lib.plots.draw import DASHES, beside, box, grid, heading, named_ends, page, rank_rows
from lib.plots.labels import amount, each
from lib.plots.style import FAINT, INK, OP_COLOR, RANK_COLORS, drawing, rank_color

BAND = (0.7, 1.2)  # the range into which the quintic iteration brings singular values


@drawing
def singular_values(after):
    """The singular values of a matrix, largest first, before Newton-Schulz and after some of its
    iterations.

    after: {"the gradient": (n,) values, "1 iteration": (n,), ...}, above 0; 2 to 6 of them. The
    first are the values of the matrix divided by its norm. Raises ValueError for any other number
    of them, unequal lengths, or values that are not above 0.
    """
    lines = {name: np.sort(np.asarray(values, dtype=float))[::-1] for name, values in after.items()}
    sizes = {len(values) for values in lines.values()}
    if (
        not 2 <= len(lines) <= 6
        or len(sizes) != 1
        or min(sizes) < 2
        or not all((v > 0).all() for v in lines.values())
    ):
        raise ValueError(
            f"{', '.join(f'{name}: {np.shape(v)}' for name, v in after.items())}: give 2 to 6 "
            f"lines of as many singular values, above 0"
        )
    figure, axes = page(3.7)
    axes.axhspan(*BAND, color=OP_COLOR["idle"], zorder=0)
    for color, values in zip(RANK_COLORS, lines.values(), strict=False):
        axes.plot(range(1, len(values) + 1), values, color=color, lw=1.8, zorder=3)
    axes.set(
        ylim=(0, 1.3),
        xlim=(1, sizes.pop()),
        xlabel="singular value, from the largest",
        ylabel="its size",
    )
    grid(axes)
    ends = [
        (name, v[-1], color) for (name, v), color in zip(lines.items(), RANK_COLORS, strict=False)
    ]
    named_ends(axes, ends, 0.075)
    (first, before), *_, (last, behind) = lines.items()
    inside = np.mean((behind > BAND[0]) & (behind < BAND[1]))
    median = lambda values: amount(np.median(values), 2)
    claim = f"After {last} {inside:.0%} of the singular values are between {BAND[0]} and {BAND[1]}"
    told = lambda _, values: (
        f"from {amount(values[0])} to {amount(values[-1])}, half of them above "
        f"{amount(np.median(values))}"
    )
    return (
        figure, claim,
        f"The grey band is {BAND[0]} to {BAND[1]}. Half of the values are below {median(before)} "
        f"in {first}, and below {median(behind)} after {last}.",
        "Lines of a matrix's singular values, largest first.", each(lines, told),
    )  # fmt: skip


@drawing
def owner_loads(costs, owners, N, unit="units", names=None):
    """A panel per placement, a row per rank: the matrices that the rank owns, end to end. The
    dashed line is the mean, which every one of the N ranks would have if the load were even.

    costs: one per matrix. owners: {"in turn": [rank of matrix 0, ...], "by cost": [...]}, 1 or 2
    placements; the title compares the best with the first. names: of the matrices, for the boxes.
    unit: of a cost. Raises ValueError for any other number of placements, more than 8 ranks, or a
    placement that does not give each matrix a rank below N.
    """
    if not 1 <= len(owners) <= 2 or not 1 <= N <= 8:
        raise ValueError(f"{len(owners)} placements on {N} ranks: 1 or 2 on 1 to 8 can be drawn")
    for name, owner in owners.items():
        if len(owner) != len(costs) or not set(owner) <= set(range(N)):
            raise ValueError(
                f"{name}: {list(owner)} for {len(costs)} matrices: a rank, 0 to {N - 1}, for each"
            )
    of = {
        name: [[i for i, o in enumerate(owner) if o == r] for r in range(N)]
        for name, owner in owners.items()
    }
    loads = {name: [sum(costs[i] for i in own) for own in some] for name, some in of.items()}
    mean, end = sum(costs) / N, 1.16 * max(map(max, loads.values()))
    figure, panels = page(1.55 + 0.36 * N, columns=len(owners), sharex=True)
    for axes, name in zip(panels, owners, strict=True):
        for rank, own in enumerate(of[name]):
            start, inches = 0.0, 5.6 / len(owners) / end
            for i in own:
                words = str(names[i]) if names else ""
                box(axes, start, rank - 0.36, costs[i], 0.72, rank_color(rank), words,
                    costs[i] * inches, 8, room=0.02)  # fmt: skip
                start += costs[i]
            # if the bar ends just before the dashed line, the number is written after that line
            near = start <= mean < start + 0.16 * end
            beside(axes, mean if near else start, rank, amount(start), INK, 5)
        axes.axvline(mean, color=FAINT, lw=1.6, ls=DASHES, zorder=4)
        axes.set(xlim=(0, end), xlabel=unit)
        rank_rows(axes, range(N))
        heading(
            axes,
            f"{name}: the most {amount(max(loads[name]))}, {max(loads[name]) / mean - 1:.0%} over "
            f"the mean",
        )
    (first, before), (best, after) = (
        next(iter(loads.items())),
        min(loads.items(), key=lambda item: max(item[1])),
    )
    claim = f"{best}: the busiest owner has {max(after) / mean - 1:.0%} more than the mean"
    claim += f", {first} {max(before) / mean - 1:.0%}" if best != first else ""
    look = (
        f"A box is a matrix, as long as its Newton-Schulz takes. The dashed line is the mean over "
        f"the {N} rank{'s' * (N > 1)}."
    )
    words = lambda name, some: ", ".join(
        f"rank {r} {len(of[name][r])} of {len(costs)}, {amount(x)}" for r, x in enumerate(some)
    )
    return (
        figure,
        claim,
        look,
        f"{len(costs)} matrices owned by {N} ranks, a panel per placement.",
        each(loads, words),
    )
