"""Tokens to experts' slots: which pairs (token, expert) get a slot, and which are dropped.

the  ----------------.      expert 0  [the][ ]
cat  ------------------.
sat  ----x              '-- expert 1  [cat][on]     left: n tokens
on   -------------------'                           right: E experts of C slots
"""

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from lib.plots.draw import box, page
from lib.plots.style import ALARM, INK, PAPER, drawing, rank_color, readable

LEFT, RIGHT, WIDTH = 1.0, 6.0, 10.4  # where lines begin and end, and how wide the drawing is
CROSS = 0.16  # of the way, where the line of a dropped pair ends


@drawing
def routing(asked, kept, experts, slots, names=None):
    """A line from each token to its slot in the expert's colour; what is asked for and not kept
    ends in a cross.

    asked: (n, k) experts that each token asks for, first choice first; -1: none. kept: [(token,
    expert, slot), ...]. experts: E, how many there are. slots: C, of each. names: of the n tokens;
    left out: their indices. With lib.moe: routing(choice.experts.tolist(), zip(*(part.tolist() for
    part in routing[:3])), E, C). Raises ValueError for more than 24 tokens, 8 experts or 8 slots, a
    slot that does not exist, or one that is assigned twice.
    """
    asked, kept = (
        [[e for e in of_token if e >= 0] for of_token in asked],
        [tuple(row) for row in kept],
    )
    n, most = len(asked), max((e for of_token in asked for e in of_token), default=-1)
    if not 1 <= n <= 24 or not 1 <= experts <= 8 or not 1 <= slots <= 8 or most >= experts:
        raise ValueError(f"{n} tokens, {experts} experts of {slots} slots, asked for {asked}: 1 to "
                         f"24 tokens, 1 to 8 "
                         "experts of 1 to 8 slots can be read")  # fmt: skip
    holds = {(e, slot): t for t, e, slot in kept}
    is_there = [
        t in range(n) and e in range(experts) and slot in range(slots) for t, e, slot in kept
    ]
    if len(holds) < len(kept) or not all(is_there):
        raise ValueError(f"kept {kept}: give (token, expert, slot) of {n} tokens, {experts} "
                         f"experts and {slots} slots, "
                         "no slot twice")  # fmt: skip
    names = [str(t) for t in range(n)] if names is None else [str(name) for name in names]
    pairs = {(t, e) for t, e, _ in kept}
    dropped = [(t, e) for t, of_token in enumerate(asked) for e in of_token if (t, e) not in pairs]
    left_out = set(range(n)) - {t for t, _ in pairs}
    heights = [(t + 0.5) / n for t in range(n)]  # 0 on top, 1 at the bottom

    figure, axes = page(1.5 + 0.22 * max(n, 1.6 * experts))
    axes.axis("off")
    axes.set(xlim=(0, WIDTH), ylim=(1.0, 0.0))
    for t, name in enumerate(names):
        axes.text(LEFT - 0.12, heights[t], name, ha="right", va="center_baseline",
                  size=min(10, 140 / n),
                  color=ALARM if t in left_out else INK,
                  weight="bold" if t in left_out else "normal")  # fmt: skip
    _slots(axes, experts, slots, {slot: names[t] for slot, t in holds.items()})
    for t, e, _ in kept:
        points = _bend((LEFT, heights[t]), (RIGHT + 0.08, (e + 0.5) / experts))
        axes.add_patch(PathPatch(Path(points, [1, 4, 4, 4]), fc="none", ec=rank_color(e), lw=1.8,
            zorder=2,
                                 ls=_dashes(asked[t], e)))  # fmt: skip
    _crosses(axes, asked, dropped, pairs, heights, experts)
    total, empty = sum(map(len, asked)), experts * slots - len(kept)
    what = "choices" if max(map(len, asked)) > 1 else "tokens"
    claim = (
        f"{len(dropped)} of {total} {what} find no slot, and {empty} of {experts * slots} "
        f"slots are empty"
    )
    dashes = {_dashes(asked[t], e) for t, e in [*pairs, *dropped]} - {"-"}
    key = " Dashed lines are not first choices." * bool(dashes)
    key += " Red tokens get no expert at all." * bool(left_out)
    gets = [
        _listed(names[holds[e, slot]] for slot in range(slots) if (e, slot) in holds)
        for e in range(experts)
    ]
    return (
        figure, claim,
        f"A line leads from a token to its slot, in the expert's colour. A cross means that no "
        f"slot was left.{key}",
        f"A picture of {n} tokens on the left and {experts} experts with {slots} slots each on the "
        f"right.",
        " ".join(f"Expert {e} gets {words}." for e, words in enumerate(gets))
        + f" Without a slot: {_listed(f'{names[t]} at expert {e}' for t, e in dropped)}.",
    )  # fmt: skip


def _slots(axes, experts, slots, holds):
    """The experts' slots on the right, and in them the names of the tokens:
    {(expert, slot): name}."""
    row, side = 0.7 / experts, min(0.95, 3.0 / slots)
    for e in range(experts):
        middle, color = (e + 0.5) / experts, rank_color(e)
        axes.text(RIGHT + 0.25 + slots * side, middle, f"expert {e}", va="center_baseline",
                  weight="bold",
                  color=readable(color))  # fmt: skip
        for slot in range(slots):
            left, fc = RIGHT + 0.1 + slot * side, color if (e, slot) in holds else PAPER
            name = holds.get((e, slot), "")
            box(
                axes,
                left,
                middle - row / 2,
                0.9 * side,
                row,
                fc,
                name,
                size=8.5,
                ec=color,
                lw=1.2,
                zorder=4,
            )


def _crosses(axes, asked, dropped, pairs, heights, experts):
    """The lines of pairs without a slot: short, and with a cross at their end."""
    for i, (t, e) in enumerate(dropped):
        earlier = sum(token == t for token, _ in dropped[:i])
        x = LEFT + CROSS * (1 + 0.45 * earlier) * (RIGHT - LEFT)
        goes_up = any((other + 0.5) / experts < heights[t] for token, other in pairs if token == t)
        # away from the line that goes on
        y = heights[t] + (0.3 if goes_up else -0.3) / len(heights)
        axes.plot(
            [LEFT, x],
            [heights[t], y],
            color=rank_color(e),
            lw=1.8,
            ls=_dashes(asked[t], e),
            zorder=2,
        )
        axes.plot([x], [y], marker="x", ms=8, mew=2.6, color=ALARM, zorder=6)


def _bend(start, end):
    """Four points of a curve that leaves and arrives level."""
    (x0, y0), (x1, y1) = start, end
    return [(x0, y0), ((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1), (x1, y1)]


def _dashes(asked, e):
    """Solid for a first choice; dashed for a later one, and for an expert to which
    a token was rerouted."""
    return "-" if asked and asked[0] == e else (0, (4, 1.5))


def _listed(words):
    return ", ".join(words) or "nobody"
