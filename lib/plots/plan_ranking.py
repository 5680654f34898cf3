"""The best plans under each other: where each one's step goes, and what it needs of the fullest GPU."""

import textwrap

from matplotlib.figure import Figure

from lib.cost.hardware import GIB
from lib.plots.boxes import amount
from lib.plots.components import SECONDS, draw_bar, draw_key, grouped, name_of
from lib.plots.labels import short
from lib.plots.style import ALARM, INK, OP_COLOR, finish, styled


@styled
def plan_ranking(plans, room, title=None, note=""):
    """A bar per plan of the parts of its step; at its end the seconds, and the memory of the fullest GPU.

    plans: [(plan, {component: seconds}, bytes), ...], 1 to 9, in the order to show: a Plan or words, the components of
    `lib.cost.step.step_seconds`, the memory. room: bytes that a plan may need; the bars of those that need more are
    hatched. note: a sentence to begin the caption with.
    Raises ValueError for another number of plans, or components that are not known.
    """
    if not 1 <= len(plans) <= 9:
        raise ValueError(f"{len(plans)} plans: 1 to 9 can be read")
    names = [name_of(plan) for plan, _, _ in plans]
    parts = [grouped(costs, SECONDS) for _, costs, _ in plans]
    totals, needs = [sum(found.values()) for found in parts], [n_bytes for _, _, n_bytes in plans]
    end = 1.02 * max(totals)
    figure = Figure(figsize=(8, min(4.0, 1.75 + 0.3 * len(plans))))
    axes = figure.add_subplot()
    for row, (found, total, n_bytes) in enumerate(zip(parts, totals, needs, strict=True)):
        fits = n_bytes <= room
        draw_bar(axes, row, found, SECONDS, end, 4.3, amount, hatch=None if fits else "////")
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center_baseline"}
        axes.annotate(f"{amount(total)} s", (1, row), xytext=(48, 0), ha="right", weight="bold", **place)
        axes.annotate(f"{n_bytes / GIB:.0f} GiB", (1, row), xytext=(104, 0), ha="right", weight="bold",
                      color=INK if fits else ALARM, **place)  # fmt: skip
    axes.set(xlim=(0, end), ylim=(len(plans) - 0.5, -0.5), xlabel="time of a step (s)")
    labels = ["\n".join(textwrap.wrap(name, 40)) for name in names]
    axes.set_yticks(range(len(plans)), labels, size=8 if len(plans) > 5 else 8.5, linespacing=0.9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(axis="x", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    draw_key(axes, set().union(*parts), SECONDS)
    fits = [row for row in range(len(plans)) if needs[row] <= room]
    claim = _claim(names, totals, needs, fits, room)
    hatched = " Hatched: does not fit." if len(fits) < len(plans) else ""
    return finish(
        figure,
        title or claim,
        f"{note} tp, pp, dp: messages along that axis. Right: a step, and the memory of the fullest GPU, of "
        f"{room / GIB:.0f} GiB to use.{hatched}".strip(),
        f"Bars of the time of a step, a bar per plan. {claim}. {note} "
        + " ".join(
            f"{name}: {amount(total)} s ({', '.join(f'{part} {amount(s)}' for part, s in found.items())}), "
            f"{n_bytes / GIB:.0f} GiB{'' if row in fits else ', does not fit'}."
            for row, (name, total, found, n_bytes) in enumerate(zip(names, totals, parts, needs, strict=True))
        ),
    )


def _claim(names, totals, needs, fits, room):
    if not fits:
        return f"None of these fits into {room / GIB:.0f} GiB: the smallest needs {min(needs) / GIB:.0f}"
    best = min(fits, key=lambda row: totals[row])
    faster = [row for row in range(len(totals)) if totals[row] < totals[best]]
    least = min((totals[row] for row in fits if row != best), default=None)
    claim = f"Fastest{' that fits' * bool(faster)}: {names[best]}, {amount(totals[best])} s"
    if faster:
        return f"{claim}; {len(faster)} would be faster, but need{'s' * (len(faster) == 1)} too much memory"
    return f"{claim}; the next takes {least / totals[best] - 1:.1%} longer" if least else claim
