"""Bytes that a step sends along each axis of the mesh. They decide the order of the axes, because
those that send most should stay inside a node.

plan 1   tp  ----------------------o  24 GB      thin, with a dot: inside a node
         pp  -------o  33 MB                     thick, with a diamond: across nodes
         dp  ---------------<>  1.2 GB
"""

import math

from lib.plots.draw import beside, color_names, grid, numbers, page
from lib.plots.labels import each, size_in_words
from lib.plots.style import AXIS_COLOR, FAINT, INK, OP_COLOR, PAPER, drawing

COLOR = AXIS_COLOR | {"data": AXIS_COLOR["dp"]}


@drawing
def axis_volume(sent, across=None):
    """A row per plan and axis: the bytes that a GPU sends along it in a step, on a logarithmic
    scale.

    sent: {plan: {"tp": bytes, "pp": bytes, "dp": bytes}, ...}, as `plan_messages` returns them; 1
    to 4 plans with at most 14 rows in all. An axis that sends 0 has a row without a mark. across:
    {plan: ("dp", "pp"), ...}, the axes whose messages leave a node. Raises ValueError for any other
    number of plans or rows, an unknown axis, bytes below 0, or if nothing is sent at all.
    """
    across = {plan: tuple((across or {}).get(plan, ())) for plan in sent}
    rows = [(plan, axis) for plan in sent for axis in sent[plan]]
    if not 1 <= len(sent) <= 4 or not 1 <= len(rows) <= 14:
        raise ValueError(
            f"{len(sent)} plans with {len(rows)} axes: 1 to 4 plans, 14 axes in all, can be read"
        )
    for plan, axis in rows:
        if axis not in COLOR or sent[plan][axis] < 0:
            raise ValueError(
                f"{plan}: {axis} sends {sent[plan][axis]} bytes: 0 or more, of {', '.join(COLOR)}"
            )
    values = [sent[plan][axis] for plan, axis in rows if sent[plan][axis]]
    if not values:
        raise ValueError(f"{', '.join(sent)}: nothing is sent, so there is nothing to draw")
    low, high = 10 ** math.floor(math.log10(min(values) / 2)), 6 * max(values)
    gap = 0.6  # between plans, in rows
    figure, axes = page(1.6 + 0.21 * (len(rows) + gap * len(sent)))
    y, places = 0.0, []
    for plan in sent:
        top = y
        for axis, n_bytes in sent[plan].items():
            places.append((y, axis))
            color, leaves = COLOR[axis], axis in across[plan]
            if n_bytes:
                axes.plot([low, n_bytes], [y, y], color=color, lw=4.5 if leaves else 1.4,
                          solid_capstyle="butt", zorder=2)  # fmt: skip
                axes.plot([n_bytes], [y], marker="D" if leaves else "o", ms=8 if leaves else 7,
                          mfc=color, mec=PAPER,
                          zorder=3)  # fmt: skip
            words = f"{in_words(n_bytes)}{', across nodes' * (leaves and n_bytes > 0)}"
            beside(axes, n_bytes or low, y, words, INK if n_bytes else FAINT, 8, size=9, bbox=None)
            y += 1
        axes.annotate(plan, (0, (top + y - 1) / 2), xycoords=("axes fraction", "data"),
                      xytext=(-34, 0), ha="right",
                      textcoords="offset points", va="center", weight="bold")  # fmt: skip
        y += gap
        if plan != list(sent)[-1]:
            axes.axhline(y - 0.5 - gap / 2, color=OP_COLOR["idle"], lw=0.8)
    axes.set(
        xscale="log", xlim=(low, high), ylim=(y - gap - 0.4, -0.6), xlabel="sent by a GPU in a step"
    )
    axes.set_yticks([place for place, _ in places], [axis for _, axis in places])
    color_names(axes.get_yticklabels(), [COLOR[axis] for _, axis in places])
    axes.tick_params(axis="y", length=0)
    numbers(axes.xaxis, in_words)
    grid(axes, "x")
    axes.spines["left"].set_visible(False)
    claim = _claim(sent, across)
    look = "The scale is logarithmic, and each line is ten times the one before."
    look += (
        " Thin lines with a dot stay inside a node, and thick ones with a diamond cross nodes."
        * any(across.values())
    )
    what = "Bytes that a GPU sends in a step along each axis, on a logarithmic scale."
    words = lambda plan, bytes_of: ", ".join(
        f"{axis} {in_words(n)}{' across nodes' * (axis in across[plan])}"
        for axis, n in bytes_of.items()
    )
    return figure, claim, look, what, each(sent, words)


def _claim(sent, across):
    """For several plans: what each sends across nodes, or in all if nothing leaves a node. For a
    single plan: which axis sends most."""
    leaves = {plan: sum(sent[plan].get(axis, 0) for axis in axes) for plan, axes in across.items()}
    if len(sent) == 1:
        ((plan, bytes_of),) = sent.items()
        most = max(bytes_of, key=bytes_of.get)
        claim = (
            f"{most} sends most: {in_words(bytes_of[most])} of {in_words(sum(bytes_of.values()))}"
        )
        return claim + f"; {in_words(leaves[plan])} leave the node" * bool(across[plan])
    out = any(across.values())
    totals = leaves if out else {plan: sum(bytes_of.values()) for plan, bytes_of in sent.items()}
    said = "; ".join(f"{in_words(n)} with {plan}" for plan, n in totals.items())
    return f"A GPU sends {'across nodes' if out else 'in all'}: {said}"


def in_words(n_bytes):
    """Bytes with three digits: 33554432 -> "33.6 MB"; 0 is "nothing"."""
    return size_in_words(n_bytes, 3) if n_bytes else "nothing"
