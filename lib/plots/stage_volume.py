"""What each stage of ZeRO sends in a step of k micro-batches: 2, 2, k + 1 and 3 k times (N-1)/N psi
elements for stages 0 to 3, where psi is the number of padded parameters."""

from matplotlib.colors import to_rgba

from lib.plots.draw import DASHES, box, grid, key, numbers, page
from lib.plots.labels import amount, clock, in_sentences
from lib.plots.style import INK, drawing, stage_color

PALE = 0.25  # opacity of a bar that was not measured


@drawing
def volume_by_stage(measured, predicted, unit_seconds=None):
    """A group of bars per number of micro-batches k, a bar per stage: elements that a rank sends in
    a step.

    measured: {"stage 0": {1: 2.0, 2: 2.0, 4: 2.0}, ...}: {stage: {k: elements / ((N-1)/N psi)}};
    may be {}. predicted: the same by the formula, for every stage and every k; dashed.
    unit_seconds: how long it takes to send one unit; if given, a second scale at the right shows
    the time. Raises ValueError for none or more than 6 stages, none or more than 5 values of k, or
    if a prediction is missing.
    """
    stages, ks = list(predicted), sorted({k for of_stage in predicted.values() for k in of_stage})
    wanted = {(stage, k) for stage in stages for k in ks} | {
        (stage, k) for stage in measured for k in measured[stage]
    }
    missing = [
        f"{stage}, k = {k}" for stage, k in sorted(wanted) if k not in predicted.get(stage, {})
    ]
    if not 1 <= len(stages) <= 6 or not 1 <= len(ks) <= 5 or missing:
        raise ValueError(
            f"{len(stages)} stages, k = {', '.join(map(str, ks)) or 'none'}; no formula for "
            f"{'; '.join(missing) or 'them'}: give 1 to 6 stages, 1 to 5 values of k, and a "
            f"formula for each"
        )
    most = max(
        n for of in (predicted, measured) for of_stage in of.values() for n in of_stage.values()
    )
    wide = 0.84 / len(stages)  # width of a bar; groups are 1 apart
    figure, axes = page(3.8)
    for group, k in enumerate(ks):
        for i, stage in enumerate(stages):
            value, formula = measured.get(stage, {}).get(k), predicted[stage][k]
            _bar(axes, group - 0.42 + i * wide, wide, stage_color(stage), value, formula)
    axes.set(
        xlim=(-0.5, len(ks) - 0.5), ylim=(0, 1.1 * most), ylabel="sent (times (N-1)/N ψ elements)"
    )
    axes.set_xticks(range(len(ks)), [f"{k} micro-batch{'es' * (k > 1)}" for k in ks])
    axes.tick_params(axis="x", length=0)
    grid(axes, "y")
    look = (
        (lambda c: c) if measured else (lambda c: {"fc": to_rgba(c, PALE), "ec": c, "ls": DASHES})
    )
    key(axes, {stage: look(stage_color(stage)) for stage in stages}, ncols=6)
    if unit_seconds:
        _seconds(axes, unit_seconds, most)
    look = (
        "Filled bars are measured. " * bool(measured)
        + "Dashed outlines are the formula. ψ counts the padded parameters, and N the ranks."
    )
    what = "Bars of the elements that a rank sends in a step, in units of (N-1)/N psi, for"
    words = lambda of_stage: ", ".join(f"{amount(n)} with k = {k}" for k, n in of_stage.items())
    said = in_sentences({"measured": measured, "by the formula": predicted}, words)
    return (
        figure,
        _claim(measured or predicted, ks),
        look,
        f"{what} {', '.join(map(str, ks))} micro-batches.",
        said,
    )


def _bar(axes, left, wide, color, value, formula):
    """The measured bar, if there is one, the formula's dashed outline around it, and the number
    above."""
    if value is not None:
        box(axes, left + 0.12 * wide, 0, 0.76 * wide, value, color, ec="none")
    look = {"fc": to_rgba(color, PALE), "ec": color} if value is None else {"fc": "none", "ec": INK}
    box(axes, left + 0.06 * wide, 0, 0.88 * wide, formula, color, zorder=3, lw=1.4, ls=DASHES,
        **look)  # fmt: skip
    shown = formula if value is None else value
    axes.annotate(amount(shown), (left + wide / 2, max(shown, formula)), xytext=(0, 3), ha="center",
                  textcoords="offset points", va="bottom", weight="bold", size=9)  # fmt: skip


def _seconds(axes, unit_seconds, most):
    """A second scale at the right: how long it takes to send this many elements."""
    factor, name = clock(most * unit_seconds)
    each = unit_seconds * factor
    seconds = axes.secondary_yaxis(
        "right", functions=(lambda units: units * each, lambda time: time / each)
    )
    seconds.set_ylabel(f"time on the wire ({name})")
    numbers(seconds.yaxis, amount)


def _claim(volumes, ks):
    """Which stages send least and most with the largest number of micro-batches."""
    k = ks[-1]
    of_last = {stage: of_stage[k] for stage, of_stage in volumes.items() if k in of_stage}
    (least, low), (largest, high) = (
        pick(of_last.items(), key=lambda item: item[1]) for pick in (min, max)
    )
    batches = f"{k} micro-batch{'es' * (k > 1)}"
    if low == high:
        return f"With {batches} every stage sends {amount(low)} times (N-1)/N ψ"
    return f"With {batches} {largest} sends {amount(high / low)} times as much as {least}"
