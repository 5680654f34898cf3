"""The activations that a rank keeps for the backward pass: for one layer that is split in several
ways, and with recomputation, together with the time that recomputation costs."""

from lib.plots.draw import bar, grid, page, rows
from lib.plots.labels import amount, capital, each, in_sentences, listed, scale
from lib.plots.style import RANK_COLORS, drawing


@drawing
def activation_memory(measured, predicted=None):
    """A bar per way to split a layer. Bars are measured, and a dashed mark shows what the formula
    says.

    measured: {"one process": bytes, "tp 4": bytes, "tp 4 + sequence parallel": bytes, ...}, per
    rank, for 2 to 6 ways; the others are compared with the first. predicted: the same, for some or
    all of the ways; None: no marks. Raises ValueError for any other number of ways, a prediction
    for a way that was not measured, or bytes that are not above 0.
    """
    predicted = predicted or {}
    _refuse(measured, predicted, 6)
    for name, n_bytes in [*measured.items(), *predicted.items()]:
        if not n_bytes > 0:
            raise ValueError(f"{name}: {n_bytes} bytes; a layer keeps more than 0")
    factor, unit = scale(max([*measured.values(), *predicted.values()]), "bytes")
    first, whole = next(iter(measured.items()))
    figure, axes = page(1.7 + 0.42 * len(measured))
    _bars(axes, measured, predicted, factor,
          lambda value, row: f"{unit}" + f" ({value / whole:.0%})" * (row > 0))  # fmt: skip
    axes.set_xlabel(f"kept for backward ({unit})")
    least = min(measured, key=measured.get)
    claim = capital(
        f"{least}: {measured[least] / whole:.0%} of the activations of {first} on each rank"
    )
    formula = {
        name: f", {amount(n_bytes / factor)} {unit} by the formula"
        for name, n_bytes in predicted.items()
    }
    look = (
        f"Bars are measured, and labelled in percent of {first}."
        f"{' Dashed marks show the formula.' * bool(predicted)}"
    )
    what = "Bars of the memory that activations take on a rank, a bar per way to split."
    words = lambda name, n_bytes: (
        f"{amount(n_bytes / factor)} {unit} measured{formula.get(name, '')}"
    )
    return figure, claim, look, what, each(measured, words)


@drawing
def recompute(measured, predicted=None):
    """Two panels, memory and time, with a bar per way and a dashed mark at the value that the
    formula gives.

    measured: {"keep all": (bytes, seconds), "recompute": (bytes, seconds)}, for 2 to 4 ways; the
    others are compared with the first. predicted: the same, for some or all of the ways.
    Raises ValueError for any other number of ways, a prediction for a way that was not measured, or
    values that are not above 0.
    """
    predicted = predicted or {}
    _refuse(measured, predicted, 4)
    every = [*measured.items(), *predicted.items()]
    for name, values in every:
        if len(values) != 2 or min(values) <= 0:
            raise ValueError(f"{name}: {values} is not (bytes, seconds), both above 0")
    names = list(measured)
    factor, unit = scale(max(n_bytes for _, (n_bytes, _) in every), "bytes")
    figure, panels = page(1.75 + 0.5 * len(names), columns=2, sharey=True)
    for i, (axes, what, per, of) in enumerate(zip(panels, ("memory", "time"), (factor, 1e-3),
        (unit, "ms"),
                                                  strict=True)):  # fmt: skip
        found, formula = (
            {name: values[i] for name, values in some.items()} for some in (measured, predicted)
        )
        words = lambda value, row, of=of, first=found[names[0]]: (
            of + f" (x {value / first:.2f})" * (row > 0)
        )
        _bars(axes, found, formula, per, words, RANK_COLORS[: len(names)])
        axes.set_xlabel(f"{what} ({of})")
    (memory, time), (memory_then, time_then) = measured[names[0]], measured[names[-1]]
    claim = (
        f"{names[-1]}: {memory_then / memory:.0%} of the memory, {time_then / time:.2f} times as "
        f"long"
    )
    look = (
        f"Bars are measured, and the factors in brackets are relative to {names[0]}."
        f"{' Dashed marks show the formula.' * bool(predicted)}"
    )
    words = lambda values: f"{amount(values[0] / factor)} {unit} and {amount(1e3 * values[1])} ms"
    said = in_sentences({"measured": measured, "predicted": predicted}, words)
    return figure, claim, look, "Bars of memory and of time, a bar per way.", said


def _bars(axes, measured, predicted, factor, words, colors=None):
    """A bar per way, labelled with its value and words(value, row), and a mark at the formula's
    value. The bars and the numbers on them are the values divided by `factor`."""
    longest = max([*measured.values(), *predicted.values()]) / factor
    for row, (name, value) in enumerate(measured.items()):
        mark = predicted[name] / factor if name in predicted else None
        text = f"{amount(value / factor)} {words(value, row)}"
        bar(axes, row, value / factor, RANK_COLORS[row], text, longest, mark)
    axes.set_xlim(0, 1.06 * longest)
    rows(axes, measured, colors)
    grid(axes, "x")


def _refuse(measured, predicted, most):
    if not 2 <= len(measured) <= most or not set(predicted) <= set(measured):
        said = f"measured {listed(measured)}, predicted {listed(predicted)}"
        raise ValueError(f"{said}: measure 2 to {most} ways, predict some of them")
