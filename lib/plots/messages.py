"""Ranks on a circle and arrows between them: the messages round by round, and which rank waits for
which.

This file also matches sends with receives, and finds out which messages belong to one round.
"""

import math

from matplotlib.figure import Figure
from matplotlib.patches import Circle

from lib import frontend
from lib.cycle import find_cycle
from lib.plots.draw import arrow
from lib.plots.style import ALARM, FAINT, INK, PAPER, drawing, on_color, rank_color


@drawing
def message_rounds(entries):
    """Which rank sends to which in each round, a panel per round. See `rounds` for what a round is.

    entries: those of a ledger. Raises ValueError if they have no messages, or more than 12 rounds;
    in that case draw a shorter section.
    """
    panels = rounds(entries)
    if not 1 <= len(panels) <= 12:
        raise ValueError(
            f"{len(panels)} rounds of messages: between 1 and 12 can be drawn, so mark a section "
            f"and draw that"
        )
    N = max(max(e.rank, e.peer) for panel in panels for e in panel) + 1
    columns = len(panels) if len(panels) <= 6 else math.ceil(len(panels) / 2)
    figure = Figure(figsize=(min(8, max(4.5, 2 * columns)), 2.5 if len(panels) <= 6 else 4))
    grid = list(figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False).flat)
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=False), start=1):
        disks = draw_ranks(
            axes, N, radius=min(0.36, 1.4 / N), filled={e.rank for e in panel}, size=9
        )
        pairs = [(e.rank, e.peer) for e in panel]
        for a, b in dict.fromkeys(pairs):
            draw_arrow(axes, disks[a], disks[b], rank_color(a), 1.3, bend=0.22 * ((b, a) in pairs))
        sizes = sorted({e.numel for e in panel})
        amount = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        axes.set_title(f"round {number}\n{len(panel)} x {amount}", size=9.5)
        axes.set(xlim=(-1.8, 1.8), ylim=(-1.45, 1.45))
    for axes in grid[len(panels) :]:
        axes.axis("off")
    messages = sum(len(panel) for panel in panels)
    claim = (
        f"{messages} message{'s' * (messages > 1)} in {len(panels)} round{'s' * (len(panels) > 1)}"
    )
    pairs = [", ".join(f"{e.rank} to {e.peer}" for e in panel) for panel in panels]
    return (
        figure, claim,
        "Messages of a round may travel at once; above, how many x their elements. Hollow ranks "
        "send nothing.",
        f"{len(panels)} panels of {N} ranks on a circle.",
        " ".join(f"Round {i}: {said}." for i, said in enumerate(pairs, 1)),
    )  # fmt: skip


