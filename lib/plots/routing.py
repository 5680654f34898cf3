"""From tokens to slots of experts: which pairs (token, expert) get a slot, and which are dropped.

the  ----------------.      expert 0  [the][ ]
cat  ------------------.
sat  ----x              '-- expert 1  [cat][on]     left: n tokens
on   -------------------'                           right: E experts of C slots
"""

from typing import NamedTuple

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from lib.plots.draw import box, page
from lib.plots.style import ALARM, INK, PAPER, drawing, rank_color, readable

LEFT, RIGHT, WIDTH = 1.0, 6.0, 10.4  # x at which lines begin and end, width of the drawing
CROSS = 0.16  # share of the way after which the line of a dropped pair ends


@drawing
def routing(asked, kept, experts, slots, names=None):
    """A line from each token to each of its slots, in the expert's colour. If a token asks for an
    expert and gets none of its slots, that line ends in a cross.

    asked: (n, k) experts that each token asks for, first choice first; -1: none. kept: [(token,
    expert, slot), ...]. experts: E, how many there are. slots: C, of each expert. names: of the n
    tokens; None: their indices.
    With lib.moe:
        routing(choice.experts.tolist(), zip(*(part.tolist() for part in kept[:3])), E, C)
    Raises ValueError unless there are 1 to 24 tokens, 1 to 8 experts and 1 to 8 slots of each, and
    for an expert or a slot that does not exist, or a slot that is assigned twice.
    """
    data = _checked(asked, kept, experts, slots, names)
    return _drawn(data), *_words(data)


# --- the data -------------------------------------------------------------------------------------


class Routed(NamedTuple):
    """Everything that is drawn: n tokens, E experts of C slots, and pairs (token, expert)."""

    names: list  # of the tokens
    asked: list  # for each token its experts, first choice first
    experts: int
    slots: int
    holds: dict  # {(expert, slot): token}
    kept: list  # pairs with a slot
    dropped: list  # pairs without one
    left_out: set  # tokens without any slot

    def dashes(self, token, expert):
        """The line style: solid for a first choice, dashed for a later choice and for an expert to
        which the token was rerouted."""
        return "-" if self.asked[token][:1] == [expert] else (0, (4, 1.5))

    def height(self, token):
        """The token's height: 0 on top, 1 at the bottom."""
        return (token + 0.5) / len(self.asked)


def _checked(asked, kept, experts, slots, names):
    """The Routed of these arguments. Raises ValueError as `routing` says."""
    asked = [[e for e in of_token if e >= 0] for of_token in asked]
    kept = [tuple(row) for row in kept]
    n, most = len(asked), max((e for of_token in asked for e in of_token), default=-1)
    if not 1 <= n <= 24 or not 1 <= experts <= 8 or not 1 <= slots <= 8 or most >= experts:
        raise ValueError(f"{n} tokens, {experts} experts of {slots} slots, asked for {asked}: 1 to "
                         f"24 tokens, 1 to 8 experts of 1 to 8 slots can be read")  # fmt: skip
    holds = {(e, slot): t for t, e, slot in kept}
    is_there = all(
        t in range(n) and e in range(experts) and slot in range(slots) for t, e, slot in kept
    )
    if len(holds) < len(kept) or not is_there:
        raise ValueError(f"kept {kept}: give (token, expert, slot) of {n} tokens, {experts} "
                         f"experts and {slots} slots, no slot twice")  # fmt: skip
    names = [str(name) for name in (range(n) if names is None else names)]
    pairs = [(t, e) for t, e, _ in kept]
    dropped = [(t, e) for t, of_token in enumerate(asked) for e in of_token if (t, e) not in pairs]
    left_out = set(range(n)) - {t for t, _ in pairs}
    return Routed(names, asked, experts, slots, holds, pairs, dropped, left_out)


# --- the drawing ----------------------------------------------------------------------------------


