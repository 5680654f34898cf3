"""Who sent how much to whom, and the pattern in it: a ring, a star, everybody to everybody."""

import math

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.labels import scale, short
from lib.plots.style import FAINT, PAPER, finish, on_color, styled


@styled
def traffic_matrix(matrix, unit="bytes", title=None):
    """Who sent how much to whom. matrix: (N, N), [src, dst], as from `Ledger.matrix(unit)`; unit: what it counts."""
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"a traffic matrix is N x N, [src, dst]; got shape {matrix.shape}")
    if (matrix < 0).any():
        raise ValueError(f"rank {np.argwhere(matrix < 0)[0][0]} cannot have sent {matrix.min()} {unit}")
    N = len(matrix)
    factor, scaled_unit = scale(matrix.sum(1).max(), unit)
    numbers = N <= 16
    figure = Figure(figsize=(min(8, 3.2 + 0.95 * N), 4) if numbers else (6, 4))
    axes = figure.add_subplot()
    shade = LinearSegmentedColormap.from_list("traffic", ["#e3edf4", "#7db4d8", "#0a659e"])
    size = 11 - 0.35 * N
    for src, dst in np.ndindex(N, N):
        value = matrix[src, dst]
        color, edge = (shade(value / matrix.max()), PAPER) if value else (PAPER, "#e9e7e1")
        axes.add_patch(Rectangle((dst - 0.5, src - 0.5), 1, 1, fc=color, ec=edge, lw=1.5 if numbers else 0.3))
        if numbers and (value or src != dst):
            ink = on_color(color) if value else "#b9b7b0"
            axes.text(dst, src, short(value / factor), ha="center", va="center_baseline", color=ink, size=size)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    if numbers:  # one more column and row: what each rank sent and received in all
        for r in range(N):
            for place, total in (((N, r), matrix[r].sum()), ((r, N), matrix[:, r].sum())):
                axes.text(*place, short(total / factor), ha="center", va="center_baseline", size=size)
        axes.set_xticks(range(N + 1), [*(f"to {r}" for r in range(N)), "sent"])
        axes.set_yticks(range(N + 1), [*(f"rank {r}" for r in range(N)), "received"])
        for label in (axes.get_xticklabels()[-1], axes.get_yticklabels()[-1]):
            label.set_color(FAINT)
    else:
        axes.set_xticks(range(0, N, math.ceil(N / 16)))
        axes.set_yticks(range(0, N, math.ceil(N / 16)))
        axes.xaxis.set_label_position("top")
        axes.set(xlabel="to rank", ylabel="from rank")
    axes.set(xlim=(-0.5, N - 0.5 + numbers), ylim=(N - 0.5 + numbers, -0.5))
    claim = traffic_claim(matrix, unit)
    pairs = [f"{s} to {d} {matrix[s, d]:,}" for s, d in np.argwhere(matrix)[:32]]
    return finish(
        figure,
        title or claim,
        f"In {scaled_unit}: the row's rank sends to the column's. All together {short(matrix.sum() / factor)}.",
        f"Matrix of the {unit} that each of {N} ranks sent to each other. {claim}. Rank to rank: {', '.join(pairs)}.",
    )


def traffic_claim(matrix, unit):
    """The pattern of a traffic matrix, in words."""
    N, sends = len(matrix), matrix.sum(1)
    factor, scaled_unit = scale(sends.max(), unit)
    amount = f"{short(sends.max() / factor)} {scaled_unit}"
    off = ~np.eye(N, dtype=bool)
    if not matrix.any():
        return "Nothing was sent"
    if N > 2 and all(matrix[r].sum() == matrix[r, (r + 1) % N] > 0 for r in range(N)):
        each = f"{amount} each" if len(set(sends)) == 1 else f"at most {amount}"
        return f"A ring: every rank sends only to the next one, {each}"
    if (matrix[off] == matrix[off][0]).all() and not matrix[~off].any():
        return f"Every rank sends every other the same: {amount} each in all"
    for hub in range(N):
        if N > 2 and matrix.sum() == matrix[hub].sum() + matrix[:, hub].sum():
            return f"A star: every message starts or ends at rank {hub}"
    if len(set(sends)) == 1:
        return f"Every rank sends the same amount, {amount}"
    return f"Rank {sends.argmax()} sends most: {amount}, {sends.max() / sends.sum():.0%} of all"