@drawing
def waits_for(waits, labels=None):
    """Ranks on a circle, and an arrow from each waiting rank to every rank that it waits for. A
    cycle is drawn in red, because no rank in it can continue.

    waits: {rank: [the ranks it waits for]}, as in `launch.RankError.waits`.
    labels: {rank: text, such as "recv, line 4"}, written next to the rank.
    Raises ValueError if no rank waits, or if a rank waits for itself.
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
        both = (b, a) in edges  # two ranks that wait for each other: two arrows, bent apart
        draw_arrow(axes, disks[a], disks[b],
                   *((ALARM, 3.2) if (a, b) in in_cycle else (FAINT, 1.4)),
                   bend=0.16 * both)  # fmt: skip
    for r, disk in enumerate(disks):
        (x, y), away = disk.center, disk.radius + 0.12
        text = labels.get(r, "" if r in waiting else "waits for nobody")
        if abs(x) < 0.05:
            axes.text(x, y + math.copysign(away + 0.06, y), text, ha="center", va="center")
        else:
            axes.text(
                x + math.copysign(away, x), y, text, ha="left" if x > 0 else "right", va="center"
            )
    axes.set(xlim=(-3.1, 3.1), ylim=(-1.5, 1.5))
    free = sorted({b for _, b in edges} - waiting)
    if cycle:
        first, *rest = zip(cycle, cycle[1:] + cycle[:1], strict=True)
        claim = f"Deadlock: rank {first[0]} waits for {first[1]}" + "".join(
            f", {a} for {b}" for a, b in rest
        )
    else:
        claim = (
            f"No cycle: all wait, in the end, for rank{'s' * (len(free) > 1)} "
            f"{', '.join(map(str, free))}"
        )
    return (
        figure, claim, "An arrow points to the rank that is waited for."
        + " Red: each waits for the next, so nobody moves." * bool(cycle),
        f"{N} ranks on a circle, an arrow from each waiting rank to the one it waits for.",
        f"All arrows: {', '.join(f'{a} to {b}' for a, b in edges)}.",
    )  # fmt: skip


frontend.figures["waits_for"] = waits_for  # shown when a run is stopped while ranks wait


def rounds(entries):
    """Sends grouped by round: [[send, ...] of round 1, ...].

    A message's round is one more than the highest round of the messages, sent or received, that its
    sender had finished when it posted this one, or 1 if there were none. Only the order of events
    on one rank counts, and the clocks of two ranks are never compared, so a slow rank does not
    create rounds of its own.
    """
    number = {}  # id of a send -> its round
    sends = [e for e in entries if e.op == "send"]
    other = {id(x): y for pair in matched(entries) for x, y in (pair, pair[::-1])}
    mine = {
        e.rank: [x for x in entries if x.rank == e.rank and x.op in ("send", "recv")] for e in sends
    }

    def round_of(send):
        if id(send) not in number:
            before = [
                e for e in mine[send.rank] if e.wait_to is not None and e.wait_to <= send.posted
            ]
            before = [e if e.op == "send" else other.get(id(e)) for e in before]
            number[id(send)] = 1 + max((round_of(e) for e in before if e is not None), default=0)
        return number[id(send)]

    out = {}
    for send in sorted(sends, key=lambda e: (e.posted, e.rank)):
        out.setdefault(round_of(send), []).append(send)
    return [sorted(out[i], key=lambda e: (e.rank, e.peer)) for i in sorted(out)]


def matched(entries):
    """[(send, recv), ...]: the k-th send from src to dst with a tag is matched with dst's k-th recv
    from src with this tag."""
    recvs = {}
    for e in entries:
        if e.op == "recv":
            recvs.setdefault((e.peer, e.rank, e.tag), []).append(e)
    sends = [e for e in entries if e.op == "send" and recvs.get((e.rank, e.peer, e.tag))]
    return [(e, queue.pop(0)) for e in sends if (queue := recvs[e.rank, e.peer, e.tag])]


def draw_ranks(axes, N, radius, filled, size):
    """Draw N numbered disks on an ellipse, rank 0 on top and the others clockwise, and return them.
    Ranks that are not in `filled` are hollow."""
    disks = []
    for r in range(N):
        x, y = 1.35 * math.sin(2 * math.pi * r / N), math.cos(2 * math.pi * r / N)
        color = rank_color(r)
        disks.append(
            Circle((x, y), radius, fc=color if r in filled else PAPER, ec=color, lw=2, zorder=5)
        )
        axes.add_patch(disks[-1])
        ink = on_color(color) if r in filled else INK
        axes.text(x, y, str(r), ha="center", va="center_baseline", size=size, weight="bold",
                  color=ink, zorder=6)  # fmt: skip
    axes.set_aspect("equal")
    axes.axis("off")
    return disks


def draw_arrow(axes, start, end, color, width, bend=0.0):
    """An arrow from the edge of one disk to the edge of another."""
    arrow(axes, start.center, end.center, color, width, 6 + 5 * width, patchA=start, patchB=end,
          shrinkA=2, shrinkB=2,
          connectionstyle=f"arc3,rad={bend}", zorder=3)  # fmt: skip
