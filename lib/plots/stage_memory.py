"""Model state on each rank by stage of ZeRO: which rank stores what, what the formula says, and
what was measured.

             stage 0      stage 1      stage 2      stage 3      Rajbhandari et al. 2020, figure 1:
weights      ####  ####   ####  ####   ####  ####   #...  .#..   ####  replicated on every rank
gradients    ####  ####   ####  ####   #...  .#..   #...  .#..   .#..  only this rank's shard
optimizer    ####  ####   #...  .#..   #...  .#..   #...  .#..

stage 0   [ weight ][ gradient ][        optimizer state         ]  120 GB
stage 1   [ weight ][ gradient ][]  31.4 GB
stage 2   [ weight ][]  16.6 GB
stage 3   []  1.9 GB
"""

from lib.cost.state import RECIPES
from lib.cost.zero import SHARDED, rank_state
from lib.plots.draw import (
    above,
    beside,
    box,
    color_names,
    grid,
    heading,
    key,
    numbers,
    outline,
    page,
    rows,
    stack,
)
from lib.plots.labels import COUNTS, amount, each, in_unit, listed, scale, short
from lib.plots.memory import PART_COLOR
from lib.plots.product import EVERYWHERE
from lib.plots.style import FAINT, INK, drawing, rank_color

COLOR = {
    "weight": PART_COLOR["weights"],
    "gradient": PART_COLOR["gradients"],
    "optimizer": PART_COLOR["fp32 weights"],  # with Adam's moments
}
IN_WORDS = {"weight": "weights", "gradient": "gradients", "optimizer": "optimizer state"}
NAMES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP")
# {row: the part of the model state that decides whether the row is sharded}
ROWS = {"weights": "weight", "gradients": "gradient", "optimizer\nstate": "master"}
SIDE = 0.88  # of a cell; cells are 1 apart


@drawing
def who_holds_what(N=4):
    """A panel per stage, a column per rank, a row per part of the model state. A fixed picture
    without data. N: the number of ranks, 2 to 8, else ValueError."""
    if not 2 <= N <= 8:
        raise ValueError(f"N={N}: a column per rank, 2 to 8 of them can be read")
    figure, panels = page(3.6, columns=len(SHARDED), sharey=True)
    kept = [short(rank_state(1, stage, N).total) for stage in SHARDED]  # bytes per parameter
    for axes, (stage, cut) in zip(panels, SHARDED.items(), strict=True):
        for row, part in enumerate(ROWS.values()):
            for rank in range(N):
                _cell(axes, rank, row, N, part in cut)
        axes.set(xlim=(-0.1, N + 0.1), ylim=(len(ROWS) + 0.05, -0.05))
        axes.set_xticks([rank + 0.5 for rank in range(N)], range(N))
        axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False, pad=1)
        # label2: the labels on top
        color_names(
            [tick.label2 for tick in axes.xaxis.get_major_ticks()], map(rank_color, range(N))
        )
        axes.spines[:].set_visible(False)
        heading(axes, f"stage {stage}\n{NAMES[stage]}")
        axes.set_xlabel(f"{kept[stage]} bytes", weight="bold", size=11)
    state = RECIPES["mixed"]
    each = (state.weight, state.gradient, state.total - state.weight - state.gradient)
    names = [f"{name}\n{n_bytes} bytes" for name, n_bytes in zip(ROWS, each, strict=True)]
    panels[0].set_yticks([row + 0.5 for row in range(len(ROWS))], names)
    return (
        figure, f"Each stage shards one row more: {', '.join(kept)} bytes per parameter and rank",
        f"A column is a rank. Grey parts are replicated on all ranks. Of the others, each rank "
        f"stores 1/{N}. The bytes are per parameter, in mixed precision with Adam.",
        f"A picture of the four stages of ZeRO on {N} ranks, a panel per stage, a row each for "
        f"weights, gradients and optimizer state, a column per rank.",
        f"Stage 0: all three are replicated on every rank. Stage 1: each rank stores 1/{N} of the "
        f"optimizer state, and the rest in full. Stage 2: 1/{N} of gradients and optimizer state, "
        f"and the weights in full. Stage 3: 1/{N} of everything. A rank's part is a strip in its "
        "colour.",
    )  # fmt: skip


@drawing
def state_by_stage(parameters, N, precision="mixed"):
    """A bar per stage of ZeRO: bytes of weights, gradients and optimizer state on one of N ranks,
    by the formula.

    parameters: of the model. precision: a key of `lib.cost.state.RECIPES`. A vertical line marks
    the memory of a GPU of 80 GB, unless that is more than four times the longest bar. Raises
    ValueError for fewer than 1 parameter or rank.
    """
    if parameters < 1 or N < 1:
        raise ValueError(f"{parameters} parameters on {N} ranks: give at least one of each")
    bars = {
        f"stage {stage}": _parts(rank_state(parameters, stage, N, precision)) for stage in SHARDED
    }
    totals = [sum(parts.values()) for parts in bars.values()]
    factor, unit = scale(totals[0], "bytes")
    memory, shown = 80e9, 4 * totals[0] >= 80e9
    figure, axes = page(3.4)
    end = 1.22 * max(totals[0], memory * shown) / factor
    _dress(axes, bars, end, f"model state on each rank ({unit})", pad=1.7 if shown else 0.4)
    for row, (parts, total) in enumerate(zip(bars.values(), totals, strict=True)):
        stack(axes, row, _drawn(parts, factor), COLOR, 6.8 / end)
        less = f", {_amount(totals[0] / total)} x less" if total < 0.99 * totals[0] else ""
        beside(axes, total / factor, row, f"{_amount(total / factor)} {unit}{less}")
    if shown:
        axes.axvline(memory / factor, color=INK, lw=1.6, zorder=4)
        above(axes, memory / factor, f"a GPU of {_bytes(memory)}", size=9)
    fits = [stage for stage, total in enumerate(totals) if total <= memory]
    fit = (
        f"it fits in {_bytes(memory)} at stage {fits[0]} and above"
        if fits and fits[0]
        else f"all fit in {_bytes(memory)}"
        if fits
        else f"none fits in {_bytes(memory)}"
    )
    claim = (
        f"{in_unit(parameters, COUNTS, 3)} parameters, {N:,} rank{'s' * (N > 1)}: "
        f"{', '.join(_amount(total / factor) for total in totals)} {unit} by stage; {fit}"
    )
    look = f"By the formula, with Adam, precision: {precision}. Activations come on top."
    words = each(bars, lambda _, parts: f"{_in_words(parts, factor)} {unit}")
    return figure, claim, look, "Bars of model state on one rank, a bar per stage of ZeRO.", words


