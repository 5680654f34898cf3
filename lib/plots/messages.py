"""Which send meets which receive, which messages belong to one round, and a panel per round."""

import math

from matplotlib.figure import Figure

from lib.plots.circle import draw_arrow, draw_ranks
from lib.plots.style import finish, rank_color, styled


@styled
def message_rounds(entries, title=None):
    """Which rank sends to which in each round, a panel per round, from ledger entries. See `rounds`.

    Raises ValueError for no messages, or for more than 12 rounds: draw a shorter section.
    """
    panels = rounds(entries)
    if not 1 <= len(panels) <= 12:
        raise ValueError(
            f"{len(panels)} rounds of messages: between 1 and 12 can be drawn, so mark a section and draw that"
        )
    N = max(max(e.rank, e.peer) for panel in panels for e in panel) + 1
    columns = len(panels) if len(panels) <= 6 else math.ceil(len(panels) / 2)
    figure = Figure(figsize=(min(8, max(4.5, 2 * columns)), 2.5 if len(panels) <= 6 else 4))
    grid = list(figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False).flat)
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=False), start=1):
        disks = draw_ranks(axes, N, radius=min(0.36, 1.7 / N), filled={e.rank for e in panel}, size=9)
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
    claim = f"{messages} message{'s' * (messages > 1)} in {len(panels)} round{'s' * (len(panels) > 1)}"
    return finish(
        figure,
        title or claim,
        "Messages of a round may travel at once; above, how many x their elements. Hollow: sends nothing.",
        f"{len(panels)} panels of {N} ranks on a circle. {claim}. "
        + " ".join(
            f"Round {i}: " + ", ".join(f"{e.rank} to {e.peer}" for e in panel) + "."
            for i, panel in enumerate(panels, 1)
        ),
    )


def rounds(entries):
    """Sends grouped by round. A message is one round after the last that its sender had finished when it posted it.

    It looks at order on each rank, never at clocks of two ranks, so a slow rank does not make a round.
    """
    number = {}  # id of a send or recv -> its round
    sends = [e for e in entries if e.op == "send"]
    other = {id(x): y for pair in matched(entries) for x, y in (pair, pair[::-1])}
    mine = {e.rank: [x for x in entries if x.rank == e.rank and x.op in ("send", "recv")] for e in sends}

    def round_of(send):
        if id(send) not in number:
            before = [e for e in mine[send.rank] if e.wait_to is not None and e.wait_to <= send.posted]
            before = [e if e.op == "send" else other.get(id(e)) for e in before]
            number[id(send)] = 1 + max((round_of(e) for e in before if e is not None), default=0)
        return number[id(send)]

    out = {}
    for send in sorted(sends, key=lambda e: (e.posted, e.rank)):
        out.setdefault(round_of(send), []).append(send)
    return [sorted(out[i], key=lambda e: (e.rank, e.peer)) for i in sorted(out)]


def matched(entries):
    """[(send, recv), ...]: the k-th send from src to dst with a tag meets the k-th recv of dst from src with it."""
    recvs = {}
    for e in entries:
        if e.op == "recv":
            recvs.setdefault((e.peer, e.rank, e.tag), []).append(e)
    sends = [e for e in entries if e.op == "send" and recvs.get((e.rank, e.peer, e.tag))]
    return [(e, queue.pop(0)) for e in sends if (queue := recvs[e.rank, e.peer, e.tag])]
