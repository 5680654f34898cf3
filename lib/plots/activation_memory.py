"""What the activations of a layer take on each rank: one process, tensor parallel, sequence parallel."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.labels import scale, short
from lib.plots.style import INK, OP_COLOR, RANK_COLORS, finish, on_color, styled


@styled
def activation_memory(measured, predicted=None, title=None, note=""):
    """A bar per way to split, solid what was measured, a dashed mark where the formula puts it.

    measured: {"one process": bytes, "tp 4": bytes, "tp 4 + sequence parallel": bytes, ...}, per rank, 2 to 6 ways, the
    first the one to compare with. predicted: the same, for some or all of the ways; None: no marks.
    note: a sentence to begin the caption with, such as the model's sizes.
    Raises ValueError for another number of ways, a prediction of another way, or bytes that are not above 0.
    """
    predicted = predicted or {}
    if not 2 <= len(measured) <= 6 or not set(predicted) <= set(measured):
        raise ValueError(
            f"measured {', '.join(measured) or 'nothing'}, predicted {', '.join(predicted) or 'nothing'}: "
            "measure 2 to 6 ways, predict some of them"
        )
    for name, n_bytes in [*measured.items(), *predicted.items()]:
        if not n_bytes > 0:
            raise ValueError(f"{name}: {n_bytes} bytes; a layer keeps more than 0")
    most = max([*measured.values(), *predicted.values()])
    factor, unit = scale(most, "bytes")
    first, whole = next(iter(measured.items()))
    figure = Figure(figsize=(8, min(4.0, 1.7 + 0.42 * len(measured))))
    axes = figure.add_subplot()
    for row, (name, n_bytes) in enumerate(measured.items()):
        color = RANK_COLORS[row]
        axes.add_patch(Rectangle((0, row - 0.35), n_bytes / factor, 0.7, fc=color, ec="none", zorder=2))
        end = max(n_bytes, predicted.get(name, 0))
        inside = n_bytes > 0.4 * most
        text = f"{_amount(n_bytes, factor)} {unit}" + f" ({n_bytes / whole:.0%})" * (row > 0)
        axes.annotate(text, (0 if inside else end / factor, row), xytext=(7, 0), textcoords="offset points",
                      va="center_baseline", weight="bold", zorder=5,
                      color=on_color(color) if inside else INK)  # fmt: skip
        if name in predicted:
            x = predicted[name] / factor
            axes.plot([x, x], [row - 0.46, row + 0.46], color=INK, ls=(0, (3, 1.6)), lw=1.8, zorder=4)
    axes.set(xlim=(0, 1.06 * most / factor), ylim=(len(measured) - 0.5, -0.5), xlabel=f"kept for backward ({unit})")
    axes.set_yticks(range(len(measured)), measured)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    least = min(measured, key=measured.get)
    claim = f"{least}: {measured[least] / whole:.0%} of the activations of {first} on each rank"
    claim = claim[0].upper() + claim[1:]
    dashes = " Dashed: the formula." if predicted else ""
    return finish(
        figure,
        title or claim,
        f"{note} Bars: measured; in percent of {first}.{dashes}".strip(),
        f"Bars of the memory that activations take on a rank, a bar per way to split. {claim}. {note} "
        + " ".join(
            f"{name}: {_amount(n_bytes, factor)} {unit} measured"
            + (f", {_amount(predicted[name], factor)} {unit} by the formula." if name in predicted else ".")
            for name, n_bytes in measured.items()
        ),
    )


def _amount(n_bytes, factor):
    """Three digits: 2_097_152 bytes in MB -> "2.1"."""
    return short(float(f"{n_bytes / factor:.3g}"))
