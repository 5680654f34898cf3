"""Which rank sent how much to which, and the pattern in it: a ring, a star, every rank to every
other; and how much went through each rank's link."""

import dataclasses
import math

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lib.plots.draw import DASHES, box, color_names, heading, middle, page, paper
from lib.plots.labels import amount, capital, each, scale, short
from lib.plots.style import FAINT, INK, PAPER, drawing, on_color, rank_color


@drawing
def traffic_matrix(matrix, unit="bytes"):
    """Which rank sent how much to which. matrix: (N, N), [src, dst], as from `Ledger.matrix(unit)`;
    unit: what it counts. Raises ValueError for another shape, or a value below 0."""
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"a traffic matrix is N x N, [src, dst]; got shape {matrix.shape}")
    if (matrix < 0).any():
        raise ValueError(
            f"rank {np.argwhere(matrix < 0)[0][0]} cannot have sent {matrix.min()} {unit}"
        )
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
        box(axes, dst - 0.5, src - 0.5, 1, 1, color, ec=edge, lw=1.5 if numbers else 0.3, zorder=1)
        if numbers and (value or src != dst):
            middle(
                axes, dst, src, short(value / factor), on_color(color) if value else "#b9b7b0", size
            )
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    if numbers:  # one more column and row: the totals that each rank sent and received
        for r in range(N):
            for place, total in (((N, r), matrix[r].sum()), ((r, N), matrix[:, r].sum())):
                middle(axes, *place, short(total / factor), size=size)
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
    pairs = [f"{s} to {d} {matrix[s, d]:,}" for s, d in np.argwhere(matrix)[:32]]
    look = (
        f"In {scaled_unit}: the row's rank sends to the column's. All together "
        f"{short(matrix.sum() / factor)}."
    )
    what = f"Matrix of the {unit} that each of {N} ranks sent to each other."
    return figure, traffic_claim(matrix, unit), look, what, f"Rank to rank: {', '.join(pairs)}."


def traffic_claim(matrix, unit):
    """The pattern of a traffic matrix, in words."""
    N, sends = len(matrix), matrix.sum(1)
    factor, scaled_unit = scale(sends.max(), unit)
    most = f"{short(sends.max() / factor)} {scaled_unit}"
    off = ~np.eye(N, dtype=bool)
    if not matrix.any():
        return "Nothing was sent"
    if N > 2 and all(matrix[r].sum() == matrix[r, (r + 1) % N] > 0 for r in range(N)):
        each = f"{most} each" if len(set(sends)) == 1 else f"at most {most}"
        return f"A ring: a rank sends only to the next, {each}"
    if (matrix[off] == matrix[off][0]).all() and not matrix[~off].any():
        return f"Every rank sends every other the same: {most} each in all"
    for hub in range(N):
        if N > 2 and matrix.sum() == matrix[hub].sum() + matrix[:, hub].sum():
            return f"A star: every message starts or ends at rank {hub}"
    if len(set(sends)) == 1:
        return f"Every rank sends the same amount, {most}"
    return f"Rank {sends.argmax()} sends most: {most}, {sends.max() / sends.sum():.0%} of all"


def exchange_matrix(rows, title=None):
    """Which rank sends how many routed tokens to which, as a `traffic_matrix`. The title names the
    rank that receives most, because all others wait for it.

    rows: (N, N), [src, dst]. The diagonal holds the tokens that stay on their rank and are not
    sent. Raises ValueError for another shape, or a value below 0.
    """
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.shape[0] != rows.shape[1] or rows.size == 0 or (rows < 0).any():
        raise ValueError(
            f"an exchange is N x N numbers of tokens, [src, dst], none below 0; got shape "
            f"{rows.shape}"
        )
    got, busiest = rows.sum(0), int(rows.sum(0).argmax())
    if not rows.any():
        claim = "No rank has a token for any rank"
    elif got.max() == got.min():
        claim = f"Even: every rank's experts get {got[0]:,} routed tokens"
    else:
        claim = (
            f"Rank {busiest}'s experts get {got[busiest]:,} of {rows.sum():,} routed tokens, "
            f"{amount(got[busiest] / got.mean())} times their share"
        )
    drawing = traffic_matrix(rows, "tokens", title or claim)
    return dataclasses.replace(drawing, alt=f"{claim}. {drawing.alt}")


