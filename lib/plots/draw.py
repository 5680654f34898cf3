"""What figures are drawn with: the page and its axes, rows and boxes, curves and the names at their
ends.

figure, axes = page(3.6)                    # one chart; page(3.6, columns=2, sharey=True): two
rows(axes, ["a", "b"])                      # a name per row, the first on top: row i is at y = i
stack(axes, 0, {"F": 2, "B": 4}, color, 1)  # boxes end to end, each with its number where it fits
curves(axes, measured, predicted, color)    # solid and dashed; named_ends writes names at the ends
"""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import NullFormatter

from lib.plots.labels import amount, short, spread
from lib.plots.style import FAINT, INK, OP_COLOR, PAPER, on_color, rank_color, readable

DASHED = (0, (5, 2.5))  # curves: predicted
DASHES = (0, (3, 1.6))  # edges of bars, and marks beside them: predicted
LANE = "#f1efe9"  # the ground of a lane, where grey would be too dark
WAITING = {"fc": PAPER, "ec": FAINT, "hatch": "/////"}  # in a key: a hatched box

# --- the page -------------------------------------------------------------------------------------


def page(height, rows=None, columns=None, most=4.0, **shared):
    """A figure 8 inches wide and at most `most` high, and its axes: one, a list of them, or (rows,
    columns) of them."""
    figure = Figure(figsize=(8, min(most, height)))
    if rows is None and columns is None:
        return figure, figure.add_subplot()
    panels = figure.subplots(rows or 1, columns or 1, squeeze=False, **shared)
    return figure, panels if rows and columns else panels.ravel()


def grid(axes, axis="both"):
    """Faint lines behind what is drawn; axis: "x", "y" or "both"."""
    axes.grid(axis=axis, color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)


def heading(axes, text, **look):
    """The heading of one of several panels."""
    axes.set_title(text, loc="left", **{"size": 10, "weight": "bold"} | look)


def numbers(axis, words=short):
    """The axis' own ticks, written as `words` writes a number; the small ones of a
    logarithmic axis stay bare."""
    axis.set_major_formatter(lambda value, _: words(value))
    axis.set_minor_formatter(NullFormatter())


def ticks(axis, places, words=str):
    """Ticks at these places alone, as `words` writes them. For logarithmic axes, which have
    many small ones."""
    axis.set_ticks(places, [words(place) for place in places])
    axis.set_ticks([], minor=True)


def key(axes, colors, below=False, **look):
    """What colours mean, above the axes' left end or `below` their right end. colors: {words:
    colour, or a dict}."""
    boxes = {
        words: each if isinstance(each, dict) else {"fc": each} for words, each in colors.items()
    }
    place = ("upper right", (1, 0), 1.75) if below else ("lower left", (0, 1), 0.3)
    place = dict(zip(("loc", "bbox_to_anchor", "borderaxespad"), place, strict=True))
    look = {"ncols": 8, "frameon": False, "borderpad": 0, "handlelength": 1.2} | place | look
    axes.legend(
        handles=[Rectangle((0, 0), 1, 1, label=words, **each) for words, each in boxes.items()],
        **look,
    )


def time_axis(axes, unit, colors, **look):
    """The lowest panel's axis of time: its name at the left, what the boxes'
    colours mean at the right."""
    axes.set_xlabel(f"time ({unit})", loc="left")
    numbers(axes.xaxis)
    key(axes, colors, below=True, **look)


def above(axes, x, text, **look):
    """A text above the axes, at an upright line."""
    where = {"xytext": (0, 2), "ha": "center", "va": "bottom"}
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), textcoords="offset points", **where | look
    )


def at_edge(axes, y, text, x=1.015, **look):
    """A text in bold at the right edge of the axes."""
    look = (
        {"va": "center_baseline", "weight": "bold"}
        | look
        | {"color": readable(look.get("color", INK))}
    )
    axes.annotate(text, (x, y), xycoords=("axes fraction", "data"), **look)


# --- rows, boxes and bars -------------------------------------------------------------------------


def color_names(labels, colors, **look):
    """Names of rows or columns in bold, in their colours."""
    for label, color in zip(labels, colors, strict=False):
        label.set(color=readable(color), weight="bold", **look)


