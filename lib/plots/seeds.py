"""Runs with several seeds, compared seed by seed: is a difference between two runs larger than the
differences between seeds?

0 |=================== dense          line: the mean over the seeds of (run - dense),
                                      at the same seed and step
  |  ````----.....____                band: from the smallest to the largest of the seeds
  |          o        ```` 8 experts  dot: a run on this machine
"""

import numpy as np

from lib.plots.draw import grid, heading, named_ends, numbers, page
from lib.plots.labels import capital, each, few
from lib.plots.style import PAPER, RANK_COLORS, drawing


@drawing
def seed_differences(steps, losses, against, here=None):
    """The loss of each run minus that of the run `against` with the same seed, over steps: a line
    and a band per run.

    steps: (n,). losses: {run: (seeds, n) nats per character}, with `against` among them and 1 to 4
    others. here: {run: (steps, differences)} of runs on this machine, drawn as dots. Raises
    ValueError for any other number of runs, other shapes than (seeds, n), or dots of a run that is
    not drawn.
    """
    here, losses = here or {}, {run: np.asarray(of, dtype=float) for run, of in losses.items()}
    others = [run for run in losses if run != against]
    if against not in losses or not 1 <= len(others) <= 4 or not {*here} <= {*others}:
        raise ValueError(f"runs {', '.join(losses)} against {against}, dots of "
                         f"{', '.join(here) or 'none'}: give that "
                         "run, 1 to 4 others, and dots of those")  # fmt: skip
    shapes = {of.shape for of in losses.values()}
    if shapes != {(len(losses[against]), len(steps))} or len(steps) < 2:
        raise ValueError(
            f"losses {shapes} at {len(steps)} steps: give (seeds, steps) of each run, 2 steps or "
            f"more"
        )
    apart = {run: losses[run] - losses[against] for run in others}
    color = dict(zip(others, RANK_COLORS[1:], strict=False))
    figure, axes = page(3.9)
    for run, of in apart.items():
        axes.fill_between(steps, of.min(0), of.max(0), color=color[run], alpha=0.25, lw=0, zorder=2)
        axes.plot(steps, of.mean(0), color=color[run], zorder=3)
        axes.plot(*here.get(run, ([], [])), lw=0, marker="o", ms=6, mfc=PAPER, mec=color[run],
                  mew=1.8, zorder=4)  # fmt: skip
    axes.axhline(0, color=RANK_COLORS[0], lw=1.6, zorder=2)
    every = [
        0.0,
        *(v for of in apart.values() for v in of.flat),
        *(v for _, y in here.values() for v in y),
    ]
    room = 0.05 * (max(every) - min(every))
    axes.set(xlim=(steps[0], steps[-1]), ylim=(min(every) - room, max(every) + room), xlabel="step",
             ylabel=f"loss minus {against}'s (nats)")  # fmt: skip
    ends = [
        (f"{run} {of[:, -1].mean():+.3f}", of[:, -1].mean(), color[run])
        for run, of in apart.items()
    ]
    named_ends(axes, [(against, 0.0, RANK_COLORS[0]), *ends], 0.075)
    grid(axes, "y")
    numbers(axes.xaxis)
    seeds = len(losses[against])
    found = {run: of[:, -1] for run, of in apart.items()}
    claim = f"After {steps[-1]:,} steps, against {against}: " + "; ".join(
        f"{run} {of.min():+.3f} to {of.max():+.3f}" for run, of in list(found.items())[:2]
    )
    dots = " The dots were made here." * bool(here)
    words = lambda _, of: ", ".join(_at(steps[i], of[:, i], "+.3f") for i in few(len(steps)))
    look = (
        f"A line is the mean of {seeds} seeds, and a band reaches from the lowest to the highest."
    )
    look += dots
    what = f"Validation loss minus that of {against} with the same seed, against steps."
    return figure, claim, look, what, each(apart, words)


def _at(step, of, digits):
    """The mean, smallest and largest of the seeds' values at a step, in words."""
    return f"{of.mean():{digits}} ({of.min():{digits}} to {of.max():{digits}}) at {step:,.0f}"


