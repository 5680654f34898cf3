"""Who waits for whom, and the cycle in it."""

import math

from matplotlib.figure import Figure

from lib.plots.circle import draw_arrow, draw_ranks
from lib.plots.style import ALARM, FAINT, finish, styled


@styled
def waits_for(waits, labels=None, title=None):
    """Ranks on a circle and an arrow from each rank to the one it waits for; a cycle, in which nobody can move, in red.

    waits: {rank: [the ranks it waits for]}, as in `launch.RankError.waits`.
    labels: {rank: "recv, line 4"}, written beside the rank.
    """
    edges, labels = [(a, b) for a in sorted(waits) for b in waits[a]], labels or {}
    if not edges:
        raise ValueError(f"waits {waits}: nobody waits for anybody, so there is nothing to draw")
    if any(a == b for a, b in edges):
        raise ValueError(f"rank {next(a for a, b in edges if a == b)} cannot wait for itself")
    N = max(max(edge) for edge in edges + [(r, r) for r in labels]) + 1
    cycle = find_cycle(edges)
    in_cycle = set(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    waiting = {a for a, _ in edges}
    disks = draw_ranks(axes, N, radius=min(0.24, 1.6 / N), filled=waiting, size=13)
    for a, b in edges:
        both = (b, a) in edges  # two that wait for each other: two arrows, bent apart
        draw_arrow(axes, disks[a], disks[b], *((ALARM, 3.2) if (a, b) in in_cycle else (FAINT, 1.4)), bend=0.16 * both)
    for r, disk in enumerate(disks):
        (x, y), away = disk.center, disk.radius + 0.12
        text = labels.get(r, "" if r in waiting else "waits for nobody")
        if abs(x) < 0.05:
            axes.text(x, y + math.copysign(away + 0.06, y), text, ha="center", va="center")
        else:
            axes.text(x + math.copysign(away, x), y, text, ha="left" if x > 0 else "right", va="center")
    axes.set(xlim=(-3.1, 3.1), ylim=(-1.5, 1.5))
    free = sorted({b for _, b in edges} - waiting)
    if cycle:
        first, *rest = zip(cycle, cycle[1:] + cycle[:1], strict=True)
        claim = f"Deadlock: rank {first[0]} waits for {first[1]}" + "".join(f", {a} for {b}" for a, b in rest)
    else:
        claim = f"No cycle: all wait, in the end, for rank{'s' * (len(free) > 1)} {', '.join(map(str, free))}"
    return finish(
        figure,
        title or claim,
        "An arrow points to the rank that is waited for."
        + (" Red: each waits for the next, so nobody moves." * bool(cycle)),
        f"{N} ranks on a circle, an arrow from each waiting rank to the one it waits for. {claim}. All arrows: "
        + ", ".join(f"{a} to {b}" for a, b in edges)
        + ".",
    )


def find_cycle(edges):
    """The ranks of one cycle in the directed edges, smallest first, or [] if there is none."""
    after = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)

    def walk(path):
        for b in after.get(path[-1], []):
            if b == path[0]:
                return path
            if b not in path and b > path[0] and (found := walk([*path, b])):  # every cycle has a smallest rank
                return found
        return []

    return next((found for start in sorted(after) if (found := walk([start]))), [])
