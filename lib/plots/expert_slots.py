"""Rows that each expert computes, rows that it drops, and empty slots that it computes for nothing,
with a capacity and without.

factor 1           dropless
     x             #                # computed
 ----x----  C      #                x dropped, over the capacity C
 . . #             # #              . an empty slot, below it
 # # #             # # #
"""

import numpy as np

from lib.plots.draw import DASHES, WAITING, grid, heading, key, numbers, page
from lib.plots.style import ALARM, FAINT, OP_COLOR, PAPER, drawing

COMPUTED = OP_COLOR["F"]
DROPPED = {"fc": PAPER, "ec": ALARM, "hatch": "xxxxx"}


@drawing
def expert_slots(asked, capacities):
    """A panel per capacity, a bar per expert: rows that it computes, rows that are dropped, and
    slots that stay empty.

    asked: (E,), how many rows are routed to each expert, E at most 16. capacities: {"factor 1": C,
    ..., "dropless": None}, 1 to 4 panels; C: slots of each expert; None: as many slots as rows are
    routed to it. Raises ValueError for any other number of panels or experts, rows below 0, no rows
    at all, or a capacity below 1.
    """
    asked = np.asarray(asked)
    if not 1 <= len(capacities) <= 4 or asked.ndim != 1 or not 1 <= len(asked) <= 16:
        raise ValueError(
            f"{len(capacities)} capacities, asked {asked.shape}: give 1 to 4, and (E,) of 1 to 16 "
            f"experts"
        )
    if (
        asked.min() < 0
        or not asked.sum()
        or any(C is not None and C < 1 for C in capacities.values())
    ):
        raise ValueError(f"asked {asked.tolist()}, capacities {capacities}: rows are 0 or more, "
                         f"and there are some; "
                         "slots are 1 or more, None without a capacity")  # fmt: skip
    panels_of = {name: _split(asked, C) for name, C in capacities.items()}
    top = max(int((done + lost + empty).max()) for done, lost, empty in panels_of.values())
    figure, panels = page(3.6, columns=len(capacities), sharey=True)
    x, told = np.arange(len(asked)), {}
    for axes, (name, (done, lost, empty)) in zip(panels, panels_of.items(), strict=True):
        axes.bar(x, done, 0.82, color=COMPUTED, zorder=2)
        for more, look in ((empty, WAITING), (lost, DROPPED)):
            axes.bar(
                x[more > 0], more[more > 0], 0.82, bottom=done[more > 0], lw=0.6, zorder=2, **look
            )
        if capacities[name] is not None:
            axes.axhline(capacities[name], color=FAINT, lw=1.2, ls=DASHES, zorder=3)
        told[name] = _told(done, lost, empty)
        heading(axes, f"{name}\n{told[name]}".replace(", ", "\n"))
        axes.set(xlim=(-0.7, len(asked) - 0.3), ylim=(0, 1.05 * top))
        axes.set_xticks(x, x if len(x) <= 8 else [e if e % 4 == 0 else "" for e in x])
        axes.tick_params(axis="x", length=0)
        grid(axes, "y")
    panels[0].set_ylabel("routed tokens")
    numbers(panels[0].yaxis, "{:,.0f}".format)
    panels[-1].set_xlabel("expert", loc="right")
    key(panels[0], {"computed": COMPUTED, "dropped": DROPPED, "empty slot": WAITING},
        loc="upper left",
        bbox_to_anchor=(0, 0), borderaxespad=1.75)  # fmt: skip
    panels[0].get_legend().set_in_layout(False)  # it is below all panels
    hottest = asked.max() / asked.mean()
    of_each = "; ".join(f"{name}, {words}" for name, words in told.items())
    return (
        figure,
        f"Slots drop tokens or stay empty; without them the hottest expert has {hottest:.1f} times "
        f"the mean",
        "Each bar is an expert, and the dashed line its C slots. Empty slots are computed, too.",
        "Bars of the rows of each expert, a panel per capacity.",
        f"The hottest expert is asked for {hottest:.1f} times the mean: {of_each}. Asked for: "
        f"{', '.join(f'{rows:g}' for rows in asked)}.",
    )  # fmt: skip


def _split(asked, C):
    """(computed rows, dropped rows, empty slots), each (E,)."""
    if C is None:
        return asked, 0 * asked, 0 * asked
    done = np.minimum(asked, C)
    return done, asked - done, C - done


def _told(done, lost, empty):
    return (
        f"{lost.sum() / (done + lost).sum():.0%} dropped, {empty.sum() / (done + empty).sum():.0%} "
        f"empty"
    )
