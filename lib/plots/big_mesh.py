r"""Thousands of GPUs in one picture: a small box is a node, which holds one tensor parallel group.

           stage 0 1 2 3 ...                     63
    copy 0      . . . . . . | . . . . . . . . . .    a column: the copies of one stage, a data group
    copy 1      - - - - - - # - - - - - - - - - -    a row: the stages of one copy, a pipeline
    copy 2      . . . . . . | . . . . . . . . . .
                           / \
                 [968][969][970] ... [975]           the node where they cross: a tensor group

Source of the layout: Narayanan et al. 2021, table 1, their model of 10^12 parameters on 3,072
A100s.
"""

import math

from matplotlib.collections import PatchCollection
from matplotlib.patches import ConnectionPatch, Rectangle

from lib.plots.draw import box, middle, page
from lib.plots.style import AXIS_COLOR, FAINT, INK, OP_COLOR, PAPER, drawing, on_color, readable

TRILLION = {"pp": 64, "dp": 6, "tp": 8}
MOST = {"pp": 128, "dp": 12, "tp": 8}
PIPELINE, DATA, TENSOR = (AXIS_COLOR[axis] for axis in ("pp", "dp", "tp"))


@drawing
def big_mesh(sizes=None, at=(20, 2)):
    """A box per node, with a column per pipeline stage and a row per copy of the model. One node is
    enlarged, and its GPUs are numbered.

    sizes: {"pp": stages, "dp": copies, "tp": GPUs of a node}, at most 128 stages, 12 copies and 8
    GPUs; None: the 64 x 6 x 8 of Narayanan et al. 2021. at: (stage, copy) of the node to enlarge.
    Raises ValueError for other axes or another order of them, sizes below 1 or above these limits,
    or a node outside the mesh.
    """
    sizes = sizes or TRILLION
    if list(sizes) != ["pp", "dp", "tp"] or any(
        not 1 <= sizes[axis] <= MOST[axis] for axis in MOST
    ):
        raise ValueError(
            f"mesh {sizes}: use pp, dp and tp, in this order, at most 128 stages, 12 copies and 8 "
            f"GPUs"
        )
    pp, dp, tp = sizes.values()
    stage, copy = at
    if not (0 <= stage < pp and 0 <= copy < dp):
        raise ValueError(f"at={at}: use a stage from 0 to {pp - 1} and a copy from 0 to {dp - 1}")
    figure, (grid, below) = page(4, rows=2, gridspec_kw={"height_ratios": [max(2, 0.32 * dp), 1.5]})
    _nodes(grid, pp, dp, stage, copy)
    first = (stage * dp + copy) * tp
    _enlarged(below, first, tp)
    # lines from the small box to the enlarged one
    for start, end in ((stage + 0.1, 0.02), (stage + 0.9, tp + 0.18)):
        figure.add_artist(ConnectionPatch((start, copy + 0.9), (end, -0.06), grid.transData,
            below.transData,
                                          color=TENSOR, lw=0.9))  # fmt: skip
    _key(below, pp, dp, tp)
    n = math.prod(sizes.values())
    claim = f"{n:,} GPUs: {pp} stages x {dp} copies = {pp * dp} nodes, each with {tp} tensor ranks"
    return (
        figure, claim, f"A small box is a node of {tp} GPUs. rank = (pp * {dp} + dp) * {tp} + tp.",
        f"A grid of {pp} columns, the stages, and {dp} rows, the copies of the model; a box is a "
        f"node of {tp} GPUs.",
        f"Marked: the row of copy {copy}, a pipeline of {pp} stages; the column of stage {stage}, "
        f"a data group of {dp} nodes; and where they cross, enlarged, the tensor group of ranks "
        f"{first} to {first + tp - 1}.",
    )  # fmt: skip


def _nodes(grid, pp, dp, stage, copy):
    """A small box per node, and the names of stages and copies. The row and the column that cross
    at (stage, copy) are in colour."""
    colors = {(stage, copy): TENSOR}
    for s in range(pp):
        for c in range(dp):
            colors.setdefault(
                (s, c), PIPELINE if c == copy else DATA if s == stage else OP_COLOR["idle"]
            )
    boxes = [Rectangle((s + 0.1, c + 0.1), 0.8, 0.8) for s, c in colors]
    grid.add_collection(PatchCollection(boxes, facecolors=list(colors.values()), edgecolors="none"))
    grid.set(xlim=(-0.2, pp + 0.2), ylim=(dp + 0.05, -0.05))
    step = max(1, pp // 8)
    stages = sorted({*range(0, pp - step // 2, step), pp - 1, stage})
    stages = [s for s in stages if s in (stage, pp - 1) or abs(s - stage) > step // 4]
    grid.xaxis.tick_top()
    grid.set_xticks([s + 0.5 for s in stages], stages)
    grid.set_xlabel("stage (pp)", loc="left")
    grid.xaxis.set_label_position("top")
    grid.set_yticks([c + 0.5 for c in range(dp)], [f"copy {c}" for c in range(dp)])
    for label, c in zip(grid.get_yticklabels(), range(dp), strict=True):
        label.set(
            weight="bold" if c == copy else "normal", color=readable(PIPELINE) if c == copy else INK
        )
    for label, s in zip(grid.get_xticklabels(), stages, strict=True):
        label.set(
            weight="bold" if s == stage else "normal", color=readable(DATA) if s == stage else INK
        )
    grid.tick_params(length=0)
    grid.spines[:].set_visible(False)


def _key(below, pp, dp, tp):
    """In words, the three groups to which the enlarged node's ranks belong, and what each of them
    sends."""
    words = (
        (PIPELINE, f"a pipeline: {pp} stages, each a node", "activations go from node to node"),
        (DATA, f"a data group: {dp} copies of a stage", "gradients, once per step"),
        (
            TENSOR,
            f"a tensor group: the {tp} GPUs of a node",
            "all-reduces in every layer, over NVLink",
        ),
    )
    for i, (color, what, sends) in enumerate(words):
        y = -0.06 + 0.67 * i
        box(below, tp + 0.6, y, 0.3, 0.34, color, ec="none")
        below.text(tp + 1.05, y + 0.17, what, va="center_baseline", weight="bold", size=9.5)
        below.text(tp + 1.05, y + 0.45, sends, va="center_baseline", size=8.5, color=FAINT)


def _enlarged(axes, first, tp):
    """The node's GPUs, side by side, each with its rank."""
    axes.set(xlim=(-0.1, 16.4), ylim=(1.75, -0.35))
    axes.axis("off")
    box(axes, 0.02, -0.06, tp + 0.16, 1.12, PAPER, ec=TENSOR, lw=1.6)
    for i in range(tp):
        box(axes, i + 0.15, 0.12, 0.9, 0.76, TENSOR, ec="none")
        middle(axes, i + 0.6, 0.5, str(first + i), on_color(TENSOR), weight="bold")
        middle(axes, i + 0.6, 1.4, f"tp {i}", FAINT, 8.5)
