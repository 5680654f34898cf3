"""Layers split into stages, on equal devices or as a search placed them. A pipeline moves at the
pace of its slowest stage.

stage 0   2 GPUs  [0][1][ 2 ][3]     6 ms       a box: a layer, as long as it takes on these devices
stage 1   1 GPU   [  4  ][  5  ]     6.2 ms     red: the slowest, for which all others wait
"""

from lib.plots.draw import beside, box, heading, page, rank_rows, rows
from lib.plots.labels import amount, each
from lib.plots.style import ALARM, INK, drawing, rank_color


@drawing
def stage_loads(costs, cuts, unit="units"):
    """A panel per split, a row per stage: its layers end to end, each as long as its cost. The
    slowest stage is red.

    costs: one per layer. cuts: {"equal counts": [range(0, 4), range(4, 8)], "balanced":
    balance(costs, p)}, 1 to 3 splits; the title compares the fastest with the first. unit: of a
    cost, such as ms. Raises ValueError for any other number of splits, or for one that does not
    contain all layers in order, each once.
    """
    if not 1 <= len(cuts) <= 3:
        raise ValueError(f"{len(cuts)} cuts: 1 to 3 fit beside each other")
    _refuse(cuts, len(costs))
    layers = {name: [[costs[i] for i in stage] for stage in cut] for name, cut in cuts.items()}
    figure, panels = _page(cuts, layers, 1.16, 5.6, unit, None)
    for axes, stages in zip(panels, cuts.values(), strict=True):
        rank_rows(axes, range(len(stages)), "stage {}")
    look = "A block is a layer, as long as it takes. All others wait for the slowest, which is red."
    words = each(cuts, lambda name, cut: _of_stages(cut, layers[name]))
    return (
        figure,
        _claim(layers, None, unit),
        look,
        f"{len(costs)} layers cut into stages, a panel per cut.",
        words,
    )


@drawing
def stage_cut(cuts, costs, microbatches=None, unit="units", on=None):
    """A panel per split, a row per stage: its devices, and its layers end to end. The slowest stage
    is red.

    cuts: {"one device each": Stages, "found": Stages}, 1 or 2 results of cut_into_stages or
    stages_by_speed, or other objects with .layers, a range per stage, and .devices. costs: {device:
    [cost of each layer on it], ...}, with a key for each entry of .devices. Such an entry is the
    number of a stage's devices, or the name of its device. microbatches: m; if given, panels and
    title show the step time, sum t + (m-1) max t. unit: of a cost. on: {device: its name in the
    figure}; None: a name such as "2 devices". Raises ValueError for any other number of splits, one
    that does not contain all layers in order, or a device without costs.
    """
    if not 1 <= len(cuts) <= 2:
        raise ValueError(f"{len(cuts)} cuts: 1 or 2 fit beside each other")
    n_layers = len(next(iter(costs.values())))
    _refuse({name: cut.layers for name, cut in cuts.items()}, n_layers)
    for name, cut in cuts.items():
        if not set(cut.devices) <= set(costs) or len(cut.devices) != len(cut.layers):
            raise ValueError(
                f"{name}: devices {list(cut.devices)} for {len(cut.layers)} stages, costs on "
                f"{list(costs)}"
            )
    named = on or {k: f"{k} device{'s' * (k != 1)}" for k in costs}
    layers = {
        name: [
            [costs[k][i] for i in stage] for stage, k in zip(cut.layers, cut.devices, strict=True)
        ]
        for name, cut in cuts.items()
    }
    figure, panels = _page(
        {name: cut.layers for name, cut in cuts.items()}, layers, 1.2, 5.0, unit, microbatches
    )
    apart = "\n" if max(map(len, layers.values())) <= 6 else ", "
    for axes, cut in zip(panels, cuts.values(), strict=True):
        names = [f"stage {s}{apart}{named[k]}" for s, k in enumerate(cut.devices)]
        rows(axes, names, map(rank_color, range(len(names))), size=9, linespacing=0.95)
    of_m = (
        f" A step of {microbatches} micro-batches takes the sum + {microbatches - 1} slowest."
        if microbatches
        else ""
    )
    words = lambda name, cut: _of_stages(
        cut.layers, layers[name], [f" on {named[k]}" for k in cut.devices]
    )
    return (
        figure, _claim(layers, microbatches, unit),
        f"A block is a layer, as long as it takes on these devices. The slowest is red.{of_m}",
        f"{n_layers} layers cut into stages on devices, a panel per cut.", each(cuts, words),
    )  # fmt: skip


def _refuse(cuts, n_layers):
    for name, cut in cuts.items():
        if [layer for stage in cut for layer in stage] != list(range(n_layers)) or not all(
            map(len, cut)
        ):
            raise ValueError(
                f"{name}: {[list(stage) for stage in cut]} is no cut of {n_layers} layers: each "
                f"once, in order, and at least one per stage"
            )


def _page(cuts, layers, room, inches, unit, m):
    """(figure, panels), a panel per split. room: the length of the axis as a multiple of the
    slowest stage; inches: of all axes together."""
    figure, panels = page(
        1.65 + 0.36 * max(map(len, cuts.values())), columns=len(cuts), sharex=True
    )
    end = room * max(sum(costs) for stages in layers.values() for costs in stages)
    for axes, (name, cut) in zip(panels, cuts.items(), strict=True):
        _panel(axes, cut, layers[name], end, inches / len(cuts), unit)
        heading(axes, f"{name}: {'step' if m else 'pace'} {amount(_takes(layers[name], m))} {unit}")
    return figure, panels


def _panel(axes, cut, layers, end, inches, unit):
    """A row per stage with its layers end to end, each as long as its cost. The axis ends at `end`
    and is `inches` long."""
    pace = max(map(sum, layers))
    for s, (stage, costs) in enumerate(zip(cut, layers, strict=True)):
        start, color = 0.0, rank_color(s)
        for layer, cost in zip(stage, costs, strict=True):
            box(axes, start, s - 0.36, cost, 0.72, color, str(layer), cost / end * 1.16 * inches,
                8.5, lw=1.0)  # fmt: skip
            start += cost
        slowest = sum(costs) == pace
        if slowest:
            box(axes, 0, s - 0.4, start, 0.8, "none", ec=ALARM, lw=2.6, zorder=5)
        # a number that the line of the slowest stage would cross is written after that line
        at = pace if start + 0.15 * end > pace else start
        beside(axes, at, s, amount(start), ALARM if slowest else INK, 5)
    axes.axvline(pace, color=ALARM, lw=1.4, zorder=1)
    axes.set(xlim=(0, end), xlabel=f"time of a stage ({unit})")


def _takes(stages, m):
    """The time of a step, T = sum t + (m-1) max t; without m the pace, max t."""
    load = list(map(sum, stages))
    return sum(load) + (m - 1) * max(load) if m else max(load)


def _claim(layers, m, unit):
    found = {name: _takes(stages, m) for name, stages in layers.items()}
    what = "a step" if m else "a pace"
    first, best = next(iter(found)), min(found, key=found.get)
    if found[best] == found[first]:
        return f"{first}: {len(layers[first])} stages, {what} of {amount(found[first])} {unit}"
    claim = f"{best}: {what} of {amount(found[best])} {unit} instead of {amount(found[first])}"
    return f"{claim}, {found[first] / found[best]:.2f} times as fast"


def _of_stages(cut, layers, on=None):
    return ", ".join(
        f"stage {s}{on[s] if on else ''} layers {stage[0]} to {stage[-1]} take {amount(sum(costs))}"
        for s, (stage, costs) in enumerate(zip(cut, layers, strict=True))
    )
