"""Recomputation: what it saves in memory beside what it costs in time."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.boxes import amount
from lib.plots.labels import scale
from lib.plots.style import INK, OP_COLOR, RANK_COLORS, finish, on_color, styled


@styled
def recompute(measured, predicted=None, title=None, note=""):
    """Two panels, memory and time, a bar per way; a dashed mark where the formula puts it.

    measured: {"keep all": (bytes, seconds), "recompute": (bytes, seconds)}, 2 to 4 ways, the first the one to compare
    with. predicted: the same, for some or all of the ways. note: a sentence to begin the caption with.
    Raises ValueError for another number of ways, a prediction of another, or what is not above 0.
    """
    predicted = predicted or {}
    if not 2 <= len(measured) <= 4 or not set(predicted) <= set(measured):
        raise ValueError(f"measured {', '.join(measured) or 'nothing'}, predicted {', '.join(predicted) or 'nothing'}: "
                         "measure 2 to 4 ways, predict some of them")  # fmt: skip
    for name, values in [*measured.items(), *predicted.items()]:
        if len(values) != 2 or min(values) <= 0:
            raise ValueError(f"{name}: {values} is not (bytes, seconds), both above 0")
    names = list(measured)
    factor, unit = scale(max(n_bytes for n_bytes, _ in [*measured.values(), *predicted.values()]), "bytes")
    figure = Figure(figsize=(8, min(4.0, 1.75 + 0.5 * len(names))))
    panels = figure.subplots(1, 2, sharey=True)
    for column, (axes, what, per, of) in enumerate(zip(panels, ("memory", "time"), (factor, 1e-3), (unit, "ms"),
                                                       strict=True)):  # fmt: skip
        longest = max(values[column] / per for values in [*measured.values(), *predicted.values()])
        first = measured[names[0]][column] / per
        for row, name in enumerate(names):
            value, color = measured[name][column] / per, RANK_COLORS[row]
            axes.add_patch(Rectangle((0, row - 0.34), value, 0.68, fc=color, ec="none", zorder=2))
            x = predicted[name][column] / per if name in predicted else 0
            text, inside = (
                f"{amount(value)} {of}" + f" (x {value / first:.2f})" * (row > 0),
                min(x or value, value) > 0.5 * longest,
            )
            axes.annotate(text, (0 if inside else max(value, x), row), xytext=(6, 0), textcoords="offset points",
                          va="center_baseline", weight="bold", zorder=5,
                          color=on_color(color) if inside else INK)  # fmt: skip
            if name in predicted:
                axes.plot([x, x], [row - 0.45, row + 0.45], color=INK, ls=(0, (3, 1.6)), lw=1.8, zorder=4)
        axes.set(xlim=(0, 1.06 * longest), ylim=(len(names) - 0.5, -0.5), xlabel=f"{what} ({of})")
        axes.set_yticks(range(len(names)), names)
        for label, color in zip(axes.get_yticklabels(), RANK_COLORS, strict=False):
            label.set(color=color, weight="bold")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=OP_COLOR["idle"], lw=0.7)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
    (memory, time), (memory_then, time_then) = measured[names[0]], measured[names[-1]]
    claim = f"{names[-1]}: {memory_then / memory:.0%} of the memory, {time_then / time:.2f} times as long"
    dashes = " Dashed: the formula." if predicted else ""
    words = lambda values: f"{amount(values[0] / factor)} {unit} and {amount(1e3 * values[1])} ms"
    return finish(
        figure,
        title or f"{claim[0].upper()}{claim[1:]}",
        f"{note} Bars: measured; (x ...): of {names[0]}.{dashes}".strip(),
        f"Bars of memory and of time, a bar per way. {claim}. {note} "
        + " ".join(f"{name}, measured: {words(values)}." for name, values in measured.items())
        + "".join(f" {name}, predicted: {words(values)}." for name, values in predicted.items()),
    )
