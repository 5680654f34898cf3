"""Draws six recorded runs (runs.json), frame by frame as SVG, so that they can be replayed.

    ring_all_reduce        chunks are sent around a ring of four ranks; each chunk shows how many
                           ranks' values have been summed in it
    broadcast_tree         one rank's tensor reaches eight ranks in three rounds
    deadlock               two orders of send and receive: with one of them both ranks wait forever
    one_f_one_b_and_zb_h1  two schedules on one clock, as four ranks ran them
    gather_and_free        which shards of which unit each rank has in a step of ZeRO-3,
                           event by event
    tokens_to_experts      routed tokens are sent to the ranks that have their experts, and back

Each function returns its frames, [(SVG, alt text), ...]. The replay starts with the first one. A
browser without scripts shows only the last one, which is therefore the result.
"""

import base64
import json
import math
import zlib
from html import escape

from matplotlib.colors import to_hex

from lib.plots import chunks, units
from lib.plots.boxes import BOX_COLOR
from lib.plots.style import ALARM, FAINT, INK, OP_COLOR, PAPER, on_color, rank_color, readable

WIDTH = 768
GLIDE = 8  # frames in which a message moves; tokens move for twice as many


def rect(x, y, width, height, color, text="", edge=PAPER):
    """A box with a text in its middle."""
    shape = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}" '
        f'stroke="{edge}"/>'
    )
    return (
        shape
        if text == ""
        else shape + say(x + width / 2, y + height / 2 + 5, text, on_color(color), "middle")
    )


def say(x, y, text, color=INK, anchor="start", weight="normal", size=14):
    """A text whose baseline is at y."""
    look = f'fill="{color}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(str(text))}</text>'


