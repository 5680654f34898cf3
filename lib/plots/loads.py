"""Layers of unequal cost, cut into stages: a pipeline moves at the pace of its slowest stage."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.boxes import amount
from lib.plots.style import ALARM, INK, PAPER, finish, on_color, rank_color, styled


@styled
def stage_loads(costs, cuts, unit="units", title=None, note=""):
    """A panel per cut, a row per stage: its layers end to end, each as long as it costs; the slowest stage in red.

    costs: one per layer. cuts: {"equal counts": [range(0, 4), range(4, 8)], "balanced": balance(costs, p)}; 1 to 3, the
    first the one to compare with. unit: of a cost, such as ms. note: a sentence to begin the caption with.
    Raises ValueError for another number of cuts, or for one that is not all layers in order, each once.
    """
    if not 1 <= len(cuts) <= 3:
        raise ValueError(f"{len(cuts)} cuts: 1 to 3 fit beside each other")
    for name, cut in cuts.items():
        if [layer for stage in cut for layer in stage] != list(range(len(costs))) or not all(map(len, cut)):
            raise ValueError(
                f"{name}: {[list(stage) for stage in cut]} is no cut of {len(costs)} layers: each once, in order, "
                "and at least one per stage"
            )
    loads = {name: [sum(costs[layer] for layer in stage) for stage in cut] for name, cut in cuts.items()}
    pace = {name: max(load) for name, load in loads.items()}
    longest = max(pace.values())
    rows = max(map(len, cuts.values()))

    figure = Figure(figsize=(8, min(4.0, 1.65 + 0.36 * rows)))
    panels = figure.subplots(1, len(cuts), squeeze=False, sharex=True)[0]
    for axes, (name, cut) in zip(panels, cuts.items(), strict=True):
        for s, stage in enumerate(cut):
            start, color = 0, rank_color(s)
            for layer in stage:
                axes.add_patch(Rectangle((start, s - 0.36), costs[layer], 0.72, fc=color, ec=PAPER, lw=1.0, zorder=2))
                if costs[layer] / longest * 5.6 / len(cuts) > 0.085 * len(str(layer)) + 0.03:  # inches
                    axes.text(start + costs[layer] / 2, s, str(layer), ha="center", va="center_baseline", size=8.5,
                              color=on_color(color), zorder=3)  # fmt: skip
                start += costs[layer]
            is_slowest = loads[name][s] == pace[name]
            if is_slowest:
                axes.add_patch(Rectangle((0, s - 0.4), start, 0.8, fc="none", ec=ALARM, lw=2.6, zorder=5))
            axes.annotate(amount(start), (start, s), xytext=(5, 0), textcoords="offset points", va="center_baseline",
                          weight="bold", color=ALARM if is_slowest else INK, zorder=6,
                          bbox={"boxstyle": "round,pad=0.1", "fc": PAPER, "ec": "none"})  # fmt: skip
        axes.axvline(pace[name], color=ALARM, lw=1.4, zorder=1)
        axes.set(xlim=(0, 1.16 * longest), ylim=(len(cut) - 0.45, -0.55), xlabel=f"time of a stage ({unit})")
        axes.set_yticks(range(len(cut)), [f"stage {s}" for s in range(len(cut))])
        for label, s in zip(axes.get_yticklabels(), range(len(cut)), strict=True):
            label.set(color=rank_color(s), weight="bold")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_title(f"{name}: pace {amount(pace[name])} {unit}", loc="left", size=10, weight="bold")
    (first, before), (best, after) = next(iter(pace.items())), min(pace.items(), key=lambda item: item[1])
    claim = (
        f"{best}: a pace of {amount(after)} {unit} instead of {amount(before)}, {before / after:.2f} times as fast"
        if after < before
        else f"{first}: the slowest stage sets the pace, {amount(before)} {unit}"
    )
    return finish(
        figure,
        title or f"{claim[0].upper()}{claim[1:]}",
        f"{note} A block is a layer, as long as it takes. Red: the slowest, for which all others wait.".strip(),
        f"{len(costs)} layers cut into stages, a panel per cut. {claim}. {note} "
        + " ".join(f"{name}: {_of_stages(cut, loads[name])}." for name, cut in cuts.items()),
    )


def _of_stages(cut, loads):
    return ", ".join(
        f"stage {s} layers {stage[0]} to {stage[-1]} take {amount(load)}"
        for s, (stage, load) in enumerate(zip(cut, loads, strict=True))
    )
