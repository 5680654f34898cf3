"""The memory wall: what fills the memory while a model trains, against what a GPU has."""

import math

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.cost.state import RECIPES
from lib.plots.labels import short
from lib.plots.style import INK, PAPER, finish, on_color, styled

PART_COLOR = {
    "weights": "#1b4f72",
    "gradients": "#e08a2e",
    "fp32 weights": "#8d80c9",
    "Adam's moments": "#c9c2e8",
    "activations": "#4f9d69",
}


def memory_parts(parameters, precision, activations=0.0):
    """One bar of `walls`: bytes of each part of a model with `parameters` parameters, trained with Adam.

    precision: a key of lib.cost.state.RECIPES (else KeyError). activations: bytes.
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


@styled
def walls(models, gpus, title=None, note=""):
    """A bar per model, its parts end to end, and an upright line where each GPU's memory ends.

    models: {"6.7B": {"weights": bytes, "gradients": bytes, ...}, ...}, top to bottom, as from `memory_parts`.
    gpus: {"A100": bytes, ...}. note: a sentence to begin the caption with, such as what was assumed.
    A bar of more than four times the largest GPU runs off the page.
    Raises ValueError for a part without a colour, no model, or no GPU.
    """
    parts = dict.fromkeys(part for bar in models.values() for part in bar)
    unknown = [part for part in parts if part not in PART_COLOR]
    if not models or not gpus or unknown:
        raise ValueError(
            f"{len(models)} models and {len(gpus)} GPUs, parts {', '.join(parts)}: give at least one of each, "
            f"and parts from {', '.join(PART_COLOR)}"
        )
    order = [part for part in PART_COLOR if part in parts]
    totals = {name: sum(bar.values()) for name, bar in models.items()}
    largest = max(gpus.values())
    end = max(1.15 * largest, min(1.12 * max(totals.values()), 4 * largest))  # of the axis, bytes

    figure = Figure(figsize=(8, min(4.0, 1.9 + 0.4 * len(models))))
    axes = figure.add_subplot()
    for row, (name, bar) in enumerate(models.items()):
        start = 0.0
        for part in order:
            size, color = min(bar.get(part, 0), end - start), PART_COLOR[part]
            axes.add_patch(Rectangle((start, row - 0.36), size, 0.72, fc=color, ec=PAPER, lw=0.8, zorder=2))
            text = _gigabytes(bar.get(part, 0))
            if size / end * 6.6 > 0.085 * len(text) + 0.06 and totals[name] <= end:  # inches
                axes.text(start + size / 2, row, text, ha="center", va="center_baseline", size=9, color=on_color(color),
                          zorder=5, bbox={"boxstyle": "round,pad=0.15", "fc": color, "ec": "none"})  # fmt: skip
            start += size
        if totals[name] <= end:
            axes.text(start + 0.008 * end, row, f"{_gigabytes(totals[name])} GB", va="center_baseline", weight="bold",
                      zorder=6, bbox={"boxstyle": "round,pad=0.1", "fc": PAPER, "ec": "none"})  # fmt: skip
        else:
            _run_off(
                axes, row, end, f"{_gigabytes(totals[name])} GB in all, {_gigabytes(bar[order[0]])} GB of {order[0]}"
            )
    for gpu, memory in gpus.items():
        axes.axvline(memory, color=INK, lw=1.6, zorder=4)
        axes.annotate(f"{gpu}\n{_gigabytes(memory)} GB", (memory, 1), xycoords=("data", "axes fraction"),
                      xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", size=9)  # fmt: skip
    axes.set(xlim=(0, end), ylim=(len(models) - 0.5, -0.55), xlabel="memory (GB)")
    axes.set_yticks(range(len(models)), models)
    axes.tick_params(axis="y", length=0)
    step = next(s for s in (f * 10**k for k in range(9, 15) for f in (1, 2, 5)) if end / s <= 9)
    axes.set_xticks([step * i for i in range(math.floor(end / step) + 1)], [
        _gigabytes(step * i) for i in range(math.floor(end / step) + 1)
    ])  # fmt: skip
    axes.spines["left"].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, fc=PART_COLOR[part], label=part) for part in order]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=3.1, ncols=8, frameon=False,
                borderpad=0, handlelength=1.2)  # fmt: skip
    claim = _claim(models, totals, gpus, order)
    return finish(
        figure,
        title or claim,
        f"{note} A bar holds, from the left, {', '.join(order)}. Upright: where a GPU's memory ends.".strip(),
        f"{claim}. {note} Bars of memory: "
        + "; ".join(
            f"{name} {_gigabytes(totals[name])} GB ("
            + ", ".join(f"{part} {_gigabytes(bar[part])}" for part in order if part in bar)
            + ")"
            for name, bar in models.items()
        )
        + f". GPUs: {', '.join(f'{gpu} {_gigabytes(memory)} GB' for gpu, memory in gpus.items())}.",
    )


def _claim(models, totals, gpus, order):
    gpu, memory = max(gpus.items(), key=lambda item: item[1])
    too_large = [name for name in models if totals[name] > memory]
    if not too_large:
        return f"All of these fit in one {gpu}"
    if len(too_large) == len(models):
        return f"None of these fits in one {gpu}: the smallest takes {_gigabytes(min(totals.values()))} GB"
    name = min(too_large, key=lambda n: totals[n])
    first = f"{_gigabytes(models[name][order[0]])} GB of {order[0]}"
    return f"{name}: {first}, but {_gigabytes(totals[name])} GB to train: too much for one {gpu}"


def _run_off(axes, row, end, text):
    """A torn edge, and in words what cannot be drawn to scale."""
    for shift in (0.0, 0.012):
        x = [end * (0.955 + shift + 0.006 * (i % 2)) for i in range(7)]
        y = [row - 0.42 + 0.14 * i for i in range(7)]
        axes.plot(x, y, color=PAPER, lw=2.2, zorder=3)
    axes.text(0.94 * end, row, text, ha="right", va="center_baseline", weight="bold", zorder=6,
              bbox={"boxstyle": "round,pad=0.15", "fc": PAPER, "ec": "none"})  # fmt: skip


def _gigabytes(n_bytes):
    """1 GB = 10^9 bytes; two digits below 100."""
    value = n_bytes / 1e9
    return f"{value:,.0f}" if value >= 100 else short(float(f"{value:.2g}"))
