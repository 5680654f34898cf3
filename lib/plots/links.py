"""How fast links really are: what NCCL's all-reduce reaches over each, as published."""

from matplotlib.figure import Figure

from lib.cost.published import table
from lib.plots.style import OP_COLOR, RANK_COLORS, finish, styled

WHERE = {"inside": ("inside a node", RANK_COLORS[0]), "between": ("between nodes", RANK_COLORS[5])}


@styled
def topology(title=None):
    """A dot per link on a logarithmic axis of bandwidth, fastest first, inside a node and between nodes."""
    rows = sorted(table("links"), key=lambda row: -row["busbw_GBps"])
    fastest, slowest = rows[0]["busbw_GBps"], rows[-1]["busbw_GBps"]
    figure = Figure(figsize=(8, 4))
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        _, color = WHERE[row["where"]]
        axes.plot([slowest / 2, row["busbw_GBps"]], [place, place], color=OP_COLOR["idle"], lw=1.2, zorder=1)
        axes.plot([row["busbw_GBps"]], [place], marker="o" if row["where"] == "inside" else "s", ms=9, color=color)
        axes.annotate(f"{row['busbw_GBps']:.0f}", (row["busbw_GBps"], place), xytext=(9, 0),
                      textcoords="offset points", va="center_baseline", weight="bold", color=color)  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{row['link']}\n{row['gpus']} {row['cite']}" for row in rows], size=8)
    axes.set(xscale="log", xlim=(slowest / 2, 2 * fastest), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("all-reduce bus bandwidth, largest message (GB/s)")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for shape, (text, color), height in zip("os", WHERE.values(), (0.16, 0.07), strict=True):
        axes.plot([0.74], [height], marker=shape, ms=8, color=color, transform=axes.transAxes)
        axes.text(0.765, height, text, transform=axes.transAxes, va="center", color=color, weight="bold")
    factor = fastest / slowest
    claim = f"From the fastest link to the slowest: {fastest:.0f} to {slowest:.0f} GB/s, a factor of {factor:.0f}"
    sources = {row["cite"]: row["source"].split()[0].removeprefix("github.com/") for row in rows}
    return finish(
        figure,
        title or claim,
        "Bus bandwidth is what each GPU of a ring would send per second. Sources on GitHub: "
        + "; ".join(f"{cite} {source}" for cite, source in sorted(sources.items()))
        + ".",
        f"Dots on a logarithmic axis, GB/s. {claim}. "
        + "; ".join(f"{r['link']}, {WHERE[r['where']][0]}, {r['gpus']}: {r['busbw_GBps']:.0f}" for r in rows)
        + ".",
    )
