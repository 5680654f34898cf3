"""Matrix products split over ranks: four ways to split one, from which data, tensor and pipeline
parallelism follow, and two linear layers under tensor parallelism."""

from matplotlib.patches import Polygon

from lib.plots.draw import arrow, box, middle, page
from lib.plots.style import FAINT, INK, OP_COLOR, PAPER, drawing, on_color, rank_color, readable

X, W, Y = (4, 5), (5, 8), (4, 8)  # shapes: x @ w = y
TOKENS, HIDDEN, WIDE = 1.5, 2.0, 3.2  # sides of the blocks, in units of the drawing
LANE = 4.1  # height of a rank's row
EVERYWHERE = "#cfccc3"  # what is replicated on all ranks


@drawing
def four_ways():
    """The product x (4x5) @ w (5x8) = y (4x8) on two ranks, split by rows of x, by columns of w,
    and along the inner dimension; and four layers, split between the ranks. A fixed picture without
    data."""
    figure, panels = page(4, 2, 2)
    rows, columns, inner, layers = panels.flat
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

    _begin(
        layers, "four layers: pipeline", "send: the activation between T2 and T3", operators=False
    )
    for i in range(4):
        color, left = rank_color(i // 2), 2.2 + 7.0 * i
        box(layers, left, -2, 4.4, 4, color, ec="none")
        middle(layers, left + 2.2, 0, f"T{i + 1}", on_color(color), 10, weight="bold")
        crosses = {"color": INK, "lw": 3, "head": 14} if i == 1 else {}
        arrow(layers, (left + 4.4, 0), (left + 7.0, 0), shrinkA=2, shrinkB=2, **crosses)
    arrow(layers, (-0.4, 0), (2.2, 0), shrinkA=2, shrinkB=2)
    layers.text(-0.5, 0.5, "x", ha="left", va="bottom", style="italic")
    for rank in (0, 1):
        layers.text(7.9 + 14 * rank, 2.15, f"rank {rank}", ha="center", va="bottom", weight="bold",
                    color=readable(rank_color(rank)))  # fmt: skip
        rows.text(27.4, 1 - 2 * rank, f"rank {rank}", va="center_baseline", weight="bold", size=9,
                  color=readable(rank_color(rank)))  # fmt: skip
    return (
        figure, "The same product, split four ways over two ranks",
        "Colour: the rank that holds it. Both colours: both hold all of it. What you split decides "
        "what must be sent.",
        "Four panels, x (4x5) times w (5x8) on ranks 0 and 1.",
        "Rows of x: each rank has two rows of x and of y, and all of w; nothing is sent forward. "
        "Columns of w: each has four columns of w and of y, and all of x; the columns of y are "
        "gathered. The inner dimension: rank 0 has three columns of x and three rows of w, rank 1 "
        "two of each; each has a partial sum of all of y, and an all-reduce adds them. Four "
        "layers: T1 and T2 on rank 0, T3 and T4 on rank 1; the activation between T2 and T3 is "
        "sent.",
    )  # fmt: skip


def _begin(axes, name, sent, operators=True):
    """Prepare a panel whose unit of length is one matrix cell, and write into it what is split and
    what has to be sent."""
    axes.set(xlim=(-0.8, 31.2), ylim=(-5.2, 5.6))
    axes.set_aspect("equal")
    axes.axis("off")
    axes.text(-0.4, 5.6, name, weight="bold", va="top")
    axes.text(-0.4, -5.2, sent, va="bottom", size=9.5)
    if operators:
        axes.text(6.5, 0, "@", ha="center", va="center_baseline")
        axes.text(17.5, 0, "=", ha="center", va="center_baseline", size=12)


def _grid(axes, left, shape, name, row_ranks=None, column_ranks=None, both=False, up=0.0):
    """A matrix with its middle at height `up`. Each cell has the colour of its rank, or with `both`
    the matrix has both colours."""
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
            box(axes, left + j, top - 1 - i, 1, 1, color, lw=0.9)
    axes.text(left + width / 2, top + 0.15, name, ha="center", va="bottom", size=9, style="italic")


@drawing
def sharded_linears(tp=2):
    """The two linear layers of an MLP, gelu(x A) B, with a row per rank, in which the rank's shard
    of each matrix has the rank's colour. A fixed picture without data. tp: 2 to 4, else
    ValueError."""
    if not 2 <= tp <= 4:
        raise ValueError(f"tp={tp}: a row per rank, 2 to 4 of them can be read")
    figure, axes = page(4 if tp > 2 else 3.5)
    height = tp * LANE
    axes.set(xlim=(0, 27.4), ylim=(-0.3, height * 1.18))
    axes.axis("off")
    for rank in range(tp):
        _lane(axes, rank, tp, height - (rank + 0.5) * LANE)
    _mapping(axes, 3.75, height, "f", ("forward: nothing", "backward: all-reduce"), "left")
    _mapping(axes, 23.35, height, "g", ("forward: all-reduce", "backward: nothing"), "right")
    axes.annotate("between f and g nothing is sent", (13.6, height), xytext=(0, 18),
                  textcoords="offset points",
                  ha="center", va="baseline", color=FAINT)  # fmt: skip
    return (
        figure, "Columns, gelu, rows: each way one all-reduce for two layers",
        "The colour shows the rank that holds a part. Grey parts are the same on all ranks, and "
        "outlined ones are on the other ranks. A partial sum has the full size of the result.",
        f"A picture of two linear layers on {tp} ranks, a row per rank.",
        "All ranks hold the input x. It passes f, which sends nothing forward and is an all-reduce "
        "backward. Rank r multiplies x by its columns of A, applies gelu, and multiplies the "
        "result, its columns of Y, by its rows of B. That gives each rank a partial sum of the "
        "size of the whole result. It passes g, an all-reduce forward and nothing backward, and "
        "all ranks hold the result Z. Between f and g nothing is sent.",
    )  # fmt: skip


def _lane(axes, rank, tp, middle):
    """One rank's row, from left to right."""
    color, part = rank_color(rank), WIDE / tp
    axes.text(0.05, middle, str(rank), ha="left", va="center_baseline", weight="bold", size=12,
              color=readable(color))  # fmt: skip
    if rank == 0:
        axes.annotate("rank", (0.05, middle + TOKENS / 2), xytext=(0, 4),
                      textcoords="offset points", size=9,
                      color=FAINT)  # fmt: skip

    def block(left, width, height, fc, name, down=0.0, of=None):
        top = middle + (of or height) / 2 - down
        box(axes, left, top - height, width, height, fc, name, size=9.5 if tp < 4 else 8, zorder=3)

    def outline(left, width, height):
        box(axes, left, middle - height / 2, width, height, "none", ec=FAINT, lw=0.9)

    def sign(x, text):
        axes.text(x, middle, text, ha="center", va="center_baseline", size=11)

    block(0.95, HIDDEN, TOKENS, EVERYWHERE, "x")
    arrow(axes, (3.0, middle), (4.75, middle))
    sign(5.15, "@")
    outline(5.6, WIDE, HIDDEN)
    block(5.6 + rank * part, part, HIDDEN, color, f"$A_{rank}$")
    axes.annotate(
        "gelu", (9.75, middle), xytext=(0, 3), textcoords="offset points", ha="center", va="bottom"
    )
    arrow(axes, (8.9, middle), (10.7, middle))
    outline(10.8, WIDE, TOKENS)
    block(10.8 + rank * part, part, TOKENS, color, f"$Y_{rank}$")
    sign(14.6, "@")
    outline(15.2, HIDDEN, WIDE)
    block(15.2, HIDDEN, part, color, f"$B_{rank}$", down=rank * part, of=WIDE)
    sign(17.8, "=")
    block(18.4, HIDDEN + 0.6, TOKENS, color, "partial")
    arrow(axes, (21.1, middle), (24.9, middle))
    block(25.0, HIDDEN, TOKENS, EVERYWHERE, "Z")


def _mapping(axes, x, height, name, does, align):
    """f or g: a bar through all ranks' rows, and what it does forward and backward."""
    box(axes, x - 0.28, -0.1, 0.56, height + 0.1, OP_COLOR["collective"], ec="none", zorder=5)
    axes.text(x, height / 2, name, ha="center", va="center_baseline", size=14, style="italic",
              weight="bold",
              color=PAPER, zorder=6)  # fmt: skip
    for line, up in zip(does, (18, 5), strict=True):
        axes.annotate(line, (x - 0.28 if align == "left" else x + 0.28, height), xytext=(0, up),
                      size=9.5, ha=align,
                      textcoords="offset points", va="baseline", color=INK)  # fmt: skip
