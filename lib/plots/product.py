"""One matrix product, split over two ranks in four ways: the seed of every parallelism in this course."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

from lib.plots.style import FAINT, INK, PAPER, finish, on_color, rank_color, styled

X, W, Y = (4, 5), (5, 8), (4, 8)  # shapes: x @ w = y


@styled
def four_ways(title=None):
    """x (4x5) @ w (5x8) = y (4x8) by rows of x, columns of w, the inner dimension, and layers. No data: a picture."""
    figure = Figure(figsize=(8, 4))
    rows, columns, inner, layers = figure.subplots(2, 2).flat
    rank_of = lambda count, of: [int(i >= (count + 1) // 2) for i in range(of)]

    _begin(rows, "rows of x: data", "send nothing; w's gradients later")
    _grid(rows, 0, X, "x", row_ranks=rank_of(4, 4))
    _grid(rows, 8, W, "w", both=True)
    _grid(rows, 19, Y, "y", row_ranks=rank_of(4, 4))

    _begin(columns, "columns of w: tensor", "send: gather the columns of y")
    _grid(columns, 0, X, "x", both=True)
    _grid(columns, 8, W, "w", column_ranks=rank_of(8, 8))
    _grid(columns, 19, Y, "y", column_ranks=rank_of(8, 8))

    _begin(inner, "the inner dimension: tensor", "send: all-reduce, the two partial sums into one")
    _grid(inner, 0, X, "x", column_ranks=rank_of(5, 5))
    _grid(inner, 8, W, "w", row_ranks=rank_of(5, 5))
    _grid(inner, 21.5, Y, "partial sums", row_ranks=[1] * 4, up=0.7)
    _grid(inner, 19, Y, "", row_ranks=[0] * 4, up=-0.7)

    _begin(layers, "four layers: pipeline", "send: the activation between T2 and T3", operators=False)
    for i in range(4):
        color, left = rank_color(i // 2), 2.2 + 7.0 * i
        layers.add_patch(Rectangle((left, -2), 4.4, 4, fc=color, ec="none"))
        layers.text(left + 2.2, 0, f"T{i + 1}", ha="center", va="center_baseline", weight="bold",
                    color=on_color(color))  # fmt: skip
        crosses = {"color": INK, "lw": 3, "mutation_scale": 14} if i == 1 else {}
        _arrow(layers, left + 4.4, left + 7.0, **crosses)
    _arrow(layers, -0.4, 2.2)
    layers.text(-0.5, 0.5, "x", ha="left", va="bottom", style="italic")
    for rank in (0, 1):
        layers.text(7.9 + 14 * rank, 2.15, f"rank {rank}", ha="center", va="bottom", weight="bold",
                    color=rank_color(rank))  # fmt: skip
        rows.text(27.4, 1 - 2 * rank, f"rank {rank}", va="center_baseline", weight="bold", size=9,
                  color=rank_color(rank))  # fmt: skip
    return finish(
        figure,
        title or "The same product, split four ways over two ranks",
        "Colour: the rank that holds it. Both colours: both hold all of it. What you split decides what must be sent.",
        "Four panels, x (4x5) times w (5x8) on ranks 0 and 1. Rows of x: each rank has two rows of x and of y, and "
        "all of w; nothing is sent forward. Columns of w: each has four columns of w and of y, and all of x; the "
        "columns of y are gathered. The inner dimension: rank 0 has three columns of x and three rows of w, rank 1 two "
        "of each; each has a partial sum of all of y, and an all-reduce adds them. Four layers: T1 and T2 on rank 0, "
        "T3 and T4 on rank 1; the activation between T2 and T3 is sent.",
    )


def _begin(axes, name, sent, operators=True):
    """A panel, one unit per matrix cell, with a heading: what is split, and what is sent for it."""
    axes.set(xlim=(-0.8, 31.2), ylim=(-5.2, 5.6))
    axes.set_aspect("equal")
    axes.axis("off")
    axes.text(-0.4, 5.6, name, weight="bold", va="top")
    axes.text(-0.4, -5.2, sent, va="bottom", size=9.5)
    if operators:
        axes.text(6.5, 0, "@", ha="center", va="center_baseline")
        axes.text(17.5, 0, "=", ha="center", va="center_baseline", size=12)


def _grid(axes, left, shape, name, row_ranks=None, column_ranks=None, both=False, up=0.0):
    """A matrix with its middle at height `up`; each cell in the colour of its rank, or all of it in both colours."""
    height, width = shape
    top, bottom = up + height / 2, up - height / 2
    if both:
        corners = [(left, bottom), (left, top), (left + width, top), (left + width, bottom)]
        axes.add_patch(Polygon(corners[:3], fc=rank_color(0), ec="none"))
        axes.add_patch(Polygon(corners[2:] + corners[:1], fc=rank_color(1), ec="none"))
    for i in range(height):
        for j in range(width):
            rank = (row_ranks[i] if row_ranks else column_ranks[j]) if not both else None
            color = "none" if both else rank_color(rank)
            axes.add_patch(Rectangle((left + j, top - 1 - i), 1, 1, fc=color, ec=PAPER, lw=0.9))
    axes.text(left + width / 2, top + 0.15, name, ha="center", va="bottom", size=9, style="italic")


def _arrow(axes, start, end, color=FAINT, lw=1.4, mutation_scale=10):
    style = {"arrowstyle": "-|>", "color": color, "lw": lw, "mutation_scale": mutation_scale}
    axes.add_patch(FancyArrowPatch((start, 0), (end, 0), shrinkA=2, shrinkB=2, **style))
