"""Seconds of a step, predicted next to measured, a row per plan.

tp inside nodes   [ computes      ][msg]            filled: measured       0.31 s (+4%)
                  - - - - - - - - - - -|            dashed: predicted
tp across nodes   [ computes      ][ messages            ]                 0.58 s (-2%)

A measurement is often one number, while a prediction says how much each part of a step takes. In
that case the prediction gets a bar of its own, above the measured one.
"""

from lib.plots.draw import beside, box, grid, key, numbers, outline, page, rows, stack
from lib.plots.labels import amount, clock, each, listed
from lib.plots.style import ALARM, AXIS_COLOR, FAINT, INK, OP_COLOR, RANK_COLORS, drawing

# the parts of a step, in order; lib.cost.placement and lib.cost.measured use some of these names
COLOR = {
    "step": RANK_COLORS[0],  # the full step, if its parts are not known
    "computes": OP_COLOR["F"],
    "pipeline": OP_COLOR["F"],
    "messages": OP_COLOR["send"],
    "tensor": AXIS_COLOR["tp"],
    "tied": AXIS_COLOR["pp"],
    "gradients": AXIS_COLOR["dp"],
    "update": RANK_COLORS[7],
    "waits": OP_COLOR["idle"],
}


@drawing
def step_times(measured, predicted, within=None, of="a step"):
    """A bar per plan for the measured time, and a dashed outline for the predicted one.

    measured: {"tp inside nodes": seconds, ...}; instead of seconds, {part: seconds} with parts of
    COLOR is possible, too; 1 to 10 plans. predicted: the same for the same plans, for example from
    `placed_step` or `measured_step`. within: a relative error, such as 0.15; a grey band then
    extends this far to either side of each prediction, and the title counts the measurements
    inside. of: what takes this time. Raises ValueError for any other number of plans, predictions
    of other plans, unknown parts, parts below 0, or steps that are not above 0.
    """
    if not 1 <= len(measured) <= 10 or set(measured) != set(predicted):
        raise ValueError(
            f"measured {listed(measured)}, predicted {listed(predicted)}: give 1 to 10 plans, the "
            f"same ones"
        )
    measured, predicted = (
        _in_parts(measured),
        {name: _in_parts(predicted)[name] for name in measured},
    )
    took = {name: sum(parts.values()) for name, parts in measured.items()}
    should = {name: sum(parts.values()) for name, parts in predicted.items()}
    most = max([*took.values(), *should.values()])
    factor, unit = clock(most)
    end = 1.2 * most * (1 + (within or 0) / 2) * factor
    apart = all("step" in parts for parts in measured.values()) and not all(
        "step" in p for p in predicted.values()
    )
    figure, axes = page(1.75 + (0.46 if apart else 0.36) * len(measured))
    axes.set(xlim=(0, end), xlabel=f"time of {of} ({unit})")
    rows(axes, measured)
    numbers(axes.xaxis)
    grid(axes, "x")
    for row, name in enumerate(measured):
        filled, dashed = _drawn(measured[name], factor), _drawn(predicted[name], factor)
        words = amount if len(filled) > 1 else lambda _: ""
        if apart:
            stack(axes, row - 0.2, dashed, COLOR, 6.2 / end, 0.36, 8)
            stack(axes, row + 0.2, filled, COLOR, 6.2 / end, 0.3, 8, words)
            outline(axes, row - 0.2, 0.18, [should[name] * factor])
        else:
            stack(axes, row, filled, COLOR, 6.2 / end, 0.64, 9, words)
            outline(axes, row, 0.42, dashed.values())
        off, far = took[name] / should[name] - 1, should[name] * factor
        if within:
            box(axes, far * (1 - within), row - 0.46, 2 * within * far, 0.92, FAINT, alpha=0.28,
                ec="none", zorder=1)  # fmt: skip
        right = max(took[name] * factor, far * (1 + (within or 0)))
        color = ALARM if within and abs(off) > within else INK
        beside(axes, right, row, f"{amount(took[name] * factor)} {unit} ({off:+.0%})", color)
    plans = [*measured.values(), *(predicted.values() if apart else [])]
    if drawn := {part for parts in plans for part in parts if parts[part]} - {"step"}:
        key(axes, {part: COLOR[part] for part in COLOR if part in drawn})
    claim = _claim(took, should, within)
    look = (
        "The solid bar below is measured, and the dashed one above is predicted."
        if apart
        else "Filled bars are measured, and dashed outlines are predicted."
    )
    band = f" The grey band is {within:.0%} to either side of it." if within else ""
    words = lambda name, parts: (
        f"{_in_words(parts, factor)} {unit} measured, {_in_words(predicted[name], factor)} "
        f"predicted"
    )
    look = f"{look}{band} The number in brackets compares measured with predicted."
    return (
        figure,
        claim,
        look,
        f"Bars of the time of {of}, measured and predicted.",
        each(measured, words),
    )


def _in_parts(plans):
    """Every plan's seconds as {part: seconds}."""
    found = {
        name: each if isinstance(each, dict) else {"step": each} for name, each in plans.items()
    }
    for name, parts in found.items():
        if not set(parts) <= set(COLOR) or not sum(parts.values()) > 0 or min(parts.values()) < 0:
            raise ValueError(f"{name}: {parts} is no time above 0, and none of {', '.join(COLOR)}")
    return found


def _drawn(parts, factor):
    """The parts that are not 0, in the order of COLOR and in the unit of the axis."""
    return {part: parts[part] * factor for part in COLOR if parts.get(part)}


def _claim(took, should, within):
    """How many measurements are inside the band; without a band, which plan is the slowest and by
    which factor, measured and predicted."""
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
    return (
        f"{total} ("
        f"{', '.join(f'{part} {amount(seconds * factor)}' for part, seconds in parts.items())})"
    )