def frame(height, title, caption, parts, alt):
    """(SVG, alt text) of a frame, with its title above and its caption below, as in lib.plots."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 '
        f'{WIDTH} {height}"'
    )
    body = [rect(0, 0, WIDTH, height, PAPER), say(12, 26, title, weight="bold", size=17), *parts]
    body.append(say(12, height - 12, caption, FAINT, size=13))
    return (
        f'{head} font-family="DejaVu Sans, Verdana, sans-serif">{"".join(body)}</svg>',
        f"{title}. {alt}",
    )


def ring_all_reduce(data):
    """data: three lists with one item per round. "rounds": the (from, to) of its messages;
    "arrived": the (rank, chunk) that each message reaches; "states": how many ranks' values are
    summed in each chunk after the round, as [rank][chunk]."""
    states, n = data["states"], len(data["states"][0])
    states = [[[1] * n for _ in range(n)], *states]
    place = lambda rank, chunk: (24 + 186 * rank + 38 * chunk, 130)
    color = lambda count: to_hex(chunks.DEPTH((count - 1) / (n - 1)))
    title = (
        f"After {len(data['rounds'])} rounds every rank has the sum, having sent to one neighbour"
    )
    frames = []
    for number in range(len(data["rounds"]) + 1):
        last = number == len(data["rounds"])
        for step in range(1 if last else GLIDE):
            parts = []
            for rank in range(n):
                parts.append(
                    say(
                        place(rank, 0)[0],
                        122,
                        f"rank {rank}",
                        readable(rank_color(rank)),
                        weight="bold",
                    )
                )
                parts += [rect(*place(rank, c), 38, 38, color(states[number][rank][c]),
                states[number][rank][c])
                          for c in range(n)]  # fmt: skip
            for sender, receiver in () if last else data["rounds"][number]:
                (c,) = [chunk for rank, chunk in data["arrived"][number] if rank == receiver]
                (x, y), (to, _), way = place(sender, c), place(receiver, c), step / GLIDE
                lift = (60 if receiver > sender else -70) * math.sin(math.pi * way)
                count = states[number][sender][c]
                parts.append(
                    rect(
                        x + way * (to - x),
                        y + lift,
                        38,
                        38,
                        color(count),
                        count,
                        rank_color(sender),
                    )
                )
            half = "reduce-scatter" if number < n - 1 else "all-gather"
            where = "done" if last else f"round {number + 1} of {len(data['rounds'])}: {half}"
            parts.append(say(12, 56, where))
            told = "; ".join(
                f"rank {r} holds {' '.join(map(str, of))}" for r, of in enumerate(states[number])
            )
            caption = (
                "A number says how many ranks' values are summed in a chunk. A moving chunk is a "
                "message."
            )
            frames.append(frame(270, title, caption, parts, f"{where}. {told}."))
    return frames


def broadcast_tree(data):
    """data: "ranks", the number of ranks; "root"; and "rounds", the (from, to) of each round's
    messages."""
    n, rounds = data["ranks"], data["rounds"]
    title = f"{n} ranks have the tensor after {len(rounds)} rounds, because the senders double"
    home = lambda rank: (54 + 94 * rank, 150)
    frames, have = [], {data["root"]}
    for number in range(len(rounds) + 1):
        last = number == len(rounds)
        sends = [] if last else rounds[number]
        for step in range(1 if last else GLIDE):
            parts, way = [], step / GLIDE
            for rank in range(n):
                x, y = home(rank)
                color = rank_color(data["root"]) if rank in have else OP_COLOR["idle"]
                parts.append(rect(x - 26, y - 26, 52, 52, color, rank))
            for sender, receiver in sends:
                (x, y), (to, _) = home(sender), home(receiver)
                lift = 26 + 0.5 * abs(to - x) ** 0.75
                parts.append(
                    rect(
                        x + way * (to - x) - 11,
                        y - 11 - 26 * math.sin(math.pi * way) - lift * math.sin(math.pi * way),
                        22,
                        22,
                        rank_color(data["root"]),
                        edge=INK,
                    )
                )
            where = "done" if last else f"round {number + 1} of {len(rounds)}"
            holders = ", ".join(map(str, sorted(have)))
            parts.append(say(12, 56, f"{where}: {len(have)} of {n} ranks have the tensor"))
            caption = "A box is a rank, coloured once it has the tensor. A small box is a message."
            frames.append(frame(226, title, caption, parts, f"{where}. It is on ranks {holders}."))
        have |= {receiver for _, receiver in sends}
    return frames


def deadlock(data):
    """data: for "hangs" and for "works" the events (rank, op, peer, "posted" or "done"), in the
    order in which they happened; "verdict", the launcher's message."""
    title = "If both ranks send first, each waits for a receive that is never posted"
    frames = []
    for count in range(max(len(data["hangs"]), len(data["works"])) + 2):
        parts, told = [], []
        for panel, (key, name) in enumerate(
            [("hangs", "both send first"), ("works", "rank 1 receives first")]
        ):
            parts.append(say(12 + 384 * panel, 60, name, weight="bold"))
            events, left = data[key][:count], 12 + 384 * panel
            over = count > len(data[key])
            for rank in range(2):
                mine = [event for event in events if event[0] == rank]
                done = {event[1] for event in mine if event[3] == "done"}
                y = 80 + 70 * rank
                color = readable(rank_color(rank))
                parts.append(say(left, y + 26, f"rank {rank}", color, weight="bold"))
                ops = list(dict.fromkeys(event[1] for event in mine))
                for place, op in enumerate(ops):
                    waits = op not in done
                    look = ALARM if waits and over else OP_COLOR[op]
                    text = f"{op} {'waits' if waits else 'done'}"
                    parts.append(rect(left + 64 + 146 * place, y, 140, 40, look, text))
                    told.append(f"{name}, rank {rank}: {text}")
            end = "no rank can continue" if key == "hangs" else "both ranks finish"
            color = ALARM if key == "hangs" else readable(OP_COLOR["W"])
            parts.append(say(left, 238, end if over else "", color, weight="bold"))
        caption = "A box is a call, in the order in which the ranks posted and finished them."
        words = "; ".join(told) or "nothing is posted yet"
        frames.append(frame(286, title, caption, parts, f"{words}."))
    return frames


