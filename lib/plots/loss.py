"""The loss of training runs, next to the entropy that a model without context cannot beat."""

import itertools

import numpy as np
from matplotlib.ticker import MaxNLocator

from lib.plots.draw import grid, named_ends, page
from lib.plots.style import FAINT, PAPER, RANK_COLORS, drawing


@drawing
def loss_curve(steps, losses, entropy, others=None):
    """Loss against step, with a dashed line at the unigram entropy of the text. A model that does
    not use context cannot get below that line.

    steps, losses: (n,) of the training run, in nats per character. entropy: nats per character.
    others: {"validation": (steps, losses), ...}, drawn as points on top of the line, so that both
    can be seen where they are equal. Raises ValueError for empty lists or lists of unequal length,
    or a loss that is not finite.
    """
    series = {"training": (steps, losses), **(others or {})}
    _refuse(series, "steps")
    figure, axes = page(3.6)
    for i, (x, y) in enumerate(series.values()):
        points = {
            "lw": 0,
            "marker": "o",
            "ms": 5.5,
            "mfc": PAPER,
            "mew": 1.8,
            "clip_on": False,
            "zorder": 3,
        }
        axes.plot(x, y, color=RANK_COLORS[i], **points if i else {"lw": 1.6})
    _dress(axes, series, entropy, "step", 2)
    final = float(series[list(series)[-1]][1][-1])
    under = "below" if final < entropy else "still above"
    falls = [
        f"{n} falls from {y[0]:.2f} at step {x[0]} to {y[-1]:.2f} at step {x[-1]}"
        for n, (x, y) in series.items()
    ]
    return (
        figure,
        f"The loss ends {abs(entropy - final):.2f} nats {under} the entropy of single characters",
        "Below the dashed line the model must be using context: it knows more than how frequent "
        "each character is.",
        "Line chart of loss against step.",
        f"{'; '.join(falls)}. A dashed line marks the unigram entropy, {entropy:.2f} nats per "
        f"character.",
    )  # fmt: skip


@drawing
def loss_curves(runs, entropy=None, xlabel="step", note=""):
    """The losses of several runs. If runs are nearly equal, the first line is broad and each
    following one narrower, so that all of them can be seen.

    runs: {"one process": (x, losses), "4 ranks": (x, losses), ...}, losses in nats per character;
    the others are compared with the first. entropy: the unigram entropy of the text, drawn as a
    dashed line. xlabel: what x counts. Raises ValueError for fewer than 2 runs or more than 8,
    empty lists or lists of unequal length, or a loss that is not finite.
    """
    _refuse(runs, "x")
    if not 2 <= len(runs) <= len(RANK_COLORS):
        raise ValueError(f"{len(runs)} runs: 2 to {len(RANK_COLORS)} can be told apart")
    figure, axes = page(3.8)
    apart = _apart(runs)
    same = apart is not None and apart < 1e-3
    near = same or _some_are_near(runs)
    broad, narrow = (9 if same else 6, 1.5) if near else (1.8, 1.8)
    for i, ((x, y), width) in enumerate(
        zip(runs.values(), np.linspace(broad, narrow, len(runs)), strict=True)
    ):
        axes.plot(x, y, color=RANK_COLORS[i], lw=width, solid_capstyle="butt", zorder=2 + i)
    _dress(axes, runs, entropy, xlabel, 3)
    final = {name: float(y[-1]) for name, (_, y) in runs.items()}
    best, worst = min(final, key=final.get), max(final, key=final.get)
    if same:
        claim = (
            f"{len(runs)} runs, one curve: no loss differs by more than {_exponent(apart)} of its "
            f"value"
        )
    else:
        claim = f"{best} ends lowest, at {final[best]:.2f}; {worst} at {final[worst]:.2f}"
    look = (
        "Where lines lie on each other, the first is the broadest." * near
        or f"Loss against {xlabel}." * (not note)
    )
    dashed = (
        ""
        if entropy is None
        else f" A dashed line marks the unigram entropy, {entropy:.3f} nats per character."
    )
    falls = [
        f"{n} falls from {y[0]:.3f} at {x[0]:,} to {y[-1]:.3f} at {x[-1]:,}"
        for n, (x, y) in runs.items()
    ]
    return (
        figure,
        claim,
        look,
        f"Line chart of loss against {xlabel}.",
        f"{'; '.join(falls)}.{dashed}",
    )


def _refuse(runs, what):
    for name, (x, y) in runs.items():
        if np.ndim(x) != 1 or np.shape(x) != np.shape(y) or len(x) == 0:
            raise ValueError(
                f"{name}: {what} {np.shape(x)} and losses {np.shape(y)} must be two lists of one "
                f"length"
            )
        if not np.isfinite(y).all():
            raise ValueError(
                f"{name}: loss {np.asarray(y)[~np.isfinite(y)][0]} cannot be drawn: did the run "
                f"diverge?"
            )


def _dress(axes, runs, entropy, xlabel, digits):
    """Set the limits, write names and last losses where the lines end, and draw the entropy,
    dashed, if it is given."""
    ends = [(f"{name} {y[-1]:.{digits}f}", float(y[-1]), color)
            for (name, (_, y)), color in zip(runs.items(), RANK_COLORS, strict=False)]  # fmt: skip
    every = [value for _, y in runs.values() for value in y]
    if entropy is not None:
        axes.axhline(entropy, color=FAINT, ls=(0, (5, 3)), lw=1.4)
        ends.append((f"unigram entropy {entropy:.{digits}f}", entropy, FAINT))
        every.append(entropy)
    low, high = min(every), max(every)
    room = 0.06 * (high - low or 1)
    axes.set(xlim=(min(x[0] for x, _ in runs.values()), max(x[-1] for x, _ in runs.values())),
             ylim=(low - room, high + room), xlabel=xlabel,
             ylabel="loss (nats per character)")  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    named_ends(axes, ends, 0.076)
    grid(axes, "y")


def _apart(runs):
    """The largest difference from the first run's loss, as a share of that loss; None if the runs
    have different x."""
    (x, reference), *others = runs.values()
    if any(list(other) != list(x) for other, _ in others):
        return None
    return max(
        float(np.max(np.abs(np.subtract(y, reference)) / np.abs(reference))) for _, y in others
    )


def _some_are_near(runs):
    """Whether any two of the lines are so close that one would hide the other."""
    pairs = itertools.combinations(runs.items(), 2)
    return any((apart := _apart(dict(pair))) is not None and apart < 0.01 for pair in pairs)


def _exponent(share):
    """0.0000123 -> "1e-05": rounded to one digit, an exact half upwards; 0 stays 0."""
    return "0" if share == 0 else f"{share * 1.0000001:.0e}"
