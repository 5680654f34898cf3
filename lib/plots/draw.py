"""The building blocks of figures: the page and its axes, rows and boxes, curves and the names at
their ends.

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

DASHED = (0, (5, 2.5))  # for predicted curves
DASHES = (0, (3, 1.6))  # for the edges of predicted bars, and for the marks of predicted values
LANE = "#f1efe9"  # background of a lane, where the grey of "idle" would be too dark
WAITING = {"fc": PAPER, "ec": FAINT, "hatch": "/////"}  # a rank that waits: a hatched box

# --- the page -------------------------------------------------------------------------------------


def page(height, rows=None, columns=None, most=4.0, **shared):
    """(figure, axes): a figure 8 inches wide and `height` inches high, but at most `most`. `axes`
    is one object if neither `rows` nor `columns` is given, a flat array if one of them is, and a
    2-D array if both are."""
    figure = Figure(figsize=(8, min(most, height)))
    if rows is None and columns is None:
        return figure, figure.add_subplot()
    panels = figure.subplots(rows or 1, columns or 1, squeeze=False, **shared)
    return figure, panels if rows and columns else panels.ravel()


def grid(axes, axis="both"):
    """Faint lines behind what is drawn. axis: "x", "y" or "both"."""
    axes.grid(axis=axis, color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)


def heading(axes, text, **look):
    """The heading of one of several panels."""
    axes.set_title(text, loc="left", **{"size": 10, "weight": "bold"} | look)


def numbers(axis, words=short):
    """Keep the axis' own ticks, but format their numbers with `words`. The minor ticks of a
    logarithmic axis get no numbers."""
    axis.set_major_formatter(lambda value, _: words(value))
    axis.set_minor_formatter(NullFormatter())


def ticks(axis, places, words=str):
    """Replace the axis' ticks with ticks at `places`, labelled with `words`. This is useful for
    logarithmic axes, which otherwise have many minor ticks."""
    axis.set_ticks(places, [words(place) for place in places])
    axis.set_ticks([], minor=True)


def key(axes, colors, below=False, **look):
    """A legend of colours above the left end of the axes or, with `below`, under their right end.
    colors: {words: a colour, or the properties of a Rectangle}."""
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
    """The time axis of the lowest panel: its name at the left, and the legend of the boxes' colours
    at the right."""
    axes.set_xlabel(f"time ({unit})", loc="left")
    numbers(axes.xaxis)
    key(axes, colors, below=True, **look)


def above(axes, x, text, **look):
    """A text above the axes at x, such as the name of a vertical line."""
    where = {"xytext": (0, 2), "ha": "center", "va": "bottom"}
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), textcoords="offset points", **where | look
    )


def at_edge(axes, y, text, x=1.015, **look):
    """A text in bold at the right edge of the axes, at height y."""
    look = (
        {"va": "center_baseline", "weight": "bold"}
        | look
        | {"color": readable(look.get("color", INK))}
    )
    axes.annotate(text, (x, y), xycoords=("axes fraction", "data"), **look)


# --- rows, boxes and bars -------------------------------------------------------------------------


def color_names(labels, colors, **look):
    """Write the names of rows or columns in bold, each in its colour."""
    for label, color in zip(labels, colors, strict=False):
        label.set(color=readable(color), weight="bold", **look)


def rows(axes, names, colors=None, **look):
    """Prepare the y axis for rows: row i is at y = i, the first on top, with its name at the left,
    in its colour if `colors` are given. look: properties of the names."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, **look)
    if colors is not None:
        color_names(axes.get_yticklabels(), colors)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def rank_rows(axes, ranks, words="rank {}", **look):
    """`rows` with one row for each of these ranks, in the ranks' colours."""
    rows(axes, [words.format(rank) for rank in ranks], map(rank_color, ranks), **look)


def middle(axes, x, y, text, color=INK, size=9, **look):
    """A text in the middle of a box. The layout solver may ignore it, because it is inside the axes
    anyway, and the solver is faster without it."""
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
    """A filled box, with a text in it if there is enough space.

    wide: the width of the box on the page in inches; the text is written if it fits into that with
    `room` inches to spare, and always by default. pad: if given, the text gets a background in the
    box's colour, because lines may cross it. The margin of that background is `pad` times the font
    size.
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
    """Boxes end to end in a row, each with its number if it fits. Returns the x where the last
    ends.

    parts: {part: length}; color: {part: colour}; inches: the size of one unit of length on the
    page. pad: see `box`.
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
    """The predicted counterpart of `stack`: boxes end to end with dashed edges, from row - half to
    row + half. Left edges are not drawn: the first is at 0, and each of the others would coincide
    with the right edge of the box before it."""
    start = 0.0
    for length in lengths:
        end = start + length
        axes.plot([start, end, end, start], np.array([-half, -half, half, half]) + row, color=INK,
                  lw=1.4, ls=DASHES,
                  zorder=4)  # fmt: skip
        start = end


def beside(axes, x, row, text, color=INK, gap=6, **look):
    """A text in bold to the right of a bar's end."""
    look = {"weight": "bold", "zorder": 6, "bbox": paper(0.1)} | look
    look |= {"xytext": (gap, 0), "textcoords": "offset points", "va": "center_baseline"}
    axes.annotate(text, (x, row), color=color, **look)


def paper(pad, color=PAPER):
    """The background of a text that is drawn over lines."""
    return {"boxstyle": f"round,pad={pad}", "fc": color, "ec": "none"}


def bar(axes, row, value, color, text, longest, mark=None, height=0.68):
    """A bar from 0 with its text inside it or after it, and a dashed `mark` where a formula puts
    its end.

    longest: the largest value among all bars and marks of the axes. The text is inside the bar only
    if both the bar and its mark are longer than 45% of that.
    """
    box(axes, 0, row - height / 2, value, height, color, ec="none")
    inside = min(mark or value, value) > 0.45 * longest
    beside(axes, 0 if inside else max(value, mark or 0), row, text,
           on_color(color) if inside else INK, 7, zorder=5,
           bbox=None)  # fmt: skip
    if mark is not None:
        axes.plot([mark, mark], [row - 0.46, row + 0.46], color=INK, ls=DASHES, lw=1.8, zorder=4)


def arrow(axes, start, end, color=FAINT, lw=1.4, head=10, **look):
    """An arrow from one point to another."""
    look = {"shrinkA": 0, "shrinkB": 0, "zorder": 1} | look
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", color=color, lw=lw, mutation_scale=head, **look
        )
    )


# --- curves ---------------------------------------------------------------------------------------


def curves(axes, measured, predicted, color, factor=1):
    """Draw measured curves as solid lines with dots, and predicted ones as dashed lines. Each is
    {name: (x, y)}; y is multiplied by `factor`.

    Returns the ends of the curves for `named_ends`. If a name has both curves, it is the end of the
    measured one.
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
    """Write the curves' names at the right edge, at the height where each curve ends, but moved
    apart so that they do not overlap. The limits of the axes have to be set before the call.

    ends: [(text, y, colour), ...]; gap: the least distance between two names, as a share of the
    axes' height.
    """
    (low, high), there, back = axes.get_ylim(), float, float
    if axes.get_yscale() == "log":
        there, back = math.log10, lambda place: 10**place
    places = spread([there(y) for _, y, _ in ends], gap * (there(high) - there(low)))
    for (text, _, color), place in zip(ends, places, strict=True):
        at_edge(axes, back(place), text, x, color=color, va="center", **look)