@drawing
def seed_losses(steps, losses, seconds, here=None):
    """The same losses twice: over steps, and over the seconds that these steps take. The time axis
    ends when the first run does, because all runs can be compared only up to there.

    steps: (n,). losses: {run: (seeds, n) nats per character} of 2 to 4 runs, a line and a band
    each. seconds: {run: seconds of one step}. here: {run: (steps, losses)} of runs on this machine,
    drawn as dots. Raises ValueError for any other number of runs, other shapes than (seeds, n), or
    other runs in `seconds` or `here`.
    """
    here, steps = here or {}, np.asarray(steps, dtype=float)
    losses = {run: np.asarray(of, dtype=float) for run, of in losses.items()}
    shapes = {of.shape for of in losses.values()}
    if not 2 <= len(losses) <= 4 or {*seconds} != {*losses} or not {*here} <= {*losses}:
        raise ValueError(f"runs {', '.join(losses)}, seconds of {', '.join(seconds)}, dots of "
                         f"{', '.join(here)}: give "
                         "2 to 4 runs, the seconds of each, and dots of those")  # fmt: skip
    if len(shapes) != 1 or len(steps) < 2 or next(iter(shapes))[1:] != steps.shape:
        raise ValueError(
            f"losses {shapes} at {len(steps)} steps: give (seeds, steps) of each run, 2 steps or "
            f"more"
        )
    color = dict(zip(losses, RANK_COLORS, strict=False))
    until = min(steps[-1] * seconds[run] for run in losses)
    figure, panels = page(3.6, columns=2, sharey=True)
    at_last = {}
    for axes, of_step, what, end in (
        (panels[0], dict.fromkeys(losses, 1.0), "steps", steps[-1]),
        (panels[1], seconds, "seconds", until)
    ):  # fmt: skip
        for run, of in losses.items():
            x, y = steps * of_step[run], of.mean(0)
            axes.fill_between(x, of.min(0), of.max(0), color=color[run], alpha=0.25, lw=0, zorder=2)
            axes.plot(x, y, color=color[run], zorder=3)
            dots_at, dots = here.get(run, ([], []))
            axes.plot(np.multiply(dots_at, of_step[run]), dots, lw=0, marker="o", ms=5, mfc=PAPER,
                      mec=color[run],
                      mew=1.6, zorder=4)  # fmt: skip
            at_last[what, run] = float(np.interp(end, x, y))
        axes.set(xlim=(0, end), xlabel=what)
        heading(axes, f"as many {what}")
        grid(axes, "y")
        numbers(axes.xaxis)
    every = np.concatenate(
        [*map(np.ravel, losses.values()), *(np.ravel(of) for _, of in here.values())]
    )
    room = 0.05 * (every.max() - every.min())
    panels[0].set(ylim=(every.min() - room, every.max() + room), ylabel="loss (nats per character)")
    claims = []
    for axes, what, end in zip(panels, ("steps", "seconds"), (steps[-1], until), strict=True):
        last = {run: at_last[what, run] for run in losses}
        name = "{} {:.2f}" if axes is panels[-1] else "{1:.2f}"
        named_ends(axes, [(name.format(run, y), y, color[run]) for run, y in last.items()], 0.075)
        first, second = sorted(last, key=last.get)[:2]
        claims.append(f"after {end:,.0f} {what} {first} is {last[second] - last[first]:.2f} lower")
    seeds = len(next(iter(losses.values())))
    look = (
        f"A line is the mean of {seeds} seeds, and a band reaches from the lowest to the highest."
    )
    words = lambda _, of: ", ".join(_at(steps[i], of[:, i], ".3f") for i in few(len(steps)))
    said = each(
        {f"{run}, {1e3 * seconds[run]:.3g} ms a step": of for run, of in losses.items()}, words
    )
    look += " The dots were made here." * bool(here)
    return (
        figure,
        capital("; ".join(claims)),
        look,
        "Validation losses against steps and against seconds.",
        said,
    )
