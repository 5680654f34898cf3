"""Seconds of a step, predicted beside measured, a row per plan.

tp inside nodes   [ computes      ][msg]            filled: measured       0.31 s (+4%)
                  - - - - - - - - - - -|            dashed: predicted
tp across nodes   [ computes      ][ messages            ]                 0.58 s (-2%)

Where only the prediction is in parts, it has a bar of its own, above the measured one.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.boxes import amount
from lib.plots.labels import short
from lib.plots.memory import PART_COLOR
from lib.plots.style import ALARM, FAINT, INK, OP_COLOR, PAPER, RANK_COLORS, finish, on_color, styled

COLOR = {  # of the parts of a step, as lib.cost.placement and lib.cost.measured call them, in their order
    "step": RANK_COLORS[0],  # all of it
    "computes": OP_COLOR["F"],
    "pipeline": OP_COLOR["F"],
    "messages": OP_COLOR["send"],
    "tensor": OP_COLOR["send"],
    "tied": RANK_COLORS[2],
    "gradients": PART_COLOR["gradients"],
    "update": RANK_COLORS[7],
    "waits": OP_COLOR["idle"],
}


@styled
def step_times(measured, predicted, within=None, title=None, note=""):
    """A bar per plan as measured, and the predicted one as a dashed outline round it.

    measured: {"tp inside nodes": seconds, ...}, or {part: seconds} in place of seconds, with parts of COLOR; 1 to 10
    plans. predicted: the same, of the same plans, such as from `placed_step` or `measured_step`. within: an error, such
    as 0.15: a grey band that far to either side of each prediction, and the title counts what lies in it.
    note: a sentence to begin the caption with.
    Raises ValueError for another number of plans, others predicted, or seconds that are not above 0.
    """
    if not 1 <= len(measured) <= 10 or set(measured) != set(predicted):
        raise ValueError(f"measured {', '.join(measured) or 'nothing'}, predicted {', '.join(predicted) or 'nothing'}: "
                         "give 1 to 10 plans, the same ones")  # fmt: skip
    measured, predicted = _in_parts(measured), {name: _in_parts(predicted)[name] for name in measured}
    took = {name: sum(parts.values()) for name, parts in measured.items()}
    should = {name: sum(parts.values()) for name, parts in predicted.items()}
    most = max([*took.values(), *should.values()])
    factor, unit = (1e3, "ms") if most < 1 else (1.0, "s")
    end = 1.2 * most * (1 + (within or 0) / 2)
    whole = all("step" in parts for parts in measured.values())
    apart = whole and not all("step" in parts for parts in predicted.values())
    figure = Figure(figsize=(8, min(4.0, 1.75 + (0.46 if apart else 0.36) * len(measured))))
    axes = figure.add_subplot()
    for row, (name, parts) in enumerate(measured.items()):
        if apart:
            _stack(axes, row - 0.2, 0.36, predicted[name], factor, end)
            _stack(axes, row + 0.2, 0.3, parts, factor, end)
            _outline(axes, row - 0.2, 0.18, {"step": should[name]}, factor)
        else:
            _stack(axes, row, 0.64, parts, factor, end)
            _outline(axes, row, 0.42, predicted[name], factor)
        off, far = took[name] / should[name] - 1, should[name] * factor
        if within:
            axes.add_patch(Rectangle((far * (1 - within), row - 0.46), 2 * within * far, 0.92, fc=FAINT, alpha=0.28,
                                     ec="none", zorder=1))  # fmt: skip
        outside = within and abs(off) > within
        right = max(took[name], should[name] * (1 + (within or 0))) * factor
        axes.annotate(f"{amount(took[name] * factor)} {unit} ({off:+.0%})", (right, row), xytext=(6, 0), weight="bold",
                      textcoords="offset points", va="center_baseline", color=ALARM if outside else INK, zorder=6,
                      bbox={"boxstyle": "round,pad=0.1", "fc": PAPER, "ec": "none"})  # fmt: skip
    axes.set(xlim=(0, end * factor), ylim=(len(measured) - 0.5, -0.5), xlabel=f"time of a step ({unit})")
    axes.set_yticks(range(len(measured)), measured)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(axis="x", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    drawn = {
        part
        for plans in (measured, predicted if apart else {})
        for parts in plans.values()
        for part in parts
        if parts[part]
    }
    handles = [Rectangle((0, 0), 1, 1, fc=COLOR[part], label=part) for part in COLOR if part in drawn - {"step"}]
    if handles:
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, ncols=8,
                    frameon=False, borderpad=0, handlelength=1.2)  # fmt: skip
    claim = _claim(took, should, within)
    look = "Below, solid: measured. Above, dashed: predicted." if apart else "Filled: measured. Dashed: predicted."
    band = f" Grey: {within:.0%} to either side of it." if within else ""
    return finish(
        figure,
        title or claim,
        f"{note} {look}{band} In brackets: measured over predicted.".strip(),
        f"Bars of the time of a step, measured and predicted. {claim}. {note} "
        + " ".join(
            f"{name}: {_in_words(parts, factor)} {unit} measured, {_in_words(predicted[name], factor)} predicted."
            for name, parts in measured.items()
        ),
    )


def _in_parts(plans):
    """Every plan's seconds as {part: seconds}."""
    found = {name: each if isinstance(each, dict) else {"step": each} for name, each in plans.items()}
    for name, parts in found.items():
        if not set(parts) <= set(COLOR) or not sum(parts.values()) > 0 or min(parts.values()) < 0:
            raise ValueError(f"{name}: {parts} is no time above 0, and none of {', '.join(COLOR)}")
    return found


