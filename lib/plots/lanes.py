"""What each rank did and when: a lane per rank, a bar per op, an arrow per message."""

from lib.plots.draw import LANE, WAITING, arrow, box, key, middle, page, paper, rank_rows
from lib.plots.messages import matched
from lib.plots.style import INK, OP_COLOR, PAPER, drawing


@drawing
def timeline(entries):
    """What each rank's communication did and when: one lane per rank, a bar per entry from posted
    to done, in ms.

    entries: objects with the fields of `ledger.Entry`: rank, op, peer, tag, posted, wait_from,
    wait_to, done (s). Hatched: the rank stood still in wait(). Arrows join a send to its recv while
    there are at most 24 messages. A bar that reaches the right edge with no end had not finished
    when the log was read.
    """
    entries = sorted((e for e in entries if e.op != "mark"), key=lambda e: (e.rank, e.posted))
    if not entries:
        raise ValueError(
            "no entries to draw: was the ledger on, and did the section send anything?"
        )
    ranks = sorted({e.rank for e in entries})
    zero = min(e.posted for e in entries)
    last = max(t for e in entries for t in (e.posted, e.wait_to, e.done) if t is not None)
    span = 1e3 * (last - zero)  # ms
    last += 0.02 * (last - zero) or 1e-3  # room for what has not finished
    begin = {id(e): 1e3 * (e.posted - zero) for e in entries}
    end = {
        id(e): 1e3 * (next((t for t in (e.done, e.wait_to) if t is not None), last) - zero)
        for e in entries
    }
    width = 1e3 * (last - zero)

    row, depth = _rows(entries, begin, end)
    figure, axes = page(1.55 + 0.52 * len(ranks))
    lane_height = (figure.get_figheight() - 1.45) / len(ranks)  # inches, near enough
    middle_of = {}
    for lane, rank in enumerate(ranks):
        box(axes, 0, lane - 0.4, width, 0.8, LANE, ec="none", zorder=1)
        for e in (e for e in entries if e.rank == rank):
            tall = 0.76 / depth[rank]
            low = lane - 0.38 + tall * row[id(e)]
            middle_of[id(e)] = low + tall / 2
            waited = [t if t is None else 1e3 * (t - zero) for t in (e.wait_from, e.wait_to)]
            # of a ms; none where a name would be too high
            inches = 6.8 / width * (tall * lane_height > 0.17)
            _op(axes, e, begin[id(e)], end[id(e)], low + 0.01, tall - 0.02, waited, inches)
    pairs = matched(entries)
    arrows = pairs if len(pairs) <= 24 else []
    for send, recv in arrows:
        ends = (begin[id(send)], middle_of[id(send)]), (end[id(recv)], middle_of[id(recv)])
        arrow(axes, *ends, INK, 0.9, 9, alpha=0.75, zorder=4)
    axes.set(xlim=(0, width), xlabel="time (ms)")
    rank_rows(axes, ranks)
    colors = {
        kind: OP_COLOR[kind]
        for kind in (e.op if e.op in OP_COLOR else "collective" for e in entries)
    }
    if any(e.wait_from is not None for e in entries):
        colors["the rank waits"] = WAITING
    key(axes, colors, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.5)
    waits = {
        r: sum(1e3 * (e.wait_to - e.wait_from) for e in entries if e.rank == r and e.wait_to)
        for r in ranks
    }
    most = max(ranks, key=lambda r: waits[r])
    stuck = sorted({e.rank for e in entries if e.done is None and e.wait_to is None})
    claim = (
        f"Rank{'s' * (len(stuck) > 1)} {', '.join(map(str, stuck))} never finished waiting"
        if stuck
        else f"Rank {most} waits longest: {waits[most]:.3g} of {span:.3g} ms"
    )
    look = (
        "A bar is one op, from when the rank posted it to when it was done."
        + " Arrows: messages." * bool(arrows)
    )
    what = (
        f"Timeline of {len(entries)} ops on ranks {', '.join(map(str, ranks))} over {span:.3g} ms."
    )
    return (
        figure,
        claim,
        look,
        what,
        f"Waiting: {', '.join(f'rank {r} {waits[r]:.3g} ms' for r in ranks)}.",
    )


def _op(axes, e, x0, x1, low, tall, waited, inches):
    """The bar of an op from x0 to x1 ms, hatched where its rank waited, [since, until] or None;
    inches: of a ms."""
    waits = waited[0] is not None
    color, name = (
        OP_COLOR.get(e.op, OP_COLOR["collective"]),
        {"send": f"to {e.peer}", "recv": f"from {e.peer}"},
    )
    name, wide = name.get(e.op, e.op), (x1 - x0) * inches
    box(axes, x0, low, x1 - x0, tall, color, "" if waits else name, wide, ec=color, lw=0.6)
    if waits:
        since, until = waited[0], x1 if waited[1] is None else min(x1, waited[1])
        if until > since:
            box(
                axes,
                since,
                low,
                until - since,
                tall,
                PAPER,
                ec=color,
                hatch="/////",
                lw=0.6,
                zorder=3,
            )
        if wide > 0.085 * len(name) + 0.05:
            middle(axes, (x0 + x1) / 2, low + tall / 2, name, va="center", bbox=paper(0.12))


def _rows(entries, begin, end):
    """({id of an entry: its row inside the lane}, {rank: how many rows}): ops that overlap
    get a row each."""
    row, free = {}, {}
    for e in entries:
        until = free.setdefault(e.rank, [])
        i = row[id(e)] = next(
            (i for i, since in enumerate(until) if since <= begin[id(e)]), len(until)
        )
        until[i : i + 1] = [max(end[id(e)], begin[id(e)])]
    return row, {rank: len(until) for rank, until in free.items()}
