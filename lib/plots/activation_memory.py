"""What a rank keeps for backward: of one layer, by how it is split; and by recomputation, beside what that takes."""

from lib.plots.draw import bar, grid, page, rows
from lib.plots.labels import amount, capital, scale
from lib.plots.style import RANK_COLORS, finish, styled


@styled
def activation_memory(measured, predicted=None, title=None, note=""):
    """A bar per way to split, solid what was measured, a dashed mark where the formula puts it.

    measured: {"one process": bytes, "tp 4": bytes, "tp 4 + sequence parallel": bytes, ...}, per rank, 2 to 6 ways, the
    first the one to compare with. predicted: the same, for some or all of the ways; None: no marks.
    note: a sentence to begin the caption with, such as the model's sizes.
    Raises ValueError for another number of ways, a prediction of another way, or bytes that are not above 0.
    """
    predicted = predicted or {}
    _refuse(measured, predicted, 6)
    for name, n_bytes in [*measured.items(), *predicted.items()]:
        if not n_bytes > 0:
            raise ValueError(f"{name}: {n_bytes} bytes; a layer keeps more than 0")
    factor, unit = scale(max([*measured.values(), *predicted.values()]), "bytes")
    first, whole = next(iter(measured.items()))
    figure, axes = page(1.7 + 0.42 * len(measured))
    _bars(axes, measured, predicted, factor, lambda value, row: f"{unit}" + f" ({value / whole:.0%})" * (row > 0))
    axes.set_xlabel(f"kept for backward ({unit})")
    least = min(measured, key=measured.get)
    claim = capital(f"{least}: {measured[least] / whole:.0%} of the activations of {first} on each rank")
    return finish(
        figure,
        title or claim,
        f"{note} Bars: measured; in percent of {first}.{' Dashed: the formula.' * bool(predicted)}",
        f"Bars of the memory that activations take on a rank, a bar per way to split. {claim}. {note} "
        + " ".join(
            f"{name}: {amount(n_bytes / factor)} {unit} measured"
            + (f", {amount(predicted[name] / factor)} {unit} by the formula." if name in predicted else ".")
            for name, n_bytes in measured.items()
        ),
    )


@styled
def recompute(measured, predicted=None, title=None, note=""):
    """Two panels, memory and time, a bar per way; a dashed mark where the formula puts it.

    measured: {"keep all": (bytes, seconds), "recompute": (bytes, seconds)}, 2 to 4 ways, the first the one to compare
    with. predicted: the same, for some or all of the ways. note: a sentence to begin the caption with.
    Raises ValueError for another number of ways, a prediction of another, or what is not above 0.
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
    for i, (axes, what, per, of) in enumerate(zip(panels, ("memory", "time"), (factor, 1e-3), (unit, "ms"),
                                                  strict=True)):  # fmt: skip
        found, formula = ({name: values[i] for name, values in some.items()} for some in (measured, predicted))
        words = lambda value, row, of=of, first=found[names[0]]: of + f" (x {value / first:.2f})" * (row > 0)
        _bars(axes, found, formula, per, words, RANK_COLORS[: len(names)])
        axes.set_xlabel(f"{what} ({of})")
    (memory, time), (memory_then, time_then) = measured[names[0]], measured[names[-1]]
    claim = f"{names[-1]}: {memory_then / memory:.0%} of the memory, {time_then / time:.2f} times as long"
    words = lambda values: f"{amount(values[0] / factor)} {unit} and {amount(1e3 * values[1])} ms"
    return finish(
        figure,
        title or capital(claim),
        f"{note} Bars: measured; (x ...): of {names[0]}.{' Dashed: the formula.' * bool(predicted)}",
        f"Bars of memory and of time, a bar per way. {claim}. {note} "
        + " ".join(f"{name}, measured: {words(values)}." for name, values in measured.items())
        + "".join(f" {name}, predicted: {words(values)}." for name, values in predicted.items()),
    )


def _bars(axes, measured, predicted, factor, words, colors=None):
    """A bar per way, in the unit that is `factor`, its number and words(value, row) on it, and the formula's marks."""
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
        raise ValueError(
            f"measured {', '.join(measured) or 'nothing'}, predicted {', '.join(predicted) or 'nothing'}: "
            f"measure 2 to {most} ways, predict some of them"
        )
