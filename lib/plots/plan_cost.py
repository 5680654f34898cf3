"""One plan beside the best one: its memory against the GPU's, and its step, part by part."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.cost.hardware import GIB
from lib.plots.boxes import amount
from lib.plots.components import BYTES, SECONDS, draw_bar, draw_key, grouped
from lib.plots.labels import short
from lib.plots.style import ALARM, FAINT, INK, OP_COLOR, PAPER, finish, styled


@styled
def plan_cost(plans, memory, room, title=None, note=""):
    """Two panels, a bar per plan in each: bytes on the fullest GPU, and seconds of a step, by component.

    plans: {"yours": ({component: bytes}, {component: seconds}), "the best": ...}, 1 to 3, as of
    `lib.cost.memory.memory` and `lib.cost.step.step_seconds`; the first is the one that the title speaks of.
    memory: of a GPU, bytes; room: how many of them a plan may need. note: a sentence to begin the caption with.
    Raises ValueError for another number of plans, or components that are not known.
    """
    if not 1 <= len(plans) <= 3:
        raise ValueError(f"{len(plans)} plans: 1 to 3 can be read")
    needs = {name: grouped({c: n / GIB for c, n in parts.items()}, BYTES) for name, (parts, _) in plans.items()}
    takes = {name: grouped(seconds, SECONDS) for name, (_, seconds) in plans.items()}
    usable, whole = room / GIB, memory / GIB
    figure = Figure(figsize=(8, min(4.0, 2.75 + 0.32 * len(plans))))
    upper, lower = figure.subplots(2)
    largest = max(sum(parts.values()) for parts in needs.values())
    ends = 1.02 * max(largest, 1.03 * whole), 1.02 * max(sum(parts.values()) for parts in takes.values())
    for axes, rows, colors, end, unit in ((upper, needs, BYTES, ends[0], "GiB"), (lower, takes, SECONDS, ends[1], "s")):
        for row, found in enumerate(rows.values()):
            total = draw_bar(axes, row, found, colors, end, 5.8, amount)
            over = unit == "GiB" and total > usable
            if over:
                axes.add_patch(Rectangle((usable, row - 0.33), total - usable, 0.66, fc="none", ec=PAPER, hatch="////",
                                         lw=0, zorder=3))  # fmt: skip
            axes.annotate(f"{amount(total)} {unit}", (1.015, row), xycoords=("axes fraction", "data"), weight="bold",
                          va="center_baseline", color=ALARM if over else INK)  # fmt: skip
        axes.set(xlim=(0, end), ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.grid(axis="x", color=OP_COLOR["idle"], lw=0.7)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        draw_key(axes, set().union(*rows.values()), colors)
    upper.axvspan(usable, whole, color=FAINT, alpha=0.28, lw=0, zorder=0)
    upper.axvline(whole, color=INK, lw=1.6, zorder=4)
    upper.axvline(usable, color=INK, lw=1.2, ls=(0, (3, 1.6)), zorder=4)
    upper.set_xlabel("memory of the fullest GPU (GiB)", loc="left")
    lower.set_xlabel("time of a step (s)", loc="left")
    first = next(iter(plans))
    gib, seconds = sum(needs[first].values()), sum(takes[first].values())
    fits = "fits" if gib <= usable else "does not fit"
    claim = f"{first} {fits}: {amount(gib)} of {usable:.0f} GiB; {amount(seconds)} s a step"
    return finish(
        figure,
        title or f"{claim[0].upper()}{claim[1:]}",
        f"{note} tp, pp, dp: messages along that axis. Upright: the GPU's {whole:.0f} GiB; grey: left for peaks that "
        "are not modelled.".strip(),
        f"Bars of memory and of the time of a step, by component. {f'{title}. ' if title else ''}{claim}. {note} "
        + " ".join(
            f"{name}: {amount(sum(needs[name].values()))} GiB ({_listed(needs[name])}); "
            f"{amount(sum(takes[name].values()))} s ({_listed(takes[name])})."
            for name in plans
        ),
    )


def _listed(parts):
    return ", ".join(f"{part} {amount(value)}" for part, value in parts.items())
