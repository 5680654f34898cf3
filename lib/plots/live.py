"""Live bytes during a training step, a line per stage of ZeRO: where the peak is, and what remains
after the step."""

from itertools import groupby

from lib.plots.draw import at_edge, grid, numbers, page
from lib.plots.labels import amount, each, scale, spread
from lib.plots.style import FAINT, drawing, stage_color


@drawing
def memory_over_a_step(live):
    """A line per stage: the live bytes after each event of a step, and at the right their maximum.

    live: {"ZeRO-1": [("forward 0", bytes), ("forward 1", bytes), ..., ("backward 0", bytes),
    ("step", bytes)], ...}; 1 to 8 stages with the same events. The first word of an event is
    written below the axis, once for neighbours that share it. Raises ValueError for any other
    number of stages, events that differ, or fewer than 2 events.
    """
    labels = {name: [label for label, _ in events] for name, events in live.items()}
    if (
        not 1 <= len(live) <= 8
        or len(set(map(tuple, labels.values()))) != 1
        or len(next(iter(labels.values()))) < 2
    ):
        raise ValueError(
            f"{ {name: len(of) for name, of in labels.items()} } events: give 1 to 8 stages, all "
            f"of the same 2 or more"
        )
    at = next(iter(labels.values()))
    peak = {name: max(n for _, n in events) for name, events in live.items()}
    factor, unit = scale(max(peak.values()), "bytes")
    figure, axes = page(3.9)
    for i, (name, events) in enumerate(live.items()):
        heights = [n / factor for _, n in events]
        axes.plot(range(len(at)), heights, color=stage_color(name), marker="o", ms=4, lw=2.2,
                  zorder=3 + i, clip_on=False)  # fmt: skip
    top = 1.06 * max(peak.values()) / factor
    axes.set(xlim=(-0.3, len(at) - 0.7), ylim=(0, top), ylabel=f"live memory ({unit})")
    # of two lines that end together, the one with the higher peak gets the upper label
    last = [(events[-1][1] + 1e-6 * peak[name]) / factor for name, events in live.items()]
    for name, y in zip(live, _apart(last, 0.15 * top), strict=True):
        text = f"{name}\nat most {amount(peak[name] / factor)} {unit}"
        at_edge(axes, y, text, va="center", size=9.5, color=stage_color(name))
    _events(axes, at)
    numbers(axes.yaxis)
    grid(axes, "y")
    least, largest = min(peak, key=peak.get), max(peak, key=peak.get)
    in_words = lambda name: f"{name} needs at most {amount(peak[name] / factor)} {unit}"
    when = at[max(range(len(at)), key=lambda i: live[least][i][1])]
    claim = f"{in_words(least)}, in {when}"
    claim += f", and {largest} {amount(peak[largest] / factor)} {unit}" * (largest != least)
    words = lambda _, events: (
        ", ".join(f"{label} {amount(n / factor)}" for label, n in events) + f" {unit}"
    )
    what = "Line chart of live bytes along the events of a training step."
    return (
        figure,
        claim,
        "Bytes that are live on one rank after each event of a step.",
        what,
        each(live, words),
    )


def _apart(places, gap):
    """`spread`, but moved up as a whole if a label would be below the axis."""
    out = spread(places, gap)
    return [y + max(0.0, gap / 2 - min(out)) for y in out]


def _events(axes, at):
    """Write the names of the events below the axis in two rows: at the top each name without its
    first word, and at the bottom the first word, once for neighbours that share it."""
    words = [label.split(" ", 1) for label in at]
    axes.set_xticks(range(len(at)), [rest[0] if rest else "" for _, *rest in words])
    axes.tick_params(axis="x", length=3)
    # one-word events so far; every other one is written higher, so that they do not overlap
    alone = 0
    for word, group in groupby(range(len(at)), key=lambda i: words[i][0]):
        places = list(group)
        higher = len(words[places[0]]) == 1 and alone % 2 == 1
        alone += len(words[places[0]]) == 1
        axes.annotate(word, (sum(places) / len(places), 0), xycoords=("data", "axes fraction"),
                      ha="center",
                      xytext=(0, -15 if higher else -29), textcoords="offset points",
                      va="baseline")  # fmt: skip
        if len(places) > 1:
            axes.plot([places[0] - 0.35, places[-1] + 0.35], [-0.085] * 2, color=FAINT, lw=1.0,
                      clip_on=False,
                      transform=axes.get_xaxis_transform())  # fmt: skip
