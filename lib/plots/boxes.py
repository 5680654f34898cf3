"""Boxes of a schedule: the actions F, B, I and W on lanes of time. gantt.py and kept.py use them.

rank 0  [0][1][2][3]:::::[  0 ][  1 ]
rank 1  :::[0][1][2][3][ 0 ][  1 ]::

A box is one action, from its start to its end, and its number is the micro-batch. If a rank has
several stages, boxes of later ones are lighter. Where a lane is grey, the rank is idle.
"""

import functools

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb

from lib.pipeline.simulate import Bar, Simulation
from lib.plots.draw import box, rank_rows, time_axis
from lib.plots.style import FAINT, OP_COLOR, PAPER, on_color

# B, a full backward, has the colour of I, its first half, because both send the gradient that the
# previous stage waits for.
BOX_COLOR = {"F": OP_COLOR["F"], "B": OP_COLOR["B"], "I": OP_COLOR["B"], "W": OP_COLOR["W"]}
IN_WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def on_clock(timed, unit=None):
    """(a Simulation that begins at 0, the name of its unit), from a Simulation or from a list of
    measured Bars.

    unit: the unit of the times that are given; "s" is converted to ms. Without it, a Simulation is
    in "units" and Bars are in "s". Raises ValueError for no bars, or for a bar that ends before it
    starts.
    """
    if isinstance(timed, Simulation):
        schedule, bars, unit = timed.schedule, timed.bars, unit or "units"
    else:
        bars, unit = sorted(timed, key=lambda bar: (bar.rank, bar.start)), unit or "s"
        schedule = [[] for _ in range(1 + max((bar.rank for bar in bars), default=-1))]
        for bar in bars:
            schedule[bar.rank].append(bar.action)
    torn = next((bar for bar in bars if bar.end < bar.start), None)
    if not bars or torn:
        fault = (
            f"{torn.action} starts at {torn.start} and ends at {torn.end}" if torn else "no bars"
        )
        raise ValueError(
            f"{fault}: give the Bars of every rank, as `record` got them, or a Simulation"
        )
    zero, factor = min(bar.start for bar in bars), 1e3 if unit == "s" else 1
    moved = [
        Bar(rank, action, factor * (start - zero), factor * (end - zero))
        for rank, action, start, end in bars
    ]
    return Simulation(schedule, moved), "ms" if unit == "s" else unit


@functools.cache
def box_color(kind, chunk, v):
    """The colour of a kind of action. It is lighter for later stages: `chunk`, from 0, says which
    of its rank's v stages this is."""
    white = 0.55 * chunk / (v - 1) if v > 1 else 0.0
    mixed = (
        a + white * (b - a) for a, b in zip(to_rgb(BOX_COLOR[kind]), to_rgb(PAPER), strict=True)
    )
    return to_hex(tuple(mixed))


def draw_boxes(axes, bars, p, n_stages, inches, low=-0.4, high=0.4, dashed=False):
    """Draw a box per bar, on the lane of its rank. Lane 0 is on top, and a box reaches from `low`
    to `high` around the middle of its lane.

    inches: (one unit of time, one lane) on the page; a box that is too small for its number is left
    empty. dashed: draw outlines without numbers, for a schedule that was predicted.
    """
    corners, colors, edges, widths = [], [], [], []
    size = min(9.0, 62 * inches[1] * (high - low))
    gap = 0.02 / inches[0] if dashed else 0.0  # else two outlines would overlap
    for rank, action, start, end in bars:
        color, wide = (
            box_color(action.kind, action.stage // p, n_stages // p),
            (end - start) * inches[0],
        )
        x, width = (start + gap, end - start - 2 * gap) if wide > 0.06 else (start, end - start)
        bottom, top = rank + low, rank + high
        corners.append([(x, bottom), (x + width, bottom), (x + width, top), (x, top)])
        colors.append("none" if dashed else color)
        edges.append(color if dashed else PAPER)
        # else a narrow box would be all edge
        widths.append(1.3 if dashed else min(0.6, 12 * wide) * (wide > 0.03))
        text = str(action.microbatch)
        if not dashed and size >= 5.5 and wide > 0.0087 * size * len(text) + 0.02:
            label = axes.text((start + end) / 2, rank + (low + high) / 2, text, ha="center",
                va="center_baseline",
                              size=size, color=on_color(color), clip_on=True)  # fmt: skip
            label.set_in_layout(False)  # hundreds of them, all inside the axes
    dashes = [(0, (2.2, 1.2))] if dashed else ["-"]
    # One collection, because a thousand single rectangles would take a second to draw.
    boxes = PolyCollection(
        corners, facecolors=colors, edgecolors=edges, linewidths=widths, linestyles=dashes, zorder=2
    )
    boxes.set_in_layout(False)
    axes.add_collection(boxes)


def draw_lanes(axes, p, until, color=OP_COLOR["idle"]):
    """Draw the ranks' lanes, and the ranks' names in their colours. Wherever no box is drawn on it
    later, a lane shows idle time."""
    for rank in range(p):
        box(axes, 0, rank - 0.4, until, 0.8, color, ec="none", zorder=1)
    rank_rows(axes, range(p))


def draw_key(axes, kinds, unit, idle=True):
    """Below `axes`, write the name of the time axis and what the colours mean."""
    words = {BOX_COLOR[kind]: text for kind, text in reversed(IN_WORDS.items()) if kind in kinds}
    if {"B", "I"} <= kinds:
        words[BOX_COLOR["B"]] = "backward, or its input gradient"
    colors = {words[BOX_COLOR[kind]]: BOX_COLOR[kind] for kind in "FBW" if BOX_COLOR[kind] in words}
    if idle:
        colors["idle"] = {"fc": OP_COLOR["idle"], "ec": FAINT, "lw": 0.4}
    time_axis(axes, unit, colors, columnspacing=1.2)