@drawing
def state_measured(measured, predicted):
    """A bar per stage with its parts as measured, and dashed outlines for what the formula says.

    measured: {"ZeRO-1": {"weight": bytes, "gradient": bytes, "optimizer": bytes}, ...} on one rank;
    1 to 8 labels. predicted: the same for the same labels. Raises ValueError for any other number
    of labels, predictions of other labels, an unknown part, or a bar of 0 bytes.
    """
    if not 1 <= len(measured) <= 8 or set(measured) != set(predicted):
        raise ValueError(
            f"measured {listed(measured)}, predicted {listed(predicted)}: give 1 to 8 labels, the "
            f"same ones"
        )
    for name, parts in [*measured.items(), *predicted.items()]:
        if not set(parts) <= set(COLOR) or not sum(parts.values()) > 0:
            raise ValueError(
                f"{name}: {parts} are not bytes of {', '.join(COLOR)}, more than 0 in all"
            )
    totals = {name: sum(parts.values()) for name, parts in measured.items()}
    formula = {name: sum(predicted[name].values()) for name in measured}
    off = {name: totals[name] / formula[name] - 1 for name in measured}
    factor, unit = scale(max([*totals.values(), *formula.values()]), "bytes")
    end = 1.22 * max([*totals.values(), *formula.values()]) / factor
    figure, axes = page(1.75 + 0.42 * len(measured))
    _dress(axes, measured, end, f"live on one rank ({unit})", pad=0.4)
    for row, (name, parts) in enumerate(measured.items()):
        stack(axes, row, _drawn(parts, factor), COLOR, 6.8 / end)
        outline(axes, row, 0.43, _drawn(predicted[name], factor).values())
        text = f"{amount(totals[name] / factor)} {unit}" + f" ({off[name]:+.1%})" * (
            abs(off[name]) >= 0.0005
        )
        beside(axes, max(totals[name], formula[name]) / factor, row, text)
    exact = all(
        measured[name].get(part, 0) == predicted[name].get(part, 0)
        for name in measured
        for part in COLOR
    )
    apart = max(map(abs, off.values()))
    within = (
        "is the formula, to the byte" if exact else f"within {max(0.001, apart):.1%} of the formula"
    )
    least, largest = min(totals, key=totals.get), max(totals, key=totals.get)
    claim = f"Measured {within}: {largest} {amount(totals[largest] / factor)} {unit}"
    claim += f", {least} {amount(totals[least] / factor)} {unit}" * (least != largest)
    words = lambda name, parts: (
        f"{_in_words(parts, factor)} {unit} measured, {_in_words(predicted[name], factor)} by the "
        f"formula"
    )
    what = "Bars of model state on one rank, measured and by the formula."
    look = "Filled bars are measured, and dashed outlines are the formula."
    return figure, claim, look, what, each(measured, words)


def _cell(axes, rank, row, N, is_cut):
    """What one rank stores of one part: a full cell, or an outline with the rank's strip in it."""
    left, top = rank + (1 - SIDE) / 2, row + (1 - SIDE) / 2
    if not is_cut:
        box(axes, left, top, SIDE, SIDE, EVERYWHERE, ec="none")
        return
    box(axes, left, top + rank * SIDE / N, SIDE, SIDE / N, rank_color(rank), ec="none")
    box(axes, left, top, SIDE, SIDE, "none", ec=FAINT, lw=0.9, zorder=3)


def _parts(state):
    """A ModelState as {"weight": bytes, "gradient": bytes, "optimizer": bytes}."""
    return {"weight": state.weight, "gradient": state.gradient,
            "optimizer": state.master + state.momentum + state.variance}  # fmt: skip


def _drawn(parts, factor):
    """The parts that are not 0, in the order of COLOR and in the unit of the axis."""
    return {part: parts[part] / factor for part in COLOR if parts.get(part)}


def _dress(axes, names, end, xlabel, pad):
    """The axes and the legend. pad: the space between the two, in font sizes."""
    axes.set(xlim=(0, end), xlabel=xlabel)
    rows(axes, names)
    numbers(axes.xaxis)
    grid(axes, "x")
    key(axes, {IN_WORDS[part]: color for part, color in COLOR.items()}, borderaxespad=pad)


def _in_words(parts, factor):
    return ", ".join(f"{IN_WORDS[part]} {amount(parts.get(part, 0) / factor)}" for part in COLOR)


def _amount(value):
    """One digit after the point, as totals are given in the paper, but three digits below 1: "1.9"
    for 1.875, "0.0625" for 0.0625."""
    return short(round(value, 1)) if value >= 1 else f"{value:.3g}"


def _bytes(n_bytes):
    factor, unit = scale(n_bytes, "bytes")
    return f"{_amount(n_bytes / factor)} {unit}"
