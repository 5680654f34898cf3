"""The loss of a training run, beside the entropy that a model without context cannot beat."""

import numpy as np
from matplotlib.figure import Figure

from lib.plots.labels import spread
from lib.plots.style import FAINT, OP_COLOR, PAPER, RANK_COLORS, finish, styled


@styled
def loss_curve(steps, losses, entropy, others=None, title=None):
    """Loss against step, beside the unigram entropy of the text, which no model without context can beat.

    steps, losses: (n,) of the training run, nats per character. entropy: nats per character.
    others: {"validation": (steps, losses), ...}, drawn as points on top, so that equal curves are both seen.
    """
    series = {"training": (steps, losses), **(others or {})}
    for name, (x, y) in series.items():
        if np.ndim(x) != 1 or np.shape(x) != np.shape(y) or len(x) == 0:
            raise ValueError(f"{name}: steps {np.shape(x)} and losses {np.shape(y)} must be two lists of one length")
        if not np.isfinite(y).all():
            raise ValueError(f"{name}: loss {np.asarray(y)[~np.isfinite(y)][0]} cannot be drawn: did the run diverge?")
    figure = Figure(figsize=(8, 3.6))
    axes = figure.add_subplot()
    last = max(x[-1] for x, _ in series.values())
    ends = []
    for i, (name, (x, y)) in enumerate(series.items()):
        color = RANK_COLORS[i]
        if i == 0:
            axes.plot(x, y, color=color, lw=1.6)
        else:
            axes.plot(x, y, color=color, lw=0, marker="o", ms=5.5, mfc=PAPER, mew=1.8, clip_on=False, zorder=3)
        ends.append((float(y[-1]), f"{name} {y[-1]:.2f}", color))
    axes.axhline(entropy, color=FAINT, ls=(0, (5, 3)), lw=1.4)
    ends.append((entropy, f"unigram entropy {entropy:.2f}", FAINT))
    lowest = min(min(y) for _, y in series.values())
    highest = max(max(y) for _, y in series.values())
    low, high = min(lowest, entropy), max(highest, entropy)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.set_xlim(min(x[0] for x, _ in series.values()), last)
    for y, (_, text, color) in zip(spread([e[0] for e in ends], 0.085 * (high - low)), ends, strict=True):
        axes.annotate(text, (1.015, y), xycoords=("axes fraction", "data"), color=color, va="center", weight="bold")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per character)")
    axes.grid(axis="y", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    final = float(series[list(series)[-1]][1][-1])
    under = "below" if final < entropy else "still above"
    return finish(
        figure,
        title or f"The loss ends {abs(entropy - final):.2f} nats {under} the entropy of single characters",
        "Below the dashed line the model must be using context: it knows more than how frequent each character is.",
        "Line chart of loss against step. "
        + "; ".join(
            f"{n} falls from {y[0]:.2f} at step {x[0]} to {y[-1]:.2f} at step {x[-1]}" for n, (x, y) in series.items()
        )
        + f". A dashed line marks the unigram entropy, {entropy:.2f} nats per character.",
    )
