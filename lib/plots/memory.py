"""The memory wall: what fills the memory while a model trains, compared with a GPU's memory."""

import math

from lib.cost.state import RECIPES
from lib.plots.draw import above, beside, key, page, paper, rows, stack, ticks
from lib.plots.labels import amount
from lib.plots.style import INK, PAPER, drawing

PART_COLOR = {
    "weights": "#1b4f72",
    "gradients": "#e08a2e",
    "fp32 weights": "#8d80c9",
    "Adam's moments": "#c9c2e8",
    "activations": "#4f9d69",
}


def memory_parts(parameters, precision, activations=0.0):
    """{part: bytes} of a model with `parameters` parameters that is trained with Adam: one bar of
    `walls`.

    Parts of 0 bytes are left out. precision: a key of lib.cost.state.RECIPES (else KeyError).
    activations: bytes.
    """
    state = RECIPES[precision]
    parts = {
        "weights": parameters * state.weight,
        "gradients": parameters * state.gradient,
        "fp32 weights": parameters * state.master,
        "Adam's moments": parameters * (state.momentum + state.variance),
        "activations": activations,
    }
    return {part: n_bytes for part, n_bytes in parts.items() if n_bytes}


@drawing
def walls(models, gpus):
    """A bar per model with its parts end to end, and a vertical line where each GPU's memory ends.

    models: {"6.7B": {"weights": bytes, "gradients": bytes, ...}, ...}, top to bottom, as
    `memory_parts` returns them. gpus: {"A100": bytes, ...}.
    A bar that is longer than four times the memory of the largest GPU is cut off at the right, and
    its total is written on it.
    Raises ValueError for a part that has no colour, no model, or no GPU.
    """
    parts = dict.fromkeys(part for bar in models.values() for part in bar)
    unknown = [part for part in parts if part not in PART_COLOR]
    if not models or not gpus or unknown:
        raise ValueError(
            f"{len(models)} models and {len(gpus)} GPUs, parts {', '.join(parts)}: give at least "
            f"one of each, and parts from {', '.join(PART_COLOR)}"
        )
    order = [part for part in PART_COLOR if part in parts]
    totals = {name: sum(bar.values()) for name, bar in models.items()}
    largest = max(gpus.values())
    end = max(1.15 * largest, min(1.12 * max(totals.values()), 4 * largest))  # of the axis, bytes

    figure, axes = page(1.9 + 0.4 * len(models))
    rows(axes, models)
    axes.set(xlim=(0, end), ylim=(len(models) - 0.5, -0.55), xlabel="memory (GB)")
    for row, (name, bar) in enumerate(models.items()):
        total = f"{_gigabytes(totals[name])} GB"
        if totals[name] > end:
            parts = {part: min(bar[part], end) for part in order if part in bar}
            stack(axes, row, parts, PART_COLOR, 6.6 / end, 0.72, words=lambda _: "")
            _run_off(
                axes, row, end, f"{total} in all, {_gigabytes(bar[order[0]])} GB of {order[0]}"
            )
        else:
            parts = {part: bar[part] for part in order if part in bar}
            stack(axes, row, parts, PART_COLOR, 6.6 / end, 0.72, words=_gigabytes, pad=0.15)
            beside(axes, totals[name], row, total, gap=4)
    for gpu, memory in gpus.items():
        axes.axvline(memory, color=INK, lw=1.6, zorder=4)
        above(axes, memory, f"{gpu}\n{_gigabytes(memory)} GB", size=9)
    step = next(s for s in (f * 10**k for k in range(9, 15) for f in (1, 2, 5)) if end / s <= 9)
    ticks(axes.xaxis, [step * i for i in range(math.floor(end / step) + 1)], _gigabytes)
    key(axes, {part: PART_COLOR[part] for part in order}, borderaxespad=3.1)
    claim = _claim(models, totals, gpus, order)
    of = lambda bar: ", ".join(f"{part} {_gigabytes(bar[part])}" for part in order if part in bar)
    bars = "; ".join(
        f"{name} {_gigabytes(totals[name])} GB ({of(bar)})" for name, bar in models.items()
    )
    ends = ", ".join(f"{gpu} {_gigabytes(memory)} GB" for gpu, memory in gpus.items())
    look = (
        f"A bar holds, from the left, {', '.join(order)}. The vertical lines show the memory of "
        f"each GPU."
    )
    return figure, claim, look, "", f"Bars of memory: {bars}. GPUs: {ends}."


def _claim(models, totals, gpus, order):
    gpu, memory = max(gpus.items(), key=lambda item: item[1])
    too_large = [name for name in models if totals[name] > memory]
    if not too_large:
        return f"All of these fit in one {gpu}"
    if len(too_large) == len(models):
        return (
            f"None of these fits in one {gpu}: the smallest takes "
            f"{_gigabytes(min(totals.values()))} GB"
        )
    name = min(too_large, key=lambda n: totals[n])
    first = f"{_gigabytes(models[name][order[0]])} GB of {order[0]}"
    return f"{name}: {first}, but {_gigabytes(totals[name])} GB to train: too much for one {gpu}"


def _run_off(axes, row, end, text):
    """For a bar that is too long for the axis: a torn edge, and its total as text."""
    for shift in (0.0, 0.012):
        x = [end * (0.955 + shift + 0.006 * (i % 2)) for i in range(7)]
        y = [row - 0.42 + 0.14 * i for i in range(7)]
        axes.plot(x, y, color=PAPER, lw=2.2, zorder=3)
    axes.text(0.94 * end, row, text, ha="right", va="center_baseline", weight="bold", zorder=6,
              bbox=paper(0.15))  # fmt: skip


def _gigabytes(n_bytes):
    """Bytes as GB of 10^9 bytes, with two significant digits below 100."""
    value = n_bytes / 1e9
    return f"{value:,.0f}" if value >= 100 else amount(value, 2)
