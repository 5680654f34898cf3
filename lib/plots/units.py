"""Which units of an FSDP model are unsharded, and when: a lane per unit, and a bar from its unshard
to its reshard.

root     [==============|===============]
unit 0      [=]                      [=]
unit 1         [=]                [=]
unit 2            [=]          [=]
         0  1  1  1  0  |   0  1  1  1  0        number of unsharded units, without the root
            forward           backward
"""

from itertools import pairwise

from lib.plots.draw import LANE, above, box, grid, heading, page
from lib.plots.labels import each
from lib.plots.style import FAINT, INK, OP_COLOR, drawing

PHASE = {"forward": OP_COLOR["F"], "backward": OP_COLOR["B"]}


@drawing
def units_unsharded(events, names):
    """A panel per way to run a step, side by side. The x axis counts the events of the step in
    their order.

    events: {"FSDP": [(seconds, "unshard" or "reshard", index), ...], "prefetching": [...]}; 1 or 2
    of them. index: that of a unit, or None for the root. An unshard of the root begins a forward
    pass; after it, a unit's first, third, ... unshard belongs to a forward pass and the others to a
    backward pass.
    names: of the units, such as ["block 0", ...]; at most 12.
    Raises ValueError for any other number of panels or names, or an event of another kind or index.
    """
    if not 1 <= len(events) <= 2 or not 1 <= len(names) <= 12:
        raise ValueError(
            f"{len(events)} lists of events, {len(names)} names: give 1 or 2 lists, 1 to 12 units"
        )
    order = {name: changes(name, some, len(names)) for name, some in events.items()}
    unsharded = {name: unsharded_spans(some) for name, some in order.items()}
    counts = {
        name: [how_many(spans, x) for x in range(len(order[name]))]
        for name, spans in unsharded.items()
    }
    most = {name: max(count, default=0) for name, count in counts.items()}
    lanes = [None, *range(len(names))]

    figure, panels = page(2.1 + 0.2 * len(lanes), 2, len(events), sharex="col", sharey="row",
                          height_ratios=[max(4, len(lanes)),
                                         max(1.6, 0.24 * len(lanes))])  # fmt: skip
    for (upper, lower), (name, spans) in zip(panels.T, unsharded.items(), strict=True):
        end, cuts = len(order[name]), phases(order[name])
        _lanes(upper, spans, lanes, cuts, end)
        for axes in (upper, lower):
            for since, _ in cuts:
                axes.axvline(since, color=FAINT, lw=1.0, zorder=1)
        steps = [*counts[name], counts[name][-1] if end else 0]
        lower.fill_between(range(end + 1), steps, step="post", color=INK, alpha=0.18, lw=0)
        lower.step(range(end + 1), steps, where="post", color=INK, lw=1.5)
        upper.set(xlim=(0, end), ylim=(len(lanes) - 0.5, -0.5))
        heading(upper, f"{name}: at most {most[name]} unsharded", pad=16)
        upper.tick_params(length=0, labelbottom=False)
        upper.spines[["left", "bottom"]].set_visible(False)
        lower.set(
            ylim=(0, max(most.values()) + 0.45), xlabel="events of a step, in order", xticks=[]
        )
        grid(lower, "y")
    panels[0, 0].set_yticks(range(len(lanes)), ["root", *names], size=min(10, 90 / len(lanes)))
    panels[1, 0].set_yticks(range(max(most.values()) + 1))
    panels[1, 0].tick_params(axis="y", labelsize=9)
    panels[1, 0].set_ylabel("unsharded", rotation=0, ha="right", va="center")
    (first, n_unsharded), *others = most.items()
    claim = f"{first} keeps at most {n_unsharded} of {len(names)} units unsharded"
    claim += "".join(f", {name} at most {n}" for name, n in others)
    counted = ", without the root" * any(spans.get(None) for spans in unsharded.values())
    words = each(
        {
            f"{name}, unsharded units in order of events": ", ".join(map(str, of))
            for name, of in counts.items()
        }
    )
    what = "A lane per unit, with a bar while its parameters are unsharded."
    return (
        figure,
        claim,
        f"A bar lasts from unshard to reshard. The curve counts the unsharded units{counted}.",
        what,
        words,
    )


def _lanes(upper, spans, lanes, cuts, end):
    """A bar while a unit is unsharded, in the colour of the phase, and divided where another phase
    begins."""
    for y, index in enumerate(lanes):
        box(upper, 0, y - 0.42, end, 0.84, LANE, ec="none", zorder=0)
        for begin, until in spans.get(index, []):
            for since, phase, to in ((a[0], a[1], b[0]) for a, b in pairwise([*cuts, (end, None)])):
                x0, x1 = max(begin, since), min(until, to)
                if x0 < x1:
                    box(upper, x0, y - 0.36, x1 - x0, 0.72, PHASE[phase], ec="none")
            box(upper, begin, y - 0.36, until - begin, 0.72, "none", zorder=3)
    for since, phase in cuts:
        above(upper, since, phase, xytext=(2, 2), size=9, color=FAINT, ha="left")


def changes(name, events, n_units):
    """The events in their order, without those that change nothing: an unshard of a unit that is
    unsharded already, or a reshard of a sharded one.

    Raises ValueError for an event of another kind or index.
    """
    out, unsharded = [], set()
    for event in sorted(events, key=lambda event: event[0]):
        _, what, index = event
        if what not in ("unshard", "reshard") or not (index is None or 0 <= index < n_units):
            raise ValueError(
                f"{name}: {what} of {index}: give unshard and reshard of units 0 to {n_units - 1}, "
                f"or None"
            )
        if (what == "unshard") != (index in unsharded):
            unsharded ^= {index}
            out.append(event)
    return out


def unsharded_spans(events):
    """{index: [(begin, end), ...]}: when each unit was unsharded, counted in events. A unit that is
    never resharded stays unsharded until the end."""
    spans, since = {}, {}
    for x, (_, what, index) in enumerate(events):
        if what == "unshard":
            since[index] = x
        else:
            spans.setdefault(index, []).append((since.pop(index), x))
    for index, x in since.items():
        spans.setdefault(index, []).append((x, len(events)))
    return spans


def how_many(spans, x):
    """The number of units that are unsharded right after event x, without the root."""
    return sum(
        begin <= x < end
        for index, of_unit in spans.items()
        if index is not None
        for begin, end in of_unit
    )


def phases(events):
    """[(number of the event with which the phase begins, "forward" or "backward"), ...]."""
    found, times = [(0, "forward")], {}
    for x, (_, what, index) in enumerate(events):
        if what == "unshard":
            # an unshard of the root begins a forward pass
            times = {} if index is None else {**times, index: times.get(index, 0) + 1}
            phase = "forward" if index is None or times[index] % 2 else "backward"
            if phase != found[-1][1]:
                found.append((x, phase))
    return found
