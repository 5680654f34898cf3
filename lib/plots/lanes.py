"""What each rank did and when: a lane per rank, a bar per op, an arrow per message."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from lib.plots.messages import matched
from lib.plots.style import FAINT, INK, OP_COLOR, PAPER, finish, on_color, rank_color, styled


@styled
def timeline(entries, title=None):
    """What each rank's communication did and when: one lane per rank, a bar per entry from posted to done, in ms.

    entries: objects with the fields of `ledger.Entry`: rank, op, peer, tag, posted, wait_from, wait_to, done (s).
    Hatched: the rank stood still in wait(). Arrows join a send to its recv while there are at most 24 messages.
    A bar that reaches the right edge with no end had not finished when the book was read.
    """
    entries = sorted((e for e in entries if e.op != "mark"), key=lambda e: (e.rank, e.posted))
    if not entries:
        raise ValueError("no entries to draw: was the ledger on, and did the section send anything?")
    ranks = sorted({e.rank for e in entries})
    zero = min(e.posted for e in entries)
    last = max(t for e in entries for t in (e.posted, e.wait_to, e.done) if t is not None)
    span = 1e3 * (last - zero)  # ms
    last += 0.02 * (last - zero) or 1e-3  # room for what has not finished
    begin = {id(e): 1e3 * (e.posted - zero) for e in entries}
    end = {id(e): 1e3 * (next((t for t in (e.done, e.wait_to) if t is not None), last) - zero) for e in entries}
    width = 1e3 * (last - zero)

    rows, depth = {}, dict.fromkeys(ranks, 1)  # a send and a recv that overlap get a row each inside the lane
    for rank in ranks:
        free = []
        for e in (e for e in entries if e.rank == rank):
            row = next((i for i, until in enumerate(free) if until <= begin[id(e)]), len(free))
            free[row : row + 1] = [max(end[id(e)], begin[id(e)])]
            rows[id(e)] = row
        depth[rank] = len(free)

    figure = Figure(figsize=(8, min(4.0, 1.55 + 0.52 * len(ranks))))
    axes = figure.add_subplot()
    lane_height = (figure.get_figheight() - 1.45) / len(ranks)  # inches, near enough
    middle = {}
    for lane, rank in enumerate(ranks):
        axes.add_patch(Rectangle((0, lane - 0.4), width, 0.8, fc="#f1efe9", ec="none"))
        for e in (e for e in entries if e.rank == rank):
            tall = 0.76 / depth[rank]
            y, x0, x1 = lane - 0.38 + tall * rows[id(e)], begin[id(e)], end[id(e)]
            middle[id(e)] = y + tall / 2
            color = OP_COLOR.get(e.op, OP_COLOR["collective"])
            axes.add_patch(Rectangle((x0, y + 0.01), x1 - x0, tall - 0.02, fc=color, ec=color, lw=0.6, zorder=2))
            if e.wait_from is not None:
                w0 = 1e3 * (e.wait_from - zero)
                w1 = x1 if e.wait_to is None else min(x1, 1e3 * (e.wait_to - zero))
                if w1 > w0:
                    hatched = {"fc": PAPER, "ec": color, "hatch": "/////", "lw": 0.6, "zorder": 3}
                    axes.add_patch(Rectangle((w0, y + 0.01), w1 - w0, tall - 0.02, **hatched))
            name = {"send": f"to {e.peer}", "recv": f"from {e.peer}"}.get(e.op, e.op)
            fits = (x1 - x0) / width * 6.8 > 0.085 * len(name) + 0.05 and tall * lane_height > 0.17  # inches
            if fits:
                box = {"boxstyle": "round,pad=0.12", "fc": PAPER, "ec": "none"} if e.wait_from is not None else None
                ink = INK if box else on_color(color)
                axes.text(
                    (x0 + x1) / 2, y + tall / 2, name, ha="center", va="center", size=9, color=ink, bbox=box, zorder=5
                )
    pairs = matched(entries)
    arrows = pairs if len(pairs) <= 24 else []
    for send, recv in arrows:
        ends = (begin[id(send)], middle[id(send)]), (end[id(recv)], middle[id(recv)])
        style = {"arrowstyle": "-|>", "mutation_scale": 9, "color": INK, "lw": 0.9, "alpha": 0.75, "zorder": 4}
        axes.add_patch(FancyArrowPatch(*ends, shrinkA=0, shrinkB=0, **style))
    axes.set(xlim=(0, width), ylim=(len(ranks) - 0.5, -0.5))
    axes.set_yticks(range(len(ranks)), [f"rank {r}" for r in ranks])
    for label, rank in zip(axes.get_yticklabels(), ranks, strict=True):
        label.set(color=rank_color(rank), weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("time (ms)")
    kinds = list(dict.fromkeys(e.op if e.op in OP_COLOR else "collective" for e in entries))
    handles = [Rectangle((0, 0), 1, 1, fc=OP_COLOR[kind], label=kind) for kind in kinds]
    if any(e.wait_from is not None for e in entries):
        handles.append(Rectangle((0, 0), 1, 1, fc=PAPER, ec=FAINT, hatch="/////", label="the rank waits"))
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=8, frameon=False, borderpad=0, handlelength=1.2
    )
    waits = {r: sum(1e3 * (e.wait_to - e.wait_from) for e in entries if e.rank == r and e.wait_to) for r in ranks}
    most = max(ranks, key=lambda r: waits[r])
    stuck = sorted({e.rank for e in entries if e.done is None and e.wait_to is None})
    claim = (
        f"Rank{'s' * (len(stuck) > 1)} {', '.join(map(str, stuck))} never finished waiting"
        if stuck
        else f"Rank {most} waits longest: {waits[most]:.3g} of {span:.3g} ms"
    )
    return finish(
        figure,
        title or claim,
        "A bar is one op, from when the rank posted it to when it was done." + (" Arrows: messages." if arrows else ""),
        f"Timeline of {len(entries)} ops on ranks {', '.join(map(str, ranks))} over {span:.3g} ms. {claim}. Waiting: "
        + ", ".join(f"rank {r} {waits[r]:.3g} ms" for r in ranks)
        + ".",
    )
