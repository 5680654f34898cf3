"""Where a plan's seconds and bytes go: the parts' colours, and bars of them. What plan_ranking and plan_cost share.

    [ matrix products ][ other kernels ][ tp ][ pp ][ bubble ][ dp ][ optimizer ]        tp, pp, dp: messages along it

The cost model knows eleven parts of a step (lib.cost.step); those that a reader would add up anyway are one here.
"""

from matplotlib.patches import Rectangle

from lib.plots.memory import PART_COLOR
from lib.plots.style import OP_COLOR, PAPER, RANK_COLORS, on_color

SECONDS = {  # what is drawn: (colour, the cost model's components)
    "matrix products": (OP_COLOR["F"], ("matmul",)),
    "other kernels": ("#b9d9f3", ("attention", "elementwise", "launch")),
    "tp": (OP_COLOR["send"], ("tensor",)),
    "cp and ep": (RANK_COLORS[2], ("context", "expert")),
    "pp": (RANK_COLORS[6], ("message",)),
    "bubble": (OP_COLOR["idle"], ("bubble",)),
    "dp": (PART_COLOR["gradients"], ("sharding",)),
    "optimizer": (RANK_COLORS[7], ("optimizer",)),
}
BYTES = {
    "weights": (PART_COLOR["weights"], ("weights",)),
    "gradients": (PART_COLOR["gradients"], ("gradients",)),
    "optimizer": (PART_COLOR["fp32 weights"], ("optimizer",)),
    "activations": (PART_COLOR["activations"], ("activations", "received")),
    "logits": (RANK_COLORS[2], ("logits",)),
    "comes and goes": ("#c4c1b8", ("working", "reserve")),
}


def name_of(plan):
    """A Plan, or words, as a label: without what the plan does not do."""
    return str(plan).replace(" recompute=none", "").replace("recompute=full", "recompute")


def grouped(costs, parts):
    """{component: number} of the cost model -> {part: number}, in the order of `parts`, without those that are 0.

    Raises ValueError for a component that no part has, or a number below 0.
    """
    known = {component for _, components in parts.values() for component in components}
    if not costs or not set(costs) <= known or min(costs.values()) < 0:
        raise ValueError(f"{costs} is not 0 or more of each of {', '.join(sorted(known))}")
    sums = {part: sum(costs.get(each, 0.0) for each in components) for part, (_, components) in parts.items()}
    return {part: value for part, value in sums.items() if value}


def draw_bar(axes, row, found, parts, end, inches, words=str, height=0.66, hatch=None):
    """The parts end to end on one row, each with its number where there is room. Returns where the bar ends.

    found: {part: length}; end: of the axis; inches: how long the axis is on the page; words: a number as text.
    """
    start = 0.0
    for part, size in found.items():
        color, wide = parts[part][0], size / end * inches
        axes.add_patch(Rectangle((start, row - height / 2), size, height, fc=color, ec=PAPER, lw=0.8 * (wide > 0.06),
                                 zorder=2))  # fmt: skip
        text = words(size)
        if wide > 0.085 * len(text) + 0.06:
            label = axes.text(start + size / 2, row, text, ha="center", va="center_baseline", size=8.5, zorder=5,
                              color=on_color(color))  # fmt: skip
            label.set_in_layout(False)  # inside the axes: laying out without it is faster, for a slider
        start += size
    if hatch:
        axes.add_patch(
            Rectangle((0, row - height / 2), start, height, fc="none", ec=PAPER, hatch=hatch, lw=0, zorder=3)
        )
    return start


def draw_key(axes, used, parts):
    """Above `axes`: the colours of the parts that are used, in their order."""
    handles = [Rectangle((0, 0), 1, 1, fc=parts[part][0], label=part) for part in parts if part in used]
    columns = 8 if len(used) < 8 else 4
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, ncols=columns,
                frameon=False, borderpad=0, handlelength=1.0, handletextpad=0.4, columnspacing=0.9,
                fontsize=9)  # fmt: skip
