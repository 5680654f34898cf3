"""Parameters against compute per token: a dense layer uses all of its parameters for every token,
while a mixture of experts has many parameters and uses few of them for each."""

from lib.plots.draw import DASHED, grid, numbers, page
from lib.plots.labels import COUNTS, amount, each, in_unit
from lib.plots.style import FAINT, PAPER, RANK_COLORS, drawing

PER_PARAMETER = 2  # FLOPs of forward per parameter used: a multiplication and an addition


@drawing
def sparse_layer(points):
    """A point per model: its parameters against the FLOPs of its forward pass per token. On the
    dashed line every parameter is used for every token.

    points: {"dense": {"D 512": (FLOPs per token, parameters), ...}, "mixture of experts": {...}}, 1
    to 4 kinds; a label is broken into lines at its commas. Raises ValueError for any other number
    of kinds, no point, or values that are not above 0.
    """
    every = [item for of_kind in points.values() for item in of_kind.items()]
    if not 1 <= len(points) <= 4 or not every:
        raise ValueError(
            f"{len(points)} kinds with {len(every)} points: give 1 to 4 kinds, and a point"
        )
    for label, point in every:
        if len(point) != 2 or min(point) <= 0:
            raise ValueError(f"{label}: {point} is not (FLOPs per token, parameters), both above 0")
    figure, axes = page(3.9)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs per token, forward", ylabel="parameters")
    x, y = zip(*(point for _, point in every), strict=True)
    low, high = min(x) / 2.2, max(x) * 3
    axes.plot([low, high], [low / PER_PARAMETER, high / PER_PARAMETER], color=FAINT, ls=DASHED,
              lw=1.4, zorder=1)  # fmt: skip
    for (kind, of_kind), color, marker in zip(points.items(), RANK_COLORS, "osD^", strict=False):
        axes.plot(*zip(*of_kind.values(), strict=True), color=color, lw=0, marker=marker, ms=8,
                  mec=PAPER, zorder=3,
                  label=kind)  # fmt: skip
        for label, point in of_kind.items():
            side, ha = (
                (-1, "right") if _in_the_way(point, [other for _, other in every]) else (1, "left")
            )
            axes.annotate(label.replace(", ", "\n"), point, xytext=(8 * side, -6),
                          textcoords="offset points",
                          va="center", ha=ha, size=9, color=color, weight="bold",
                          zorder=4)  # fmt: skip
    axes.set(xlim=(low, high), ylim=(min(min(y), low / PER_PARAMETER) / 1.3, max(y) * 1.9))
    for axis in (axes.xaxis, axes.yaxis):
        numbers(axis, _amount)
    grid(axes)
    axes.legend(loc="lower right", frameon=False, borderpad=0, handletextpad=0.3)
    times, most = max(
        (PER_PARAMETER * parameters / operations, label)
        for label, (operations, parameters) in every
    )
    claim = f"{most} has {amount(times)} times as many parameters as it uses for a token"
    words = lambda _, point: f"{_amount(point[0])} FLOPs, {_amount(point[1])} parameters"
    said = {
        f"{kind}, {label}": point
        for kind, of_kind in points.items()
        for label, point in of_kind.items()
    }
    return (
        figure, claim,
        f"The dashed line is {PER_PARAMETER} FLOPs per parameter, as in a dense model. A model "
        f"above it has parameters that a token does not use.",
        "Parameters against FLOPs per token on logarithmic axes.", each(said, words),
    )  # fmt: skip


def _in_the_way(point, others):
    """Whether another point is near this one, to the right and below, where its label would be."""
    (x, y), far = point, 2.0  # near: within this factor
    return any(x < other_x < far * x and y / far < other_y < y for other_x, other_y in others)


def _amount(value):
    """1.6e9 -> "1.6 billion"."""
    return in_unit(value, COUNTS, 3)
