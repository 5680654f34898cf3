"""What a job computed at each step, compared with a single process: a box per rank, red where the
rank's value differs.

                 step 0      step 1      step 2
input: tokens    . . . .     . . . .     . . . .        .  the same as in a single process
loss: share          . .         . .         . .        #  a different value
gradient: sharded    . . . .     . . . .     # # # #        (nothing)  the rank has no such value
norm: reported   . . . .     . . . .     # # # #
"""

from matplotlib.patches import Rectangle

from lib.plots.draw import page
from lib.plots.style import ALARM, INK, OP_COLOR, drawing, rank_color, readable

BOX = 0.8  # side of a box; ranks are 1 apart
GAP = 1.0  # between two steps


@drawing
def evidence(off, framed=False):
    """A row per quantity, and in it a box for each step and rank.

    off: {(kind, what): [[does rank 0's value differ, ...] of step 0, ...]}, with None where a rank
    has no such value. The quantities are in the order in which a step computes them. framed: put a
    frame around the first kind of quantity that differs, at the first step at which any does.
    Raises ValueError for no step, more than 12 steps, or quantities with different numbers of steps
    or ranks.
    """
    shapes = {tuple(len(step) for step in steps) for steps in off.values()}
    if len(shapes) != 1 or not 1 <= len(next(iter(shapes))) <= 12 or not all(next(iter(shapes))):
        raise ValueError(f"{len(off)} quantities of steps with {sorted(shapes)} ranks: give 1 to "
                         f"12 steps, as many "
                         "ranks in each")  # fmt: skip
    ((N, *others),) = shapes
    steps, names = 1 + len(others), [": ".join(name) for name in off]
    figure, axes = page(1.5 + 0.19 * len(off))
    first = _first(off, steps) if framed else None
    for row, quantity in enumerate(off.values()):
        for step, ranks in enumerate(quantity):
            for rank, is_off in enumerate(ranks):
                if is_off is not None:
                    color, x = (ALARM if is_off else OP_COLOR["idle"]), step * (N + GAP) + rank
                    axes.add_patch(Rectangle((x, row), BOX, BOX, fc=color, ec="none"))
    if first:
        step, kind = first
        rows = [row for row, (k, _) in enumerate(off) if k == kind]
        corner = (step * (N + GAP) - 0.25, rows[0] - 0.12)
        axes.add_patch(
            Rectangle(corner, N + 0.3, len(rows) + 0.04, fill=False, ec=INK, lw=1.8, zorder=5)
        )
    for step in range(steps):
        for rank in range(N):
            axes.text(step * (N + GAP) + rank + BOX / 2, -0.25, str(rank), ha="center", va="bottom",
                      size=8,
                      color=readable(rank_color(rank)), weight="bold")  # fmt: skip
        axes.text(
            step * (N + GAP) + N / 2 - 0.1, -1.15, f"step {step}", ha="center", va="bottom", size=10
        )
    axes.set(xlim=(-0.4, steps * (N + GAP) - GAP + 0.3), ylim=(len(off) + 0.2, -2.1))
    axes.set_xticks([])
    axes.set_yticks([row + BOX / 2 for row in range(len(off))], names)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    boxes = [
        is_off
        for of_steps in off.values()
        for ranks in of_steps
        for is_off in ranks
        if is_off is not None
    ]
    claim = f"{sum(boxes)} of {len(boxes)} values differ from those of a single process"
    if first:
        claim = f"The first value that differs is the {first[1]} of step {first[0]}"
    look = (
        "A box is a value on a rank, red where a single process has a different one. There is no "
        "box where a rank has no such value."
    )
    look += " The frame marks the earliest evidence." * bool(first)
    return (
        figure,
        claim,
        look,
        f"Values on {N} ranks in {steps} steps, compared with a single process.",
        _in_words(off),
    )


def _first(off, steps):
    """(step, kind) of the first quantity that differs, or None."""
    found = (
        (step, kind)
        for step in range(steps)
        for (kind, _), of_steps in off.items()
        if any(of_steps[step])
    )
    return next(found, None)


def _in_words(off):
    which = lambda ranks: ", ".join(str(rank) for rank, is_off in enumerate(ranks) if is_off)
    told = []
    for name, of_steps in off.items():
        if wrong := [
            f"step {step} on ranks {which(ranks)}"
            for step, ranks in enumerate(of_steps)
            if any(ranks)
        ]:
            told.append(f"{': '.join(name)} is off in {'; '.join(wrong)}.")
    return " ".join(told)
