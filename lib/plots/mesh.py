"""Ranks in a mesh of named axes: the first axis downwards, the last across, the others as blocks.

         dp 0          dp 1
      tp 0  tp 1    tp 0  tp 1
pp 0  [ 0 ] [ 1 ]   [ 2 ] [ 3 ]       a colour and a letter: the ranks of one group
pp 1  [ 4 ] [ 5 ]   [ 6 ] [ 7 ]       a frame: ranks that share a node
"""

import itertools
import math
import string

import numpy as np
from matplotlib.patches import FancyBboxPatch

from lib.plots.draw import box, middle, page
from lib.plots.style import FAINT, INK, OP_COLOR, drawing, on_color, rank_color

BLOCK_GAP = 0.45  # in widths of a box


@drawing
def mesh(sizes, groups=None, per_node=None):
    """A box per rank with its number, at its coordinates in the mesh. The ranks of one group have
    one colour.

    sizes: {axis: size}, the slowest axis first, such as {"pp": 2, "dp": 2, "tp": 2}; 2 to 32 ranks
    in at most 6 rows. groups: [[rank, ...], ...], as `groups_along(("dp",), sizes)` returns them;
    None: no colours. per_node: how many consecutive ranks share a node; it must divide the number
    of ranks, and either divide the length of a row or be a multiple of it. Raises ValueError for a
    mesh of another size, for groups in which a rank is missing or appears twice, or for nodes of
    another size.
    """
    n, names = math.prod(sizes.values()), list(sizes)
    rows = sizes[names[0]] if len(names) > 1 else 1
    if not 2 <= n <= 32 or rows > 6:
        raise ValueError(
            f"mesh {_said(sizes)} = {n} ranks in {rows} rows: 2 to 32 ranks in at most 6 can be "
            f"read"
        )
    if groups is not None and sorted(itertools.chain(*groups)) != list(range(n)):
        raise ValueError(
            f"groups {groups}: every rank from 0 to {n - 1} is in one, and in no second one"
        )
    wide = n // rows
    if per_node and (n % per_node or (wide % per_node and per_node % wide)):
        raise ValueError(
            f"nodes of {per_node} in rows of {wide} ranks: use a divisor or a multiple of {wide}"
        )
    last = sizes[names[-1]]
    lefts = [column + BLOCK_GAP * (column // last) for column in range(wide)]
    pitch = 1.55 if per_node else 1.25  # of rows, in heights of a box

    figure, axes = page(1.5 + 0.42 * pitch * rows)
    axes.axis("off")
    end = lefts[-1] + 1.2
    aside = max(0.0, 9.45 - (end + 1.25)) / 2  # centres a narrow mesh
    axes.set(
        xlim=(-1.25 - aside, end + aside),
        ylim=(pitch * rows - 0.2, -1.25 if len(names) > 2 else -0.7),
    )
    letter = {rank: i for i, group in enumerate(groups or []) for rank in group}
    for rank in range(n):
        row, column = divmod(rank, wide)
        x, y = lefts[column], pitch * row
        color = rank_color(letter[rank]) if groups else OP_COLOR["idle"]
        box(axes, x + 0.06, y, 0.88, 0.88, color, ec="none", zorder=3)
        middle(axes, x + 0.5, y + 0.44, str(rank), on_color(color), 12, weight="bold")
        if groups:
            axes.text(x + 0.88, y + 0.84, string.ascii_letters[letter[rank]], ha="right",
                      va="baseline", size=8,
                      color=on_color(color), zorder=4)  # fmt: skip
    _coordinates(axes, sizes, rows, wide, lefts, pitch)
    if per_node:
        _nodes(axes, n // per_node, per_node, wide, lefts, pitch)
    claim = _claim(sizes, groups, per_node)
    nodes = f" Each frame is a node of {per_node} ranks." if per_node else ""
    key = " The ranks of a group share a colour and a letter." if groups else ""
    said = f"Groups: {' | '.join(' '.join(map(str, group)) for group in groups)}." if groups else ""
    what = f"A grid of {n} ranks, {_said(sizes)}, the axis {names[-1]} running fastest."
    return figure, claim, f"The axis {names[-1]} runs fastest.{key}{nodes}", what, f"{nodes} {said}"


def _coordinates(axes, sizes, rows, wide, lefts, pitch):
    """The coordinates of rows, blocks and boxes, written at the left and above."""
    names = list(sizes)
    first, middle, last = names[:1] if len(names) > 1 else [], names[1:-1], names[-1]
    for row in range(rows if first else 0):
        axes.text(-0.2, pitch * row + 0.44, f"{first[0]} {row}", ha="right", va="center_baseline",
                  weight="bold")  # fmt: skip
    for column in range(wide):
        axes.text(lefts[column] + 0.5, -0.2, f"{last} {column % sizes[last]}", ha="center",
                  va="baseline", size=9,
                  color=FAINT)  # fmt: skip
    for block, where in enumerate(
        itertools.product(*(range(sizes[axis]) for axis in middle)) if middle else []
    ):
        words = ", ".join(f"{axis} {i}" for axis, i in zip(middle, where, strict=True))
        middle_of = (lefts[block * sizes[last]] + lefts[(block + 1) * sizes[last] - 1] + 1) / 2
        axes.text(middle_of, -0.72, words, ha="center", va="baseline", weight="bold")


def _nodes(axes, count, per_node, wide, lefts, pitch):
    """A frame around the boxes of each node, and the node's number below it."""
    for node in range(count):
        row, column = divmod(node * per_node, wide)
        end = lefts[column + min(per_node, wide) - 1] + 1
        height = pitch * (max(1, per_node // wide) - 1) + 0.88
        wide_as = end - lefts[column] - 0.12
        axes.add_patch(FancyBboxPatch((lefts[column] + 0.06, pitch * row), wide_as, height,
            fc="none", ec=INK,
                                      lw=1.4, boxstyle="round,pad=0.1", zorder=2))  # fmt: skip
        axes.text(lefts[column] + 0.04, pitch * row + height + 0.38, f"node {node}", va="baseline",
                  size=8.5,
                  color=INK)  # fmt: skip


def along(groups, sizes):
    """The axes along which the groups extend, in the order of `sizes`: those in which the
    coordinates of ranks of one group differ."""
    places = [np.unravel_index(group, tuple(sizes.values())) for group in groups]
    return [axis for i, axis in enumerate(sizes) if any(len(set(place[i])) > 1 for place in places)]


def _claim(sizes, groups, per_node):
    if groups is None:
        n = math.prod(sizes.values())
        where = np.unravel_index(n // 2 + 1 if n > 2 else 1, tuple(sizes.values()))
        words = ", ".join(f"{axis} {i}" for axis, i in zip(sizes, where, strict=True))
        nodes = f", on {n // per_node} node{'s' * (n > per_node)}" if per_node else ""
        return f"{n} ranks as {_said(sizes)}{nodes}: rank {n // 2 + 1 if n > 2 else 1} is {words}"
    counts = sorted({len(group) for group in groups})
    of = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    claim = (
        f"Along {' and '.join(along(groups, sizes)) or 'no axis'}: {len(groups)} groups of {of} "
        f"ranks"
    )
    if not per_node:
        return claim
    spans = {len({rank // per_node for rank in group}) for group in groups}
    if spans == {1}:
        return f"{claim}, each inside a node"
    return f"{claim}, across {max(spans)} nodes" + ("" if len(spans) == 1 else " at most")


def _said(sizes):
    return " x ".join(f"{axis}={size}" for axis, size in sizes.items())
