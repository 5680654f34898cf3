"""What each rank communicated and when: a lane per rank, a bar per op, an arrow per message."""

from typing import NamedTuple

from lib.plots.draw import LANE, WAITING, arrow, box, key, middle, page, paper, rank_rows
from lib.plots.messages import matched
from lib.plots.style import INK, OP_COLOR, PAPER, drawing

MOST_ARROWS = 24


@drawing
def timeline(entries):
    """What each rank communicated and when: one lane per rank, and a bar per entry, from when the
    rank posted the op until it was done, in ms.

    entries: objects with the fields of `ledger.Entry`: rank, op, peer, tag, posted, wait_from,
    wait_to, done (s). A bar is hatched while its rank was blocked in wait(). Arrows join a send to
    its recv if there are at most 24 messages. An op that had not finished when the log was read has
    a bar that runs to the right edge.
    Raises ValueError if there are no entries to draw.
    """
    data = _checked(entries)
    return _drawn(data), *_words(data)


# --- the data -------------------------------------------------------------------------------------


class Op(NamedTuple):
    """A bar: its entry, its row within the rank's lane, and when it begins, ends and waits, in
    ms."""

    entry: object
    row: int
    begin: float
    end: float
    waits: tuple | None  # (since, until); until is None if the rank is still waiting

    @property
    def kind(self):
        return self.entry.op if self.entry.op in OP_COLOR else "collective"


class Lanes(NamedTuple):
    """Everything that is drawn, in ms since the first op was posted."""

    ops: list  # in the order of ranks, then of when they were posted
    ranks: list
    depth: dict  # {rank: number of rows in its lane}
    messages: list  # [(send, recv), ...], Ops
    span: float  # the last time in the entries
    width: float  # of the axis: slightly more than span, so that unfinished ops visibly continue


def _checked(entries):
    """The Lanes of these entries. Raises ValueError if there is nothing to draw."""
    entries = sorted((e for e in entries if e.op != "mark"), key=lambda e: (e.rank, e.posted))
    if not entries:
        raise ValueError(
            "no entries to draw: was the ledger on, and did the section send anything?"
        )
    zero = min(e.posted for e in entries)
    last = max(t for e in entries for t in (e.posted, e.wait_to, e.done) if t is not None)
    beyond = last + (0.02 * (last - zero) or 1e-3)
    ms = lambda t: 1e3 * (t - zero)
    ops, free = {}, {}
    for e in entries:
        begin = ms(e.posted)
        end = ms(next((t for t in (e.done, e.wait_to) if t is not None), beyond))
        # ops that overlap in time get a row each
        until = free.setdefault(e.rank, [])
        row = next((i for i, since in enumerate(until) if since <= begin), len(until))
        until[row : row + 1] = [max(end, begin)]
        waits = tuple(None if t is None else ms(t) for t in (e.wait_from, e.wait_to))
        ops[id(e)] = Op(e, row, begin, end, waits if waits[0] is not None else None)
    depth = {rank: len(until) for rank, until in free.items()}
    messages = [(ops[id(send)], ops[id(recv)]) for send, recv in matched(entries)]
    return Lanes(list(ops.values()), sorted(depth), depth, messages, ms(last), ms(beyond))


# --- the drawing ----------------------------------------------------------------------------------


def _drawn(data):
    """Draw the lanes, the bars and the arrows."""
    figure, axes = page(1.55 + 0.52 * len(data.ranks))
    lane_height = (figure.get_figheight() - 1.45) / len(data.ranks)  # inches, approximately
    middle_of = {}
    for lane, rank in enumerate(data.ranks):
        box(axes, 0, lane - 0.4, data.width, 0.8, LANE, ec="none", zorder=1)
        tall = 0.76 / data.depth[rank]
        # inches per ms; 0 where a row is too low for a name, so that no name is written
        inches = 6.8 / data.width * (tall * lane_height > 0.17)
        for op in (op for op in data.ops if op.entry.rank == rank):
            low = lane - 0.38 + tall * op.row
            middle_of[id(op)] = low + tall / 2
            _op(axes, op, low + 0.01, tall - 0.02, inches)
    for send, recv in data.messages if len(data.messages) <= MOST_ARROWS else []:
        ends = (send.begin, middle_of[id(send)]), (recv.end, middle_of[id(recv)])
        arrow(axes, *ends, INK, 0.9, 9, alpha=0.75, zorder=4)
    axes.set(xlim=(0, data.width), xlabel="time (ms)")
    rank_rows(axes, data.ranks)
    colors = {op.kind: OP_COLOR[op.kind] for op in data.ops}
    if any(op.waits for op in data.ops):
        colors["the rank waits"] = WAITING
    key(axes, colors, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.5)
    return figure


def _op(axes, op, low, tall, inches):
    """The bar of an op, hatched while its rank waited. inches: width of a ms on the page."""
    e, color, length = op.entry, OP_COLOR[op.kind], op.end - op.begin
    name = {"send": f"to {e.peer}", "recv": f"from {e.peer}"}.get(e.op, e.op)
    wide, inside = length * inches, "" if op.waits else name
    box(axes, op.begin, low, length, tall, color, inside, wide, ec=color, lw=0.6)
    if op.waits:
        since, until = op.waits
        until = op.end if until is None else min(op.end, until)
        if until > since:
            look = {"ec": color, "hatch": "/////", "lw": 0.6, "zorder": 3}
            box(axes, since, low, until - since, tall, PAPER, **look)
        if wide > 0.085 * len(name) + 0.05:
            at = (op.begin + op.end) / 2, low + tall / 2
            middle(axes, *at, name, va="center", bbox=paper(0.12))


# --- the words ------------------------------------------------------------------------------------


def _words(data):
    """The claim, what to look at, what the figure is, and its numbers in words."""
    waits, stuck = dict.fromkeys(data.ranks, 0), set()
    for e in (op.entry for op in data.ops):
        if e.wait_to:
            waits[e.rank] += 1e3 * (e.wait_to - e.wait_from)
        elif e.done is None and e.wait_to is None:
            stuck.add(e.rank)
    most = max(data.ranks, key=waits.get)
    claim = f"Rank {most} waits longest: {waits[most]:.3g} of {data.span:.3g} ms"
    if stuck:
        claim = f"Rank{'s' * (len(stuck) > 1)} {', '.join(map(str, sorted(stuck)))} never "
        claim += "finished waiting"
    ranks = ", ".join(map(str, data.ranks))
    return (
        claim,
        "A bar is one op, from when the rank posted it to when it was done."
        + " Arrows: messages." * (0 < len(data.messages) <= MOST_ARROWS),
        f"Timeline of {len(data.ops)} ops on ranks {ranks} over {data.span:.3g} ms.",
        f"Waiting: {', '.join(f'rank {r} {ms:.3g} ms' for r, ms in waits.items())}.",
    )
