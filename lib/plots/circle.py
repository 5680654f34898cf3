"""Ranks on a circle, and arrows between them: the ground of every who-talks-to-whom figure."""

import math

from matplotlib.patches import Circle, FancyArrowPatch

from lib.plots.style import INK, PAPER, on_color, rank_color


def draw_ranks(axes, N, radius, filled, size):
    """N numbered disks on an ellipse, rank 0 on top, then clockwise. Those not in `filled` are drawn hollow."""
    disks = []
    for r in range(N):
        x, y = 1.35 * math.sin(2 * math.pi * r / N), math.cos(2 * math.pi * r / N)
        color = rank_color(r)
        disks.append(Circle((x, y), radius, fc=color if r in filled else PAPER, ec=color, lw=2, zorder=5))
        axes.add_patch(disks[-1])
        ink = on_color(color) if r in filled else INK
        axes.text(x, y, str(r), ha="center", va="center_baseline", size=size, weight="bold", color=ink, zorder=6)
    axes.set_aspect("equal")
    axes.axis("off")
    return disks


def draw_arrow(axes, start, end, color, width, bend=0.0):
    """An arrow from the edge of one disk to the edge of another."""
    axes.add_patch(
        FancyArrowPatch(
            *(start.center, end.center), patchA=start, patchB=end, shrinkA=2, shrinkB=2, zorder=3, color=color,
            lw=width, arrowstyle="-|>", mutation_scale=6 + 5 * width, connectionstyle=f"arc3,rad={bend}",
        )
    )  # fmt: skip