def _stack(axes, row, height, parts, factor, end):
    """The parts end to end, each with its number where there is room."""
    start = 0.0
    for part in (part for part in COLOR if parts.get(part)):
        size, color = parts[part] * factor, COLOR[part]
        axes.add_patch(Rectangle((start, row - height / 2), size, height, fc=color, ec=PAPER, lw=0.8, zorder=2))
        text = amount(size)
        if len(parts) > 1 and parts[part] / end * 6.2 > 0.085 * len(text) + 0.08:  # inches
            axes.text(start + size / 2, row, text, ha="center", va="center_baseline", size=9 if height > 0.5 else 8,
                      color=on_color(color), zorder=5)  # fmt: skip
        start += size


def _outline(axes, row, half, parts, factor):
    """Dashed, and a little higher than the bar. A part has no left edge: it is the one before's right."""
    start = 0.0
    for part in (part for part in COLOR if parts.get(part)):
        end = start + parts[part] * factor
        axes.plot([start, end, end, start], [row - half, row - half, row + half, row + half], color=INK, lw=1.4,
                  ls=(0, (3, 1.6)), zorder=4)  # fmt: skip
        start = end


def _claim(took, should, within):
    """How many are in the band; or who is slowest, as measured and as predicted."""
    if within:
        inside = [name for name in took if abs(took[name] / should[name] - 1) <= within]
        off = {name: took[name] / should[name] - 1 for name in took}
        worst = max(off, key=lambda name: abs(off[name]))
        claim = f"{len(inside)} of {len(took)} within {within:.0%} of the prediction"
        return f"{claim}; furthest off: {worst}, {off[worst]:+.0%}"
    fast, slow = min(took, key=took.get), max(took, key=took.get)
    if took[fast] == took[slow]:
        return f"{slow} is measured at {took[slow] / should[slow]:.2f} of the prediction"
    claim = f"{slow} takes {amount(took[slow] / took[fast])} times as long as {fast}"
    return f"{claim}, predicted {amount(should[slow] / should[fast])}"


def _in_words(parts, factor):
    total = amount(sum(parts.values()) * factor)
    if "step" in parts:
        return total
    return f"{total} ({', '.join(f'{part} {amount(seconds * factor)}' for part, seconds in parts.items())})"
