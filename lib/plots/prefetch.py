"""Compute and communication of one rank, with and without prefetching: do the parameters of the
next unit arrive while this one computes?

FSDP         compute       [ 0 ]     [ 1 ]     [ 2 ]
             wire     [g 0]     [g 1]     [g 2]
prefetching  compute       [ 0 ][ 1 ][ 2 ]
             wire     [g 0][g 1][g 2]
"""

from lib.plots.draw import box, heading, page, paper, rows, time_axis
from lib.plots.labels import amount, capital, each
from lib.plots.steps import hidden_share
from lib.plots.style import INK, OP_COLOR, PAPER, drawing

LANES = ("compute", "wire")
COLOR = {
    "forward": OP_COLOR["F"],
    "backward": OP_COLOR["B"],
    "update": OP_COLOR["W"],
    "gather": OP_COLOR["collective"],
    "reduce": "#9a6fb5",
    "experts": OP_COLOR["F"],
    "shared": OP_COLOR["W"],
    "dispatch": OP_COLOR["collective"],
    "combine": "#9a6fb5",
}


@drawing
def prefetch_timeline(steps):
    """A panel per way to run the step, one above the other on one time axis, each with a lane for
    compute and one for the wire.

    steps: {"FSDP": [(lane, begin, end, label), ...], "prefetching": [...]} of one rank, in seconds;
    1 to 3 of them. lane: "compute" or "wire". label: the kind of work and its unit, which is
    written in the box: "forward 0", "backward 0", "update", "gather 0", "reduce 0"; for a mixture
    of experts "experts A", "shared A", "dispatch A", "combine A", where A is a half of the batch.
    Raises ValueError for any other number of steps, an empty one, another lane or label, or a box
    that ends before it begins.
    """
    if not 1 <= len(steps) <= 3 or not all(steps.values()):
        raise ValueError(
            f"{ {name: len(of) for name, of in steps.items()} } boxes: give 1 to 3 steps, none "
            f"empty"
        )
    for name, boxes in steps.items():
        for lane, begin, end, label in boxes:
            if lane not in LANES or label.split()[0] not in COLOR or not begin <= end:
                raise ValueError(
                    f"{name}: ({lane!r}, {begin}, {end}, {label!r}): give a lane of "
                    f"{', '.join(LANES)}, an end that is not before its begin, and a label that "
                    f"begins with one of {', '.join(COLOR)}"
                )
    zero = {name: min(begin for _, begin, _, _ in boxes) for name, boxes in steps.items()}
    seconds = {
        name: max(end for _, _, end, _ in boxes) - zero[name] for name, boxes in steps.items()
    }
    hidden = {name: _hidden(boxes) for name, boxes in steps.items()}
    longest = max(seconds.values())

    figure, panels = page(1.3 + 0.95 * len(steps), rows=len(steps), sharex=True)
    for axes, (name, boxes) in zip(panels, steps.items(), strict=True):
        end = 1e3 * seconds[name]
        for y in range(len(LANES)):
            box(axes, 0, y - 0.42, end, 0.84, OP_COLOR["idle"], ec="none", zorder=0)
        for lane, begin, until, label in boxes:
            kind, _, unit = label.partition(" ")
            wide, color = (until - begin) / longest * 6.6, COLOR[kind]  # inches
            edge = PAPER if wide > 0.06 else color  # else a narrow box would be all edge
            box(axes, 1e3 * (begin - zero[name]), LANES.index(lane) - 0.42, 1e3 * (until - begin),
                0.84, color, unit,
                wide, ec=edge, lw=0.7)  # fmt: skip
        _bracket(axes, end, f"{amount(end)} ms")
        rows(axes, LANES)
        axes.set(xlim=(0, 1.02e3 * longest), ylim=(1.5, -1.15))
        axes.tick_params(axis="x", length=3 if axes is panels[-1] else 0)
        axes.spines["bottom"].set_visible(axes is panels[-1])
        heading(axes, f"{name}: {hidden[name]:.0%} of the communication hidden", pad=2)
    kinds = {label.split()[0] for boxes in steps.values() for *_, label in boxes}
    time_axis(panels[-1], "ms", {kind: COLOR[kind] for kind in COLOR if kind in kinds})
    before, last, after = (
        next(iter(seconds.values())),
        list(seconds)[-1],
        list(seconds.values())[-1],
    )
    claim = f"{capital(last)}: {amount(1e3 * after)} ms"
    claim += (
        f" instead of {amount(1e3 * before)}" * (len(steps) > 1)
        + f", {hidden[last]:.0%} of communication hidden"
    )
    words = lambda name, boxes: (
        f"{amount(1e3 * seconds[name])} ms, {hidden[name]:.0%} of the communication hidden; "
        + ", ".join(
            f"{label} from {amount(1e3 * (begin - zero[name]))} to "
            f"{amount(1e3 * (end - zero[name]))} ms"
            for _, begin, end, label in boxes[:40]
        )
    )
    return (
        figure, claim,
        "All panels share one time axis. A box is labelled with its unit. Communication is "
        "hidden while it overlaps with compute.",
        "Timeline of a rank's compute and of its wire, a panel per way to run a step.",
        each(steps, words),
    )  # fmt: skip


def _hidden(boxes):
    """The share of the wire's time during which the rank computes, 0 to 1."""
    lane_of = {"compute": "compute", "wire": "network"}
    return hidden_share(
        [(0, lane_of[lane], label, begin, end) for lane, begin, end, label in boxes]
    )


def _bracket(axes, end, text):
    """A bracket from 0 to `end` above the lanes, with its text."""
    axes.plot([0, 0, end, end], [-0.62, -0.82, -0.82, -0.62], color=INK, lw=1.2, clip_on=False,
              zorder=2,
              solid_joinstyle="miter")  # fmt: skip
    axes.text(end / 2, -0.82, text, ha="center", va="center_baseline", weight="bold", zorder=3,
              bbox=paper(0.2))  # fmt: skip