def one_f_one_b_and_zb_h1(data, steps=72):
    """data: {schedule: [(rank, kind, micro-batch, start, end), ...]}, in seconds."""
    ends = {name: max(end for *_, end in some) for name, some in data.items()}
    longest, (first, second) = max(ends.values()), ends
    title = (
        f"{second} takes {ends[second] / ends[first]:.0%} of {first}'s time: W fills the idle time"
    )
    frames, n = [], 1 + max(rank for some in data.values() for rank, *_ in some)
    for step in range(steps + 1):
        now, parts = longest * step / steps, []
        for panel, (name, some) in enumerate(data.items()):
            top = 74 + panel * (30 * n + 44)
            clock = (
                f"{name}: {'done, ' if now >= ends[name] else ''}"
                f"{1e3 * min(now, ends[name]):.0f} ms"
            )
            parts.append(say(12, top - 12, clock, weight="bold"))
            for rank in range(n):
                parts.append(
                    say(
                        12,
                        top + 30 * rank + 19,
                        f"rank {rank}",
                        readable(rank_color(rank)),
                        weight="bold",
                    )
                )
                parts.append(
                    rect(
                        76,
                        top + 30 * rank,
                        680 * min(now, ends[name]) / longest,
                        26,
                        OP_COLOR["idle"],
                    )
                )
            for rank, kind, batch, start, end in some:
                if start < now:
                    x, wide = 76 + 680 * start / longest, 680 * (min(end, now) - start) / longest
                    parts.append(
                        rect(
                            x,
                            top + 30 * rank,
                            wide,
                            26,
                            BOX_COLOR[kind],
                            batch if end <= now else "",
                        )
                    )
        done = {name: sum(end <= now for *_, end in some) for name, some in data.items()}
        told = "; ".join(
            f"{name} has done {done[name]} of {len(data[name])} actions" for name in data
        )
        caption = (
            "Blue: forward; orange: backward; green: backward of the weights alone; grey: idle."
        )
        frames.append(
            frame(86 + 2 * (30 * n + 44), title, caption, parts, f"At {1e3 * now:.0f} ms {told}.")
        )
    return frames


def gather_and_free(data):
    """data: "events", [(number, "unshard" or "reshard", unit or None for the root)]; "units" and
    "ranks", how many of each there are (the root is not counted)."""
    n, ranks = data["units"], data["ranks"]
    events = units.changes("ZeRO-3", data["events"], n)
    spans, phases = units.unsharded_spans(events), dict(units.phases(events))
    most = max(units.how_many(spans, x) for x in range(len(events)))
    title = f"A rank has at most {most} of {n} blocks unsharded, and shards of the others"
    frames, whole, phase = [], set(), "before the step"
    for x, event in [(-1, None), *enumerate(events)]:
        phase = phases.get(x, phase)
        what = "everything is sharded" if event is None else f"{event[1]} {_unit(event[2])}"
        whole = whole if event is None else whole ^ {event[2]}
        parts = [say(12, 56, f"{phase}: {what}")]
        for rank in range(ranks):
            parts.append(
                say(110 + 330 * rank, 84, f"rank {rank}", readable(rank_color(rank)), weight="bold")
            )
        for row, unit in enumerate([None, *range(n)]):
            y = 96 + 34 * row
            parts.append(say(12, y + 20, _unit(unit), weight="bold" if unit in whole else "normal"))
            for rank in range(ranks):
                for part in range(ranks):
                    there = part == rank or unit in whole
                    color = rank_color(part) if there else OP_COLOR["idle"]
                    text = f"shard {part}" if there else ""
                    parts.append(
                        rect(110 + 330 * rank + 290 / ranks * part, y, 290 / ranks, 28, color, text)
                    )
        caption = (
            "A row is a unit's parameters. unshard: all-gather its shards; reshard: free the "
            "others'."
        )
        names = ", ".join(map(_unit, sorted(whole, key=str))) or "none"
        told = f"{phase}: {what}; unsharded: {names}."
        frames.append(frame(130 + 34 * (n + 1), title, caption, parts, told))
    return frames


