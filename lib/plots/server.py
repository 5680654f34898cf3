"""What each rank's link carries in one step: through a server, or round a ring."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.labels import scale, short
from lib.plots.style import INK, PAPER, finish, on_color, rank_color, styled


@styled
def server_traffic(matrices, predicted=None, title=None, note=""):
    """A panel per method, a bar per rank: the bytes that it sent (below) and got (above) in one step.

    matrices: {"parameter server": (N, N), "ring": (N, N)}, [src, dst], from `Ledger.matrix("bytes")` of one step.
    predicted: {"ring": (N,) bytes, ...}, sent and received together, per rank; drawn dashed.
    note: a sentence to begin the caption with, such as the size of the model.
    """
    matrices, predicted = {name: np.asarray(m) for name, m in matrices.items()}, predicted or {}
    if not 1 <= len(matrices) <= 4 or not any(m.any() for m in matrices.values()):
        raise ValueError(f"{len(matrices)} matrices of bytes: give 1 to 4, of steps that sent something")
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
            raise ValueError(f"{name}: a traffic matrix is N x N, [src, dst]; got shape {matrix.shape}")
        if name in predicted and np.shape(predicted[name]) != (len(matrix),):
            raise ValueError(f"{name}: {np.shape(predicted[name])} predictions for {len(matrix)} ranks, give one each")
    carried = {name: m.sum(1) + m.sum(0) for name, m in matrices.items()}  # (N,) sent + received
    most = max(c.max() for c in carried.values())
    factor, unit = scale(most, "bytes")

    figure = Figure(figsize=(8, 3.6))
    panels = figure.subplots(1, len(matrices), squeeze=False, sharey=True,
                             gridspec_kw={"width_ratios": [len(m) for m in matrices.values()]})[0]  # fmt: skip
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=True):
        N = len(matrix)
        for rank in range(N):
            sent, received = matrix[rank].sum() / factor, matrix[:, rank].sum() / factor
            color = rank_color(rank)
            axes.add_patch(Rectangle((rank - 0.36, 0), 0.72, sent, fc=color, ec=color, lw=0.8))
            axes.add_patch(Rectangle((rank - 0.36, sent), 0.72, received, fc=PAPER, ec=color, hatch="/////", lw=0.8))
            total = short(float(f"{sent + received:.3g}"))
            axes.annotate(total, (rank, sent + received), xytext=(0, 3), textcoords="offset points", ha="center",
                          va="bottom", weight="bold", size=9)  # fmt: skip
            if sent * factor > 0.12 * most and rank == carried[name].argmax():
                axes.text(rank, sent / 2, "sent", ha="center", va="center", size=8.5, color=on_color(color))
            if received * factor > 0.12 * most and rank == carried[name].argmax():
                axes.text(rank, sent + received / 2, "got", ha="center", va="center", size=8.5,
                          bbox={"boxstyle": "round,pad=0.12", "fc": PAPER, "ec": "none"})  # fmt: skip
            if name in predicted:
                y = predicted[name][rank] / factor
                axes.plot([rank - 0.47, rank + 0.47], [y, y], color=INK, ls=(0, (3, 1.6)), lw=1.8, zorder=4)
        axes.set(xlim=(-0.6, N - 0.4), ylim=(0, 1.14 * most / factor))
        axes.set_xticks(range(N), [f"{r}" for r in range(N)])
        for label, rank in zip(axes.get_xticklabels(), range(N), strict=True):
            label.set(color=rank_color(rank), weight="bold")
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("rank")
        axes.set_title(name, loc="left", size=10, weight="bold")
    panels[0].set_ylabel(f"{unit} through its link, per step")
    claim = _claim(carried, factor, unit)
    dashes = " Dashed: the prediction." if predicted else ""
    return finish(
        figure,
        title or claim,
        f"{note} A bar is what a rank sent (solid) and got (hatched) in one step.{dashes}".strip(),
        f"Bars of bytes per rank. {claim}. {note} "
        + " ".join(
            f"{name}: " + ", ".join(f"rank {r} {n:,}" for r, n in enumerate(of_ranks)) + "."
            for name, of_ranks in carried.items()
        )
        + "".join(
            f" Predicted, {name}: " + ", ".join(f"{n:,.0f}" for n in of_ranks) + "."
            for name, of_ranks in predicted.items()
        ),
    )


def _claim(carried, factor, unit):
    """The busiest rank of the method that is hardest on one rank, against the method that is easiest."""
    words = lambda n_bytes: f"{short(float(f'{n_bytes / factor:.3g}'))} {unit}"
    worst, best = (pick(carried, key=lambda name: carried[name].max()) for pick in (max, min))
    busiest = carried[worst].argmax()
    claim = f"{worst[0].upper()}{worst[1:]}: rank {busiest}'s link carries {words(carried[worst].max())}"
    if carried[worst].max() == carried[best].max():
        return claim
    who = "every rank's" if len(set(carried[best])) == 1 else "at most"
    return f"{claim}; {best}: {who} {words(carried[best].max())}"
