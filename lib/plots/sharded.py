"""Two linear layers over tp ranks, by columns and then by rows: where f and g sit, and what each rank holds."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from lib.plots.style import FAINT, INK, OP_COLOR, PAPER, finish, on_color, rank_color, styled

TOKENS, HIDDEN, WIDE = 1.5, 2.0, 3.2  # sides of the blocks, in units of the drawing
LANE = 4.1  # height of a rank's row
EVERYWHERE = "#cfccc3"  # what all ranks hold alike


@styled
def sharded_linears(tp=2, title=None):
    """x A, gelu, times B, a row per rank: its part of each matrix in its colour. No data: a picture. tp: 2 to 4."""
    if not 2 <= tp <= 4:
        raise ValueError(f"tp={tp}: a row per rank, 2 to 4 of them can be read")
    figure = Figure(figsize=(8, 4 if tp > 2 else 3.5))
    axes = figure.add_subplot()
    height = tp * LANE
    axes.set(xlim=(0, 27.4), ylim=(-0.3, height * 1.18))
    axes.axis("off")
    for rank in range(tp):
        _lane(axes, rank, tp, height - (rank + 0.5) * LANE)
    _mapping(axes, 3.75, height, "f", ("forward: nothing", "backward: all-reduce"), "left")
    _mapping(axes, 23.35, height, "g", ("forward: all-reduce", "backward: nothing"), "right")
    axes.annotate("between f and g nothing is sent", (13.6, height), xytext=(0, 18), textcoords="offset points",
                  ha="center", va="baseline", color=FAINT)  # fmt: skip
    claim = "Columns, gelu, rows: each way one all-reduce for two layers"
    return finish(
        figure,
        title or claim,
        "Colour: the rank that holds it; grey: all ranks hold the same; outlined: on the other ranks. A partial sum "
        "has the full size of the result.",
        f"A picture of two linear layers on {tp} ranks, a row per rank. {claim}. All ranks hold the input x. It passes "
        "f, which sends nothing forward and is an all-reduce backward. Rank r multiplies x by its columns of A, "
        "applies gelu, and multiplies the result, its columns of Y, by its rows of B. That gives each rank a partial "
        "sum of the size of the whole result. It passes g, an all-reduce forward and nothing backward, and all ranks "
        "hold the result Z. Between f and g nothing is sent.",
    )


def _lane(axes, rank, tp, middle):
    """One rank's row, from left to right."""
    color, part = rank_color(rank), WIDE / tp
    axes.text(0.05, middle, str(rank), ha="left", va="center_baseline", weight="bold", size=12, color=color)
    if rank == 0:
        axes.annotate("rank", (0.05, middle + TOKENS / 2), xytext=(0, 4), textcoords="offset points", size=9,
                      color=FAINT)  # fmt: skip

    def block(left, width, height, fc, name, down=0.0, of=None):
        top = middle + (of or height) / 2 - down
        axes.add_patch(Rectangle((left, top - height), width, height, fc=fc, ec=PAPER, lw=0.8, zorder=3))
        axes.text(left + width / 2, top - height / 2, name, ha="center", va="center_baseline", zorder=4,
                  size=9.5 if tp < 4 else 8, color=on_color(fc))  # fmt: skip

    def outline(left, width, height):
        axes.add_patch(Rectangle((left, middle - height / 2), width, height, fc="none", ec=FAINT, lw=0.9, zorder=2))

    def sign(x, text):
        axes.text(x, middle, text, ha="center", va="center_baseline", size=11)

    block(0.95, HIDDEN, TOKENS, EVERYWHERE, "x")
    _arrow(axes, 3.0, 4.75, middle)
    sign(5.15, "@")
    outline(5.6, WIDE, HIDDEN)
    block(5.6 + rank * part, part, HIDDEN, color, f"$A_{rank}$")
    axes.annotate("gelu", (9.75, middle), xytext=(0, 3), textcoords="offset points", ha="center", va="bottom")
    _arrow(axes, 8.9, 10.7, middle)
    outline(10.8, WIDE, TOKENS)
    block(10.8 + rank * part, part, TOKENS, color, f"$Y_{rank}$")
    sign(14.6, "@")
    outline(15.2, HIDDEN, WIDE)
    block(15.2, HIDDEN, part, color, f"$B_{rank}$", down=rank * part, of=WIDE)
    sign(17.8, "=")
    block(18.4, HIDDEN + 0.6, TOKENS, color, "partial")
    _arrow(axes, 21.1, 24.9, middle)
    block(25.0, HIDDEN, TOKENS, EVERYWHERE, "Z")


def _mapping(axes, x, height, name, does, align):
    """f or g: a bar through all ranks' rows, and what it does each way."""
    axes.add_patch(Rectangle((x - 0.28, -0.1), 0.56, height + 0.1, fc=OP_COLOR["collective"], ec="none", zorder=5))
    axes.text(x, height / 2, name, ha="center", va="center_baseline", size=14, style="italic", weight="bold",
              color=PAPER, zorder=6)  # fmt: skip
    for line, up in zip(does, (18, 5), strict=True):
        axes.annotate(line, (x - 0.28 if align == "left" else x + 0.28, height), xytext=(0, up), size=9.5, ha=align,
                      textcoords="offset points", va="baseline", color=INK)  # fmt: skip


def _arrow(axes, start, end, y):
    style = {"arrowstyle": "-|>", "color": FAINT, "lw": 1.4, "mutation_scale": 10}
    axes.add_patch(FancyArrowPatch((start, y), (end, y), shrinkA=0, shrinkB=0, zorder=1, **style))
