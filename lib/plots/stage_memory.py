"""Model state on each rank by stage of ZeRO: what the formula says, and what was measured beside it.

stage 0   [ weight ][ gradient ][        optimizer state         ]  120 GB
stage 1   [ weight ][ gradient ][]  31.4 GB
stage 2   [ weight ][]  16.6 GB
stage 3   []  1.9 GB
"""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.cost.zero import SHARDED, rank_state
from lib.plots.boxes import amount
from lib.plots.labels import scale, short
from lib.plots.memory import PART_COLOR
from lib.plots.style import INK, OP_COLOR, PAPER, finish, on_color, styled

COLOR = {
    "weight": PART_COLOR["weights"],
    "gradient": PART_COLOR["gradients"],
    "optimizer": PART_COLOR["fp32 weights"],  # with Adam's moments
}
IN_WORDS = {"weight": "weights", "gradient": "gradients", "optimizer": "optimizer state"}


@styled
def state_by_stage(parameters, N, precision="mixed", memory=80e9, title=None, note=""):
    """A bar per stage of ZeRO: bytes of weights, gradients and optimizer state on one of N ranks, by the formula.

    parameters: of the model. precision: a key of `lib.cost.RECIPES`. memory: of a GPU, bytes; an upright line, unless
    it is more than four times the longest bar. note: a sentence to begin the caption with.
    Raises ValueError for fewer than 1 parameter or rank.
    """
    if parameters < 1 or N < 1:
        raise ValueError(f"{parameters} parameters on {N} ranks: give at least one of each")
    bars = {f"stage {stage}": _parts(rank_state(parameters, stage, N, precision)) for stage in SHARDED}
    totals = [sum(parts.values()) for parts in bars.values()]
    factor, unit = scale(totals[0], "bytes")
    shown = memory <= 4 * totals[0]
    end = 1.22 * max(totals[0], memory * shown)
    figure = Figure(figsize=(8, 3.4))
    axes = figure.add_subplot()
    for row, (parts, total) in enumerate(zip(bars.values(), totals, strict=True)):
        _stack(axes, row, parts, factor, end)
        less = f", {_amount(totals[0] / total)} x less" if total < 0.99 * totals[0] else ""
        _total(axes, row, total / factor, f"{_amount(total / factor)} {unit}{less}")
    if shown:
        axes.axvline(memory / factor, color=INK, lw=1.6, zorder=4)
        axes.annotate(f"a GPU of {_bytes(memory)}", (memory / factor, 1), xycoords=("data", "axes fraction"), size=9,
                      xytext=(0, 2), textcoords="offset points", ha="center", va="bottom")  # fmt: skip
    _dress(axes, bars, end / factor, f"model state on each rank ({unit})", pad=1.7 if shown else 0.4)
    claim = (
        f"{_count(parameters)} parameters, {N:,} rank{'s' * (N > 1)}: "
        f"{', '.join(_amount(total / factor) for total in totals)} {unit} by stage"
    )
    fits = [stage for stage, total in enumerate(totals) if total <= memory]
    fit = f"from stage {fits[0]} on it fits" if fits and fits[0] else "all fit" if fits else "none fits"
    claim = f"{claim}; {fit} in {_bytes(memory)}"
    return finish(
        figure,
        title or claim,
        f"{note} By the formula, with Adam, precision: {precision}. Activations come on top.".strip(),
        f"Bars of model state on one rank, a bar per stage of ZeRO. {claim}. {note} "
        + " ".join(f"{name}: {_in_words(parts, factor)} {unit}." for name, parts in bars.items()),
    )