def rows(axes, names, colors=None, **look):
    """Row i at y = i, the first on top, its name at the left, in its colour. look: of the names."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, **look)
    if colors is not None:
        color_names(axes.get_yticklabels(), colors)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def rank_rows(axes, ranks, words="rank {}", **look):
    """`rows`, one for each of these ranks."""
    rows(axes, [words.format(rank) for rank in ranks], map(rank_color, ranks), **look)


def middle(axes, x, y, text, color=INK, size=9, **look):
    """Text in the middle of a box. Laying out without it is faster, and it lies
    inside the axes anyway."""
    where = {"ha": "center", "va": "center_baseline", "zorder": 5}
    axes.text(x, y, text, size=size, color=color, **where | look).set_in_layout(False)


def box(
    axes,
    left,
    low,
    width,
    height,
    color,
    text="",
    wide=math.inf,
    size=9,
    pad=None,
    room=0.05,
    **look,
):
    """A filled box and a text in it, if the box is `wide` enough, in inches on the page, for it and
    `room` beside it.

    pad: of a ground below the text in the box's colour, in letters, where lines may cross it.
    """
    axes.add_patch(
        Rectangle(
            (left, low), width, height, **{"fc": color, "ec": PAPER, "lw": 0.8, "zorder": 2} | look
        )
    )
    if text and wide > 0.0091 * size * len(text) + room:
        ground = None if pad is None else paper(pad, color)
        middle(axes, left + width / 2, low + height / 2, text, on_color(color), size, bbox=ground)


def stack(axes, row, parts, color, inches, height=0.7, size=9, words=amount, pad=None):
    """Boxes end to end on a row, each with its number where there is room. Returns where the last
    one ends.

    parts: {part: length}; color: {part: colour}; inches: of one unit of length on the page. pad:
    see `box`.
    """
    start = 0.0
    for part, length in parts.items():
        wide = length * inches
        box(axes, start, row - height / 2, length, height, color[part], words(length), wide, size,
            pad,
            lw=0.8 * (wide > 0.06))  # fmt: skip
        start += length
    return start


def outline(axes, row, half, lengths):
    """The same, predicted: dashed edges from row - half to row + half. A part's left edge is the
    right one before."""
    start = 0.0
    for length in lengths:
        end = start + length
        axes.plot([start, end, end, start], np.array([-half, -half, half, half]) + row, color=INK,
                  lw=1.4, ls=DASHES,
                  zorder=4)  # fmt: skip
        start = end


def beside(axes, x, row, text, color=INK, gap=6, **look):
    """A text in bold after the end of a bar."""
    look = {"weight": "bold", "zorder": 6, "bbox": paper(0.1)} | look
    look |= {"xytext": (gap, 0), "textcoords": "offset points", "va": "center_baseline"}
    axes.annotate(text, (x, row), color=color, **look)


def paper(pad, color=PAPER):
    """The ground of a text that lies on lines."""
    return {"boxstyle": f"round,pad={pad}", "fc": color, "ec": "none"}


def bar(axes, row, value, color, text, longest, mark=None, height=0.68):
    """A bar from 0, its text in it or behind it, and a dashed mark where a formula puts its end.

    longest: of all bars and marks of the axes.
    """
    box(axes, 0, row - height / 2, value, height, color, ec="none")
    inside = min(mark or value, value) > 0.45 * longest
    beside(axes, 0 if inside else max(value, mark or 0), row, text,
           on_color(color) if inside else INK, 7, zorder=5,
           bbox=None)  # fmt: skip
    if mark is not None:
        axes.plot([mark, mark], [row - 0.46, row + 0.46], color=INK, ls=DASHES, lw=1.8, zorder=4)


def arrow(axes, start, end, color=FAINT, lw=1.4, head=10, **look):
    """An arrow between two places."""
    look = {"shrinkA": 0, "shrinkB": 0, "zorder": 1} | look
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", color=color, lw=lw, mutation_scale=head, **look
        )
    )


# --- curves ---------------------------------------------------------------------------------------


def curves(axes, measured, predicted, color, factor=1):
    """Solid what was measured, dashed what was predicted. Each {name: (x, y)}; y is drawn times
    `factor`.

    Returns where they end, for `named_ends`: a name's measured curve, where there is one.
    """
    for some, look in (
        (predicted, {"ls": DASHED, "lw": 1.6}),
        (measured, {"marker": "o", "ms": 5, "lw": 2}),
    ):
        for name, (x, y) in some.items():
            axes.plot(x, factor * np.asarray(y), color=color[name], zorder=3, **look)
    names = dict.fromkeys([*measured, *predicted])
    return [
        (name, factor * (measured.get(name) or predicted[name])[1][-1], color[name])
        for name in names
    ]


def named_ends(axes, ends, gap, x=1.015, **look):
    """The curves' names at the right edge, where they end. Set the axes' limits before.

    ends: [(text, y, colour), ...]; gap: the least between two of them, as a share of the axes'
    height.
    """
    (low, high), there, back = axes.get_ylim(), float, float
    if axes.get_yscale() == "log":
        there, back = math.log10, lambda place: 10**place
    places = spread([there(y) for _, y, _ in ends], gap * (there(high) - there(low)))
    for (text, _, color), place in zip(ends, places, strict=True):
        at_edge(axes, back(place), text, x, color=color, va="center", **look)