@drawing
def server_traffic(matrices, predicted=None):
    """A panel per method, a bar per rank: the bytes that it sent (below) and received (above) in
    one step.

    matrices: {"parameter server": (N, N), "ring": (N, N)}, [src, dst], from
    `Ledger.matrix("bytes")` of one step; 1 to 4. predicted: {"ring": (N,) bytes, ...}, per rank,
    sent and received together; dashed. Raises ValueError for any other number of methods, other
    shapes, or if no method sent anything.
    """
    matrices, predicted = {name: np.asarray(m) for name, m in matrices.items()}, predicted or {}
    if not 1 <= len(matrices) <= 4 or not any(m.any() for m in matrices.values()):
        raise ValueError(
            f"{len(matrices)} matrices of bytes: give 1 to 4, of steps that sent something"
        )
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
            raise ValueError(
                f"{name}: a traffic matrix is N x N, [src, dst]; got shape {matrix.shape}"
            )
        if name in predicted and np.shape(predicted[name]) != (len(matrix),):
            raise ValueError(
                f"{name}: {np.shape(predicted[name])} predictions for {len(matrix)} ranks, give "
                f"one each"
            )
    carried = {name: m.sum(1) + m.sum(0) for name, m in matrices.items()}  # (N,) sent + received
    most = max(c.max() for c in carried.values())
    factor, unit = scale(most, "bytes")

    figure, panels = page(
        3.6,
        columns=len(matrices),
        sharey=True,
        gridspec_kw={"width_ratios": [len(m) for m in matrices.values()]},
    )
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=True):
        N = len(matrix)
        _bars(axes, matrix / factor, most / factor, np.asarray(predicted.get(name, ())) / factor)
        axes.set(xlim=(-0.6, N - 0.4), ylim=(0, 1.14 * most / factor), xlabel="rank")
        axes.set_xticks(range(N), range(N))
        color_names(axes.get_xticklabels(), map(rank_color, range(N)))
        axes.tick_params(axis="x", length=0)
        heading(axes, name)
    panels[0].set_ylabel(f"{unit} through its link, per step")
    words = each(
        carried, lambda _, of_ranks: ", ".join(f"rank {r} {n:,}" for r, n in enumerate(of_ranks))
    )
    foretold = {f"Predicted, {name}": of_ranks for name, of_ranks in predicted.items()}
    words += f" {each(foretold, lambda _, of_ranks: ', '.join(f'{n:,.0f}' for n in of_ranks))}"
    look = "A bar is what a rank sent (solid) and received (hatched) in one step."
    look += " Dashed lines are predictions." * bool(predicted)
    return figure, _server_claim(carried, factor, unit), look, "Bars of bytes per rank.", words


def _bars(axes, matrix, most, predicted):
    """What each rank sent and received, stacked, and dashed lines for what was predicted, which is
    (N,) or empty."""
    busiest = (matrix.sum(1) + matrix.sum(0)).argmax()
    for rank in range(len(matrix)):
        sent, received, color = matrix[rank].sum(), matrix[:, rank].sum(), rank_color(rank)
        box(axes, rank - 0.36, 0, 0.72, sent, color, ec=color)
        box(axes, rank - 0.36, sent, 0.72, received, PAPER, ec=color, hatch="/////")
        axes.annotate(amount(sent + received), (rank, sent + received), xytext=(0, 3), ha="center",
                      va="bottom",
                      textcoords="offset points", weight="bold", size=9)  # fmt: skip
        if rank == busiest and sent > 0.12 * most:
            middle(axes, rank, sent / 2, "sent", on_color(color), 8.5)
        if rank == busiest and received > 0.12 * most:
            middle(axes, rank, sent + received / 2, "received", size=8, bbox=paper(0.12))
    for rank, y in enumerate(predicted):
        axes.plot([rank - 0.47, rank + 0.47], [y, y], color=INK, ls=DASHES, lw=1.8, zorder=4)


def _server_claim(carried, factor, unit):
    """What the link of the busiest rank carries, with the method for which this is most and with
    the method for which it is least."""
    words = lambda n_bytes: f"{amount(n_bytes / factor)} {unit}"
    worst, best = (pick(carried, key=lambda name: carried[name].max()) for pick in (max, min))
    busiest = carried[worst].argmax()
    claim = f"{capital(worst)}: rank {busiest}'s link carries {words(carried[worst].max())}"
    if carried[worst].max() == carried[best].max():
        return claim
    who = "every rank's" if len(set(carried[best])) == 1 else "at most"
    return f"{claim}; {best}: {who} {words(carried[best].max())}"
