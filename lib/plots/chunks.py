"""An all-reduce, round by round: how many ranks' values are summed in each chunk, on each rank.

    results = launch.run(traced, my_ring_all_reduce, nproc=4)      lib.collectives.contents.traced
    plots.ring(results)

The picture is drawn from the run itself. The ledger says which rank sent to which in each round,
and the traced values say what each message contained. Therefore any algorithm can be drawn: a ring
looks like a ring, and a star like a star. A sum that counts a rank twice is outlined in red, and so
is a sum that still lacks a rank after the last round.
"""

import math

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from lib.plots.draw import arrow, box, middle, page
from lib.plots.messages import matched, rounds
from lib.plots.style import ALARM, INK, PAPER, drawing, on_color, rank_color, readable

DEPTH = LinearSegmentedColormap.from_list("depth", ["#e9f1f7", "#a9cfe6", "#5a9fce", "#1f6fae"])


@drawing
def ring(results):
    """A panel per round: each rank's vector, split into as many chunks as there are ranks, and for
    each chunk the number of ranks' values that are summed in it.

    results: what `launch.run(traced, all_reduce, nproc=N)` returned, with the ledger on; N from 2
    to 4. Raises ValueError if there is no ledger, if nothing was sent, or for any other number of
    ranks or more than 8 rounds, which do not fit on a page.
    """
    panels = rounds(_entries(results))
    N = len(results)
    if not 2 <= N <= 4 or not 1 <= len(panels) <= 8:
        raise ValueError(
            f"{len(panels)} rounds on {N} ranks: 2 to 4 ranks and 1 to 8 rounds can be drawn, use "
            f"nproc=4"
        )
    states, arrived = states_after(results, panels)
    return _drawn(N, panels, states, arrived), *_words(N, panels, states, arrived)


# --- the data -------------------------------------------------------------------------------------


def _entries(results):
    if getattr(results, "ledger", None) is None:
        raise ValueError(
            "the figure is drawn from the ledger: launch with ledger=True, and pass what "
            "launch.run returned"
        )
    return results.ledger.entries


def states_after(results, panels):
    """(states, arrived). states[s][r][c]: the counts, that is, how often each rank's values are in
    chunk c on rank r after round s. arrived[s]: the (r, c) of the chunks that arrived in that
    round.

    A trace shows what is sent, not what a rank does with a chunk on arrival. So we take the fullest
    sum of that chunk that the run shows until the chunk is sent or received again: in the rank's
    tensor when it posts its next message, in the next message that contains the chunk, or in the
    final tensor. If the chunk is received again first, we assume that what arrived was added if the
    two sums have no rank in common, and replaced the old value otherwise.
    """
    N, entries = len(results), _entries(results)
    nothing = (0,) * N
    sent, held = _contents(results, entries)
    going, coming = _exchanged(panels, sent, {id(send) for send, _ in matched(entries)})

    def after_receiving(place, number, now):
        rank, chunk = place
        later = range(number + 1, len(panels))
        touched = next((n for n in later if place in going[n] or place in coming[n]), None)
        before = later if touched is None else later[: touched - number]
        messages = [id(e) for n in before for e in panels[n] if e.rank == rank]
        seen = [held[message].get(chunk, nothing) for message in messages[:1]]
        if touched is None:
            seen.append(results[rank]["final"].get(chunk, nothing))
        elif place in going[touched]:
            seen.append(going[touched][place])
        else:
            for counts in coming[number][place]:
                apart = not any(a and b for a, b in zip(counts, now, strict=True))
                now = tuple(a + b for a, b in zip(counts, now, strict=True)) if apart else counts
            seen.append(now)
        return max(seen, key=sum)

    now = [[tuple(int(r == rank) for r in range(N)) for _ in range(N)] for rank in range(N)]
    states = []
    for number in range(len(panels)):
        now = [list(chunks) for chunks in now]
        for rank, chunk in coming[number]:
            now[rank][chunk] = after_receiving((rank, chunk), number, now[rank][chunk])
        states.append(now)
    # the last panel shows the final tensors, because a rank may compute after its last message
    states[-1][:] = [[result["final"].get(c, nothing) for c in range(N)] for result in results]
    return states, [set(places) for places in coming]


