"""Layers cut into stages: a pipeline moves at the pace of its slowest. On equal devices, or as a search placed them.

stage 0   2 GPUs  [0][1][ 2 ][3]         6 ms          a box: a layer, as long as it takes on these devices
stage 1   1 GPU   [  4  ][  5  ]         6.2 ms        red: the slowest, for which all others wait
"""

from lib.plots.draw import beside, box, heading, page, rank_rows, rows
from lib.plots.labels import amount, capital
from lib.plots.style import ALARM, INK, finish, rank_color, styled


@styled
def stage_loads(costs, cuts, unit="units", title=None, note=""):
    """A panel per cut, a row per stage: its layers end to end, each as long as it costs; the slowest stage in red.

    costs: one per layer. cuts: {"equal counts": [range(0, 4), range(4, 8)], "balanced": balance(costs, p)}; 1 to 3, the
    first the one to compare with. unit: of a cost, such as ms. note: a sentence to begin the caption with.
    Raises ValueError for another number of cuts, or for one that is not all layers in order, each once.
    """
    if not 1 <= len(cuts) <= 3:
        raise ValueError(f"{len(cuts)} cuts: 1 to 3 fit beside each other")
    _refuse(cuts, len(costs))
    layers = {name: [[costs[i] for i in stage] for stage in cut] for name, cut in cuts.items()}
    pace = {name: max(map(sum, stages)) for name, stages in layers.items()}
    figure, panels = _page(cuts)
    for axes, name in zip(panels, cuts, strict=True):
        _panel(axes, cuts[name], layers[name], 1.16 * max(pace.values()), 5.6 / len(cuts), unit)
        rank_rows(axes, range(len(cuts[name])), "stage {}")
        heading(axes, f"{name}: pace {amount(pace[name])} {unit}")
    (first, before), (best, after) = next(iter(pace.items())), min(pace.items(), key=lambda item: item[1])
    claim = (
        f"{best}: a pace of {amount(after)} {unit} instead of {amount(before)}, {before / after:.2f} times as fast"
        if after < before
        else f"{first}: the slowest stage sets the pace, {amount(before)} {unit}"
    )
    return finish(
        figure,
        title or capital(claim),
        f"{note} A block is a layer, as long as it takes. Red: the slowest, for which all others wait.",
        f"{len(costs)} layers cut into stages, a panel per cut. {claim}. {note} "
        + " ".join(f"{name}: {_of_stages(cut, layers[name])}." for name, cut in cuts.items()),
    )


