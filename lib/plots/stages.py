"""Who holds what at each stage of ZeRO: every stage cuts one row more (Rajbhandari et al. 2020, figure 1).

             stage 0      stage 1      stage 2      stage 3
weights      ####  ####   ####  ####   ####  ####   #...  .#..       ####  whole, the same on every rank
gradients    ####  ####   ####  ####   #...  .#..   #...  .#..       .#..  this rank's part alone
optimizer    ####  ####   #...  .#..   #...  .#..   #...  .#..
"""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.cost.state import RECIPES
from lib.cost.zero import SHARDED, rank_state
from lib.plots.labels import short
from lib.plots.sharded import EVERYWHERE
from lib.plots.style import FAINT, finish, rank_color, styled

NAMES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP")
# Rows, and the part of the model state by which one sees that the row is cut.
ROWS = {"weights": "weight", "gradients": "gradient", "optimizer\nstate": "master"}
SIDE = 0.88  # of a cell; what is left keeps cells apart


@styled
def who_holds_what(N=4, title=None):
    """A panel per stage, a column per rank, a row per part of the model state. No data: a picture. N: 2 to 8."""
    if not 2 <= N <= 8:
        raise ValueError(f"N={N}: a column per rank, 2 to 8 of them can be read")
    figure = Figure(figsize=(8, 3.6))
    kept = [short(rank_state(1, stage, N).total) for stage in SHARDED]  # bytes per parameter
    panels = figure.subplots(1, len(SHARDED), sharey=True)
    for axes, (stage, cut) in zip(panels, SHARDED.items(), strict=True):
        for row, part in enumerate(ROWS.values()):
            for rank in range(N):
                _cell(axes, rank, row, N, part in cut)
        axes.set(xlim=(-0.1, N + 0.1), ylim=(len(ROWS) + 0.05, -0.05))
        axes.set_xticks([rank + 0.5 for rank in range(N)], range(N))
        axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False, pad=1)
        for tick, rank in zip(axes.xaxis.get_major_ticks(), range(N), strict=True):
            tick.label2.set(color=rank_color(rank), weight="bold")  # the one on top
        axes.spines[:].set_visible(False)
        axes.set_title(f"stage {stage}\n{NAMES[stage]}", loc="left", size=10, weight="bold")
        axes.set_xlabel(f"{kept[stage]} bytes", weight="bold", size=11)
    state = RECIPES["mixed"]
    each = (state.weight, state.gradient, state.total - state.weight - state.gradient)
    names = [f"{name}\n{n_bytes} bytes" for name, n_bytes in zip(ROWS, each, strict=True)]
    panels[0].set_yticks([row + 0.5 for row in range(len(ROWS))], names)
    claim = f"Each stage cuts one row more: {', '.join(kept)} bytes per parameter and rank"
    return finish(
        figure,
        title or claim,
        f"A column is a rank. Grey: whole, the same on all ranks. Coloured: 1/{N} of it, this rank's alone. Bytes: per "
        "parameter in mixed precision with Adam.",
        f"A picture of the four stages of ZeRO on {N} ranks, a panel per stage, a row each for weights, gradients and "
        f"optimizer state, a column per rank. {claim}. Stage 0: every rank holds all three whole. Stage 1: each rank "
        f"holds 1/{N} of the optimizer state, and the rest whole. Stage 2: 1/{N} of gradients and optimizer state, and "
        f"the weights whole. Stage 3: 1/{N} of everything. A rank's part is a strip in its colour.",
    )


def _cell(axes, rank, row, N, is_cut):
    """What one rank holds of one part: all of it, or an outline with the rank's strip."""
    left, top = rank + (1 - SIDE) / 2, row + (1 - SIDE) / 2
    if not is_cut:
        axes.add_patch(Rectangle((left, top), SIDE, SIDE, fc=EVERYWHERE, ec="none", zorder=2))
        return
    strip = SIDE / N
    axes.add_patch(Rectangle((left, top + rank * strip), SIDE, strip, fc=rank_color(rank), ec="none", zorder=2))
    axes.add_patch(Rectangle((left, top), SIDE, SIDE, fc="none", ec=FAINT, lw=0.9, zorder=3))