def _contents(results, entries):
    """({id of a send: {chunk: counts} in the message}, {id of a send: the same in the rank's tensor
    at that moment}). Raises ValueError if ledger and trace have different numbers of sends."""
    sent, held = {}, {}
    for rank, result in enumerate(results):
        sends = [id(e) for e in entries if e.rank == rank and e.op == "send"]
        if len(sends) != len(result["sent"]):
            raise ValueError(
                f"rank {rank}'s ledger has {len(sends)} sends, its trace {len(result['sent'])}"
            )
        sent.update(zip(sends, result["sent"], strict=True))
        held.update(zip(sends, result["held"], strict=True))
    return sent, held


def _exchanged(panels, sent, received):
    """(going, coming): for each round {(rank, chunk): counts} that the rank sends, and {(rank,
    chunk): [counts, ...]} that it receives. received: ids of the sends that have a matching
    recv."""
    going, coming = [{} for _ in panels], [{} for _ in panels]
    for number, panel in enumerate(panels):
        for send in panel:
            for chunk, counts in sent[id(send)].items():
                going[number][send.rank, chunk] = counts
                if id(send) in received:
                    coming[number].setdefault((send.peer, chunk), []).append(counts)
    return going, coming


def kind(states, arrived, number):
    """What the ranks did in this round with the chunks that arrived: "added" them (or "some added",
    "nothing added"), or "passed on" sums that were finished already; or "nothing arrives"."""
    N = len(states[0])
    before = states[number - 1] if number else [[(1,)] * N] * N
    if not arrived[number]:
        return "nothing arrives"
    finished = [sum(states[number][r][c]) == N for r, c in arrived[number]]
    grown = [sum(states[number][r][c]) > sum(before[r][c]) for r, c in arrived[number]]
    passed_on = all(any(before[r][c] == (1,) * N for r in range(N)) for _, c in arrived[number])
    if all(finished) and passed_on and number:
        return "passed on"
    return "added" if all(grown) else "some added" if any(grown) else "nothing added"


# --- the drawing ----------------------------------------------------------------------------------


def _drawn(N, panels, states, arrived):
    """Draw a panel per round."""
    columns = len(panels) if len(panels) <= 3 else math.ceil(len(panels) / 2)
    figure, grid = page(4 if len(panels) > 3 else 2.9, math.ceil(len(panels) / columns), columns)
    for number, axes in enumerate(grid.ravel()):
        axes.axis("off")
        if number < len(panels):
            last, shown = number == len(panels) - 1, (states[number], arrived[number])
            _panel(axes, panels[number], *shown, N, 8 / columns, wrong=last)
            axes.set_title(f"round {number + 1}: {kind(states, arrived, number)}", size=9.5)
    return figure