@styled
def stage_cut(cuts, costs, microbatches=None, unit="units", on=None, title=None, note=""):
    """A panel per cut, a row per stage: its devices, and its layers end to end; the slowest stage in red.

    cuts: {"one device each": Stages, "found": Stages}, 1 or 2 results of cut_into_stages or stages_by_speed: what
    has .layers, a range per stage, and .devices. costs: {device: [cost of each layer on it]}, for all that .devices
    names: how many devices a stage has, or which one. microbatches: m; the panels and the title then tell the step,
    sum t + (m-1) max t. unit: of a cost. on: {device: how it reads}; left out: "2 devices". note: to begin the caption.
    Raises ValueError for another number of cuts, one that is not all layers in order, or a device without costs.
    """
    if not 1 <= len(cuts) <= 2:
        raise ValueError(f"{len(cuts)} cuts: 1 or 2 fit beside each other")
    n_layers = len(next(iter(costs.values())))
    _refuse({name: cut.layers for name, cut in cuts.items()}, n_layers)
    for name, cut in cuts.items():
        if not set(cut.devices) <= set(costs) or len(cut.devices) != len(cut.layers):
            raise ValueError(
                f"{name}: devices {list(cut.devices)} for {len(cut.layers)} stages, costs on {list(costs)}"
            )
    named = on or {k: f"{k} device{'s' * (k != 1)}" for k in costs}
    layers = {
        name: [[costs[k][i] for i in stage] for stage, k in zip(cut.layers, cut.devices, strict=True)]
        for name, cut in cuts.items()
    }
    loads = {name: list(map(sum, stages)) for name, stages in layers.items()}
    figure, panels = _page(layers)
    for axes, (name, cut) in zip(panels, cuts.items(), strict=True):
        _panel(axes, cut.layers, layers[name], 1.2 * max(map(max, loads.values())), 5.0 / len(cuts), unit)
        apart = "\n" if max(map(len, loads.values())) <= 6 else ", "
        names = [f"stage {s}{apart}{named[k]}" for s, k in enumerate(cut.devices)]
        rows(axes, names, map(rank_color, range(len(names))), size=9, linespacing=0.95)
        step, pace = amount(_step(loads[name], microbatches or 1)), amount(max(loads[name]))
        heading(axes, f"{name}: {f'step {step}' if microbatches else f'pace {pace}'} {unit}")
    claim = _claim(loads, microbatches, unit)
    of_m = f" A step of {microbatches} micro-batches: sum + {microbatches - 1} slowest." if microbatches else ""
    return finish(
        figure,
        title or capital(claim),
        f"{note} A block: a layer, as long as it takes on these devices. Red: the slowest.{of_m}",
        f"{n_layers} layers cut into stages on devices, a panel per cut. {claim}. {note} "
        + " ".join(
            f"{name}: {_of_stages(cut.layers, layers[name], [f' on {named[k]}' for k in cut.devices])}."
            for name, cut in cuts.items()
        ),
    )


def _refuse(cuts, n_layers):
    for name, cut in cuts.items():
        if [layer for stage in cut for layer in stage] != list(range(n_layers)) or not all(map(len, cut)):
            raise ValueError(
                f"{name}: {[list(stage) for stage in cut]} is no cut of {n_layers} layers: each once, in order, "
                "and at least one per stage"
            )


def _page(cuts):
    return page(1.65 + 0.36 * max(map(len, cuts.values())), columns=len(cuts), sharex=True)


def _panel(axes, cut, layers, end, inches, unit):
    """Layers end to end, a row per stage, each of its cost; the axis ends at `end` and is so many inches long."""
    pace = max(map(sum, layers))
    for s, (stage, costs) in enumerate(zip(cut, layers, strict=True)):
        start, color = 0.0, rank_color(s)
        for layer, cost in zip(stage, costs, strict=True):
            box(axes, start, s - 0.36, cost, 0.72, color, str(layer), cost / end * 1.16 * inches, 8.5, lw=1.0)
            start += cost
        slowest = sum(costs) == pace
        if slowest:
            box(axes, 0, s - 0.4, start, 0.8, "none", ec=ALARM, lw=2.6, zorder=5)
        beside(axes, start, s, amount(start), ALARM if slowest else INK, 5)
    axes.axvline(pace, color=ALARM, lw=1.4, zorder=1)
    axes.set(xlim=(0, end), xlabel=f"time of a stage ({unit})")


def _step(load, m):
    """T = sum t + (m-1) max t."""
    return sum(load) + (m - 1) * max(load)


def _claim(loads, m, unit):
    found = {name: _step(load, m) if m else max(load) for name, load in loads.items()}
    what = "a step" if m else "a pace"
    first, best = next(iter(found)), min(found, key=found.get)
    if found[best] == found[first]:
        return f"{first}: {len(loads[first])} stages, {what} of {amount(found[first])} {unit}"
    claim = f"{best}: {what} of {amount(found[best])} {unit} instead of {amount(found[first])}"
    return f"{claim}, {found[first] / found[best]:.2f} times as fast"


def _of_stages(cut, layers, on=None):
    return ", ".join(
        f"stage {s}{on[s] if on else ''} layers {stage[0]} to {stage[-1]} take {amount(sum(costs))}"
        for s, (stage, costs) in enumerate(zip(cut, layers, strict=True))
    )