@styled
def state_measured(measured, predicted, title=None, note=""):
    """A bar per stage, its parts as measured, and the formula's as dashed outlines round them.

    measured: {"ZeRO-1": {"weight": bytes, "gradient": bytes, "optimizer": bytes}, ...} on one rank; 1 to 8 labels.
    predicted: the same, of the same labels. note: a sentence to begin the caption with.
    Raises ValueError for another number of labels, other labels predicted, or another part.
    """
    if not 1 <= len(measured) <= 8 or set(measured) != set(predicted):
        raise ValueError(
            f"measured {', '.join(measured) or 'nothing'}, predicted {', '.join(predicted) or 'nothing'}: "
            "give 1 to 8 labels, the same ones"
        )
    for name, parts in [*measured.items(), *predicted.items()]:
        if not set(parts) <= set(COLOR) or not sum(parts.values()) > 0:
            raise ValueError(f"{name}: {parts} are not bytes of {', '.join(COLOR)}, more than 0 in all")
    totals = {name: sum(parts.values()) for name, parts in measured.items()}
    formula = {name: sum(predicted[name].values()) for name in measured}
    most = max([*totals.values(), *formula.values()])
    factor, unit = scale(most, "bytes")
    figure = Figure(figsize=(8, min(4.0, 1.75 + 0.42 * len(measured))))
    axes = figure.add_subplot()
    for row, (name, parts) in enumerate(measured.items()):
        _stack(axes, row, parts, factor, 1.22 * most)
        _outline(axes, row, predicted[name], factor)
        off = totals[name] / formula[name] - 1
        text = f"{amount(totals[name] / factor)} {unit}" + f" ({off:+.1%})" * (abs(off) >= 0.0005)
        _total(axes, row, max(totals[name], formula[name]) / factor, text)
    _dress(axes, measured, 1.22 * most / factor, f"live on one rank ({unit})", pad=0.4)
    apart = max(abs(totals[name] / formula[name] - 1) for name in measured)
    exact = all(measured[name].get(part, 0) == predicted[name].get(part, 0) for name in measured for part in COLOR)
    within = "is the formula, to the byte" if exact else f"within {max(0.001, apart):.1%} of the formula"
    least, largest = min(totals, key=totals.get), max(totals, key=totals.get)
    claim = f"Measured {within}: {largest} {amount(totals[largest] / factor)} {unit} a rank" + (
        f", {least} {amount(totals[least] / factor)} {unit}" if least != largest else ""
    )
    return finish(
        figure,
        title or claim,
        f"{note} Filled: measured. Dashed: the formula.".strip(),
        f"Bars of model state on one rank, measured and by the formula. {claim}. {note} "
        + " ".join(
            f"{name}: {_in_words(parts, factor)} {unit} measured, {_in_words(predicted[name], factor)} by the formula."
            for name, parts in measured.items()
        ),
    )


def _parts(state):
    """A ModelState as {"weight": bytes, "gradient": bytes, "optimizer": bytes}."""
    return {"weight": state.weight, "gradient": state.gradient,
            "optimizer": state.master + state.momentum + state.variance}  # fmt: skip


def _stack(axes, row, parts, factor, end):
    """The parts end to end on one row, each with its number where there is room. end: of the axis, bytes."""
    start = 0.0
    for part in (part for part in COLOR if parts.get(part)):
        size, color, wide = parts[part] / factor, COLOR[part], parts[part] / end * 6.8  # inches
        edge = 0.8 * (wide > 0.06)  # or a narrow part would be all edge
        axes.add_patch(Rectangle((start, row - 0.35), size, 0.7, fc=color, ec=PAPER, lw=edge, zorder=2))
        text = amount(size)
        if wide > 0.085 * len(text) + 0.08:
            axes.text(start + size / 2, row, text, ha="center", va="center_baseline", size=9, color=on_color(color),
                      zorder=5)  # fmt: skip
        start += size


def _outline(axes, row, parts, factor):
    """The same, dashed and a little higher. A part has no left edge: it is the one before's right."""
    start = 0.0
    for part in (part for part in COLOR if parts.get(part)):
        end = start + parts[part] / factor
        axes.plot([start, end, end, start], [row - 0.43, row - 0.43, row + 0.43, row + 0.43], color=INK, lw=1.4,
                  ls=(0, (3, 1.6)), zorder=4)  # fmt: skip
        start = end


def _total(axes, row, x, text):
    axes.annotate(text, (x, row), xytext=(6, 0), textcoords="offset points", va="center_baseline", weight="bold",
                  zorder=6, bbox={"boxstyle": "round,pad=0.1", "fc": PAPER, "ec": "none"})  # fmt: skip


def _dress(axes, names, end, xlabel, pad):
    """Axes and key; pad: room between the key and the axes, in letters."""
    axes.set(xlim=(0, end), ylim=(len(names) - 0.5, -0.5), xlabel=xlabel)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(axis="x", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, fc=color, label=IN_WORDS[part]) for part, color in COLOR.items()]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=pad, ncols=3, frameon=False,
                borderpad=0, handlelength=1.2)  # fmt: skip


def _in_words(parts, factor):
    return ", ".join(f"{IN_WORDS[part]} {amount(parts.get(part, 0) / factor)}" for part in COLOR)


def _amount(value):
    """One digit after the point, as the paper has totals; three digits below 1: 1.875 -> "1.9", 0.0625 -> "0.0625"."""
    return short(round(value, 1)) if value >= 1 else f"{value:.3g}"


def _bytes(n_bytes):
    factor, unit = scale(n_bytes, "bytes")
    return f"{_amount(n_bytes / factor)} {unit}"


def _count(parameters):
    """7.5e9 -> "7.5 billion"."""
    for factor, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if parameters >= factor:
            return f"{short(float(f'{parameters / factor:.3g}'))} {word}"
    return f"{parameters:,.0f}"