def _unit(unit):
    return "root" if unit is None else f"block {unit}"


def tokens_to_experts(data):
    """data: "rows", how many routed tokens each rank (row) has for the experts of each rank
    (column)."""
    rows, n = data["rows"], len(data["rows"])
    got = [sum(column) for column in zip(*rows, strict=True)]
    title = (
        f"{sum(got)} routed tokens go to their experts and back; a rank gets {min(got)} to "
        f"{max(got)}"
    )
    home = [(sender, to) for sender in range(n) for to in range(n) for _ in range(rows[sender][to])]
    guest = sorted(home, key=lambda pair: (pair[1], pair[0]))
    spots = lambda order, key, left: [
        (left + 9 * (i % 20), 88 + 78 * rank + 9 * (i // 20))
        for rank in range(n) for i in range(sum(key(pair) == rank for pair in order))
    ]  # fmt: skip
    begin = spots(home, lambda pair: pair[0], 90)
    seats = spots(guest, lambda pair: pair[1], 470)
    end = [seats[i] for i in _places(home, guest)]
    frames = []
    for step in [*range(GLIDE * 2 + 1), *reversed(range(GLIDE * 2))]:
        way, back = step / (GLIDE * 2), len(frames) > GLIDE * 2
        ease, where = (1 - math.cos(math.pi * way)) / 2, "dispatch" if not back else "combine"
        what = {0: "tokens on the rank that owns them", 1: "tokens with their experts"}.get(
            way, f"all-to-all: {where}"
        )
        parts = [say(12, 56, what)]
        for rank in range(n):
            y = 96 + 78 * rank
            parts.append(say(12, y, f"rank {rank}", readable(rank_color(rank)), weight="bold"))
            parts.append(
                say(756, y, f"experts of {rank}", readable(rank_color(rank)), "end", "bold")
            )
        for (_, to), (x, y), (u, v) in zip(home, begin, end, strict=True):
            at = f'cx="{x + ease * (u - x):.0f}" cy="{y + ease * (v - y):.0f}" r="3.6"'
            color = rank_color(to)
            parts.append(f'<circle {at} fill="{color}" stroke="{readable(color)}"/>')
        caption = "A dot is a routed token, in the colour of the rank that has its expert."
        told = "; ".join(
            f"rank {r} has {' '.join(map(str, of))} for ranks 0 to {n - 1}"
            for r, of in enumerate(rows)
        )
        frames.append(frame(130 + 78 * n, title, caption, parts, f"{what}. {told}."))
    return frames


def _places(home, guest):
    """The index in `guest` of each pair in `home`. Equal pairs keep their order."""
    free = {}
    for place, pair in enumerate(guest):
        free.setdefault(pair, []).append(place)
    return [free[pair].pop(0) for pair in home]


SECONDS = {
    "ring_all_reduce": 0.09,
    "broadcast_tree": 0.12,
    "deadlock": 0.5,
    "one_f_one_b_and_zb_h1": 0.1,
    "gather_and_free": 0.7,
    "tokens_to_experts": 0.08,
}


def write(folder, name, frames):
    """Write NAME.js with all frames, compressed, and NAME.svg with the last one, for readers
    without scripts."""
    packed = zlib.compress(json.dumps([svg for svg, _ in frames]).encode(), 9)
    data = {
        "alts": [alt for _, alt in frames],
        "packed": base64.b64encode(packed).decode(),
        "seconds": SECONDS[name],
    }
    text = f"book.data({json.dumps(name)}, {json.dumps(data)});\n"
    (folder / f"{name}.js").write_text(text, encoding="utf-8")
    (folder / f"{name}.svg").write_text(frames[-1][0], encoding="utf-8")