def _drawn(data):
    """Draw the tokens, the slots, and the lines between them."""
    n = len(data.names)
    figure, axes = page(1.5 + 0.22 * max(n, 1.6 * data.experts))
    axes.axis("off")
    axes.set(xlim=(0, WIDTH), ylim=(1.0, 0.0))
    for t, name in enumerate(data.names):
        color, weight = (ALARM, "bold") if t in data.left_out else (INK, "normal")
        axes.text(LEFT - 0.12, data.height(t), name, ha="right", va="center_baseline",
                  size=min(10, 140 / n), color=color, weight=weight)  # fmt: skip
    _slots(axes, data)
    for t, e in data.kept:
        bend = _bend((LEFT, data.height(t)), (RIGHT + 0.08, (e + 0.5) / data.experts))
        axes.add_patch(PathPatch(Path(bend, [1, 4, 4, 4]), fc="none", ec=rank_color(e), lw=1.8,
                                 zorder=2, ls=data.dashes(t, e)))  # fmt: skip
    for i, (t, e) in enumerate(data.dropped):
        _cross(axes, data, t, e, earlier=sum(token == t for token, _ in data.dropped[:i]))
    return figure


def _slots(axes, data):
    """The experts' slots on the right, with the names of their tokens."""
    row, side = 0.7 / data.experts, min(0.95, 3.0 / data.slots)
    for e in range(data.experts):
        middle, color = (e + 0.5) / data.experts, rank_color(e)
        axes.text(RIGHT + 0.25 + data.slots * side, middle, f"expert {e}", va="center_baseline",
                  weight="bold", color=readable(color))  # fmt: skip
        for slot in range(data.slots):
            token = data.holds.get((e, slot))
            fc, name = (PAPER, "") if token is None else (color, data.names[token])
            left, low = RIGHT + 0.1 + slot * side, middle - row / 2
            box(axes, left, low, 0.9 * side, row, fc, name, size=8.5, ec=color, lw=1.2, zorder=4)


def _cross(axes, data, t, e, earlier):
    """The line of a pair without a slot: a short one that ends in a cross. earlier: how many such
    lines the token has already."""
    x = LEFT + CROSS * (1 + 0.45 * earlier) * (RIGHT - LEFT)
    y = data.height(t)
    goes_up = any((other + 0.5) / data.experts < y for token, other in data.kept if token == t)
    # away from the line to the slot that the token has
    ends = y + (0.3 if goes_up else -0.3) / len(data.names)
    axes.plot([LEFT, x], [y, ends], color=rank_color(e), lw=1.8, ls=data.dashes(t, e), zorder=2)
    axes.plot([x], [ends], marker="x", ms=8, mew=2.6, color=ALARM, zorder=6)


def _bend(start, end):
    """The four control points of a Bézier curve that is level at both ends."""
    (x0, y0), (x1, y1) = start, end
    return [(x0, y0), ((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1), (x1, y1)]


# --- the words ------------------------------------------------------------------------------------


def _words(data):
    """The claim, what to look at, what the figure is, and its numbers in words."""
    n, places = len(data.names), data.experts * data.slots
    choices = "choices" if max(map(len, data.asked)) > 1 else "tokens"
    look = "A line leads from a token to its slot, in the expert's colour. A cross means that no "
    look += "slot was left."
    if any(data.dashes(t, e) != "-" for t, e in [*data.kept, *data.dropped]):
        look += " Dashed lines are not first choices."
    look += " Red tokens get no expert at all." * bool(data.left_out)
    gets = [[] for _ in range(data.experts)]
    for (e, _), t in sorted(data.holds.items()):
        gets[e].append(data.names[t])
    without = [f"{data.names[t]} at expert {e}" for t, e in data.dropped]
    return (
        f"{len(data.dropped)} of {sum(map(len, data.asked))} {choices} find no slot, and "
        f"{places - len(data.kept)} of {places} slots are empty",
        look,
        f"A picture of {n} tokens on the left and {data.experts} experts with {data.slots} slots "
        f"each on the right.",
        " ".join(f"Expert {e} gets {_listed(names)}." for e, names in enumerate(gets))
        + f" Without a slot: {_listed(without)}.",
    )


def _listed(words):
    return ", ".join(words) or "nobody"
