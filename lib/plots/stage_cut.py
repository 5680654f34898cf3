"""Layers cut into stages on groups of devices, as a search found it: what each stage takes, and on what.

stage 0   2 GPUs  [0][1][ 2 ][3]         6 ms          a box: a layer, as long as it takes on these devices
stage 1   1 GPU   [  4  ][  5  ]         6.2 ms        red: the slowest, for which all others wait
"""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.boxes import amount
from lib.plots.style import ALARM, INK, PAPER, finish, on_color, rank_color, styled


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
    for name, cut in cuts.items():
        if [i for stage in cut.layers for i in stage] != list(range(n_layers)) or not all(map(len, cut.layers)):
            raise ValueError(f"{name}: {[list(stage) for stage in cut.layers]} is no cut of {n_layers} layers: each "
                             "once, in order, and at least one per stage")  # fmt: skip
        if not set(cut.devices) <= set(costs) or len(cut.devices) != len(cut.layers):
            raise ValueError(
                f"{name}: devices {list(cut.devices)} for {len(cut.layers)} stages, costs on {list(costs)}"
            )
    named = on or {k: f"{k} device{'s' * (k != 1)}" for k in costs}
    loads = {
        name: [sum(costs[k][i] for i in stage) for stage, k in zip(cut.layers, cut.devices, strict=True)]
        for name, cut in cuts.items()
    }
    longest, rows = max(map(max, loads.values())), max(map(len, loads.values()))
    apart = "\n" if rows <= 6 else ", "
    figure = Figure(figsize=(8, min(4.0, 1.65 + 0.36 * rows)))
    panels = figure.subplots(1, len(cuts), squeeze=False, sharex=True)[0]
    for axes, (name, cut) in zip(panels, cuts.items(), strict=True):
        pace = max(loads[name])
        for s, (stage, k) in enumerate(zip(cut.layers, cut.devices, strict=True)):
            start, color = 0.0, rank_color(s)
            for i in stage:
                axes.add_patch(Rectangle((start, s - 0.36), costs[k][i], 0.72, fc=color, ec=PAPER, lw=1.0, zorder=2))
                if costs[k][i] / longest * 5.0 / len(cuts) > 0.085 * len(str(i)) + 0.03:  # inches
                    axes.text(start + costs[k][i] / 2, s, str(i), ha="center", va="center_baseline", size=8.5,
                              color=on_color(color), zorder=3)  # fmt: skip
                start += costs[k][i]
            slowest = loads[name][s] == pace
            if slowest:
                axes.add_patch(Rectangle((0, s - 0.4), start, 0.8, fc="none", ec=ALARM, lw=2.6, zorder=5))
            axes.annotate(amount(start), (start, s), xytext=(5, 0), textcoords="offset points", va="center_baseline",
                          weight="bold", color=ALARM if slowest else INK, zorder=6,
                          bbox={"boxstyle": "round,pad=0.1", "fc": PAPER, "ec": "none"})  # fmt: skip
        axes.axvline(pace, color=ALARM, lw=1.4, zorder=1)
        axes.set(xlim=(0, 1.2 * longest), ylim=(len(loads[name]) - 0.45, -0.55), xlabel=f"time of a stage ({unit})")
        labels = [f"stage {s}{apart}{named[k]}" for s, k in enumerate(cut.devices)]
        axes.set_yticks(range(len(labels)), labels, size=9, linespacing=0.95)
        for label, s in zip(axes.get_yticklabels(), range(len(loads[name])), strict=True):
            label.set(color=rank_color(s), weight="bold")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        words = f"step {amount(_step(loads[name], microbatches))}" if microbatches else f"pace {amount(pace)}"
        axes.set_title(f"{name}: {words} {unit}", loc="left", size=10, weight="bold")
    claim = _claim(loads, microbatches, unit)
    of_m = f" A step of {microbatches} micro-batches: sum + {microbatches - 1} slowest." if microbatches else ""
    return finish(
        figure,
        title or f"{claim[0].upper()}{claim[1:]}",
        f"{note} A block: a layer, as long as it takes on these devices. Red: the slowest.{of_m}".strip(),
        f"{n_layers} layers cut into stages on devices, a panel per cut. {claim}. {note} "
        + " ".join(f"{name}: {_of_stages(cut, loads[name], named)}." for name, cut in cuts.items()),
    )


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


def _of_stages(cut, load, named):
    return ", ".join(
        f"stage {s} on {named[k]} layers {stage[0]} to {stage[-1]} take {amount(t)}"
        for s, (stage, k, t) in enumerate(zip(cut.layers, cut.devices, load, strict=True))
    )