def _panel(axes, panel, state, arrived, N, width, wrong):
    """One round: the ranks on an ellipse, each as a strip of cells, and an arrow for each pair that
    communicates. wrong: mark sums that are not complete, because this is the last round."""
    cell = 0.165  # inches
    reach_x, reach_y = min((width - 0.4 - N * cell) / 2, 1.2), 0.52  # inches
    places = [
        (reach_x * math.sin(2 * math.pi * r / N), reach_y * math.cos(2 * math.pi * r / N))
        for r in range(N)
    ]
    strips = []
    for rank, (x, y) in enumerate(places):
        left, low = x - N * cell / 2, y - cell / 2
        # the cells and the number of the rank
        strips.append(Rectangle((left - 0.2, low), N * cell + 0.2, cell, fc="none", ec="none"))
        axes.add_patch(strips[-1])
        axes.text(left - 0.05, y, str(rank), ha="right", va="center_baseline", size=10,
                  weight="bold", color=readable(rank_color(rank)))  # fmt: skip
        for chunk in range(N):
            counts = state[rank][chunk]
            total, bad = sum(counts), max(counts) > 1 or (wrong and counts != (1,) * N)
            color = DEPTH(min(1.0, (total - 1) / (N - 1))) if total else PAPER
            box(axes, left + chunk * cell, low, cell, cell, color, zorder=4)
            middle(axes, left + (chunk + 0.5) * cell, y, str(total), on_color(color), 8, zorder=6)
            if bad or (rank, chunk) in arrived:
                edge, thick = (ALARM, 2.4) if bad else (INK, 1.6)
                box(axes, left + chunk * cell, low, cell, cell, "none", ec=edge, lw=thick, zorder=5)
    pairs = list(dict.fromkeys((e.rank, e.peer) for e in panel))
    for a, b in pairs:
        bend = 0.25 if (b, a) in pairs else 0.0
        arrow(axes, places[a], places[b], rank_color(a), 1.5, 11, patchA=strips[a],
              patchB=strips[b], shrinkA=4, shrinkB=4, connectionstyle=f"arc3,rad={bend}",
              zorder=3)  # fmt: skip
    axes.set(xlim=(-width / 2 + 0.1, width / 2 - 0.1), ylim=(-0.72, 0.72))
    axes.set_aspect("equal")


# --- the words ------------------------------------------------------------------------------------


def _words(N, panels, states, arrived):
    """The claim, what to look at, what the figure is, and its numbers in words."""
    claim = _mistake(N, states[-1])
    if not claim:
        kinds = [kind(states, arrived, number) for number in range(len(panels))]
        claim = f"{_rounds_of(kinds)}; {_sent(N, panels)}"
    return (
        claim,
        f"A row of cells is a rank's vector, cut into {N} chunks. Number and colour: how many "
        f"ranks' values are summed in the chunk. Outlined: arrived in this round.",
        f"{len(panels)} panels, one per round, of {N} ranks and their {N} chunks.",
        " ".join(_in_words(number, panel, states[number]) for number, panel in enumerate(panels)),
    )


def _mistake(N, state):
    """A claim about the first chunk that does not end as the sum over all ranks; "" if every one
    does."""
    for rank, chunk in ((r, c) for r in range(N) for c in range(N)):
        counts = state[rank][chunk]
        if counts != (1,) * N:
            lacks = [str(r) for r in range(N) if counts[r] == 0]
            twice = [f"rank {r}'s values {counts[r]} times" for r in range(N) if counts[r] > 1]
            has = f"lacks the values of rank {', '.join(lacks)}" if lacks else ""
            has = has or f"has {', '.join(twice)}"
            return f"Not an all-reduce: rank {rank}'s chunk {chunk} {has}"
    return ""


def _rounds_of(kinds):
    add, pass_on = kinds.count("added"), kinds.count("passed on")
    words = f"{add} round{'s add' if add != 1 else ' adds'}"
    return words + (f", {pass_on} pass{'' if pass_on != 1 else 'es'} on" if pass_on else "")


def _sent(N, panels):
    """How many vectors the ranks send; the most and the least if they differ."""
    sent = [sum(e.numel for panel in panels for e in panel if e.rank == r) / N for r in range(N)]
    most, least = max(sent), min(sent)
    who = "every rank" if most == least else f"rank {sent.index(most)}"
    words = f"{who} sends {most:.3g} vector{'s' * (most != 1)}"
    return words if most == least else f"{words}, rank {sent.index(least)} only {least:.3g}"


def _in_words(number, panel, state):
    talk = ", ".join(dict.fromkeys(f"{e.rank} to {e.peer}" for e in panel))
    held = "; ".join(
        f"rank {r} holds {' '.join(str(sum(c)) for c in chunks)}" for r, chunks in enumerate(state)
    )
    return f"Round {number + 1}: {talk}; then {held}."
