"""One training step, rank by rank: computation, communication, and how much of the communication is
hidden.

    rank 0   compute   [ forward ][ backward          ][/ wait /]
             network                   [= 0 =][= 1 =][= 2 =]

A span is (rank, lane, label, begin, end), in seconds, as `lib.measuring.paced.Spans` records it or
`lib.explore.lab1` computes it with `lib.cost`. lane: "compute" or "network"; the spans in one lane
of a rank must not overlap. A span with the label "wait" in the lane "compute" is time in which the
rank does not compute.
"""

from lib.cost.exposed import exposed_seconds
from lib.plots.draw import WAITING, box, heading, page, rank_rows, time_axis
from lib.plots.labels import amount, capital
from lib.plots.style import FAINT, OP_COLOR, PAPER, drawing

LANES = ("compute", "network")
KIND_COLOR = {
    "forward": OP_COLOR["F"],
    "backward": OP_COLOR["B"],
    "update": OP_COLOR["W"],
    "all-reduce": OP_COLOR["collective"],  # everything in the lane "network"
}


@drawing
def step_timeline(steps):
    """A panel per way to run the step, one above the other on one time axis, with two lanes per
    rank.

    steps: {"after backward": [span, ...], "overlapped": [span, ...]}, 1 to 3 panels; for what a
    span is, see the module's docstring. Raises ValueError for any other number of panels, an empty
    one, or a span that is not valid.
    """
    _refuse(steps)
    names = list(steps)
    zero = {name: min(begin for *_, begin, _ in spans) for name, spans in steps.items()}
    seconds = {name: max(end for *_, end in spans) - zero[name] for name, spans in steps.items()}
    hidden = {name: hidden_share(spans) for name, spans in steps.items()}
    ranks = {name: sorted({span[0] for span in spans}) for name, spans in steps.items()}
    longest = max(seconds.values())
    rows = sum(2 * len(r) for r in ranks.values())

    figure, panels = page(
        1.75 + 0.3 * len(names) + 0.18 * rows,
        rows=len(names),
        sharex=True,
        gridspec_kw={"height_ratios": [len(r) for r in ranks.values()]},
    )
    lane_height = (figure.get_figheight() - 1.4 - 0.3 * len(names)) / rows  # inches, approximately
    for axes, (name, spans) in zip(panels, steps.items(), strict=True):
        for rank, lane, label, begin, end in spans:
            y = ranks[name].index(rank) + 0.4 * LANES.index(lane) - 0.4
            color = KIND_COLOR.get(_kind(lane, label), OP_COLOR["idle"])
            wide = (end - begin) / longest * 6.9  # inches
            # else a narrow bar would be all edge
            look = {"ec": PAPER if wide > 0.08 else color, "lw": 0.6}
            if _kind(lane, label) == "wait":
                look, label = WAITING | {"lw": 0.6}, ""
            box(axes, 1e3 * (begin - zero[name]), y, 1e3 * (end - begin), 0.37, color, label,
                wide if lane_height > 0.115 else 0, min(9, 60 * lane_height), **look)  # fmt: skip
        axes.set_xlim(0, 1.02e3 * longest)
        rank_rows(axes, ranks[name])
        axes.axvline(1e3 * seconds[name], color=FAINT, lw=1.2, zorder=0)
        took = f"{amount(1e3 * seconds[name])} ms"
        heading(axes, f"{name}: {took}, {hidden[name]:.0%} of the communication hidden", pad=3)
    kinds = dict.fromkeys(
        _kind(lane, label) for spans in steps.values() for _, lane, label, *_ in spans
    )
    look = {kind: KIND_COLOR.get(kind, OP_COLOR["idle"]) for kind in kinds} | {"wait": WAITING}
    time_axis(panels[-1], "ms", {"waits" if kind == "wait" else kind: look[kind] for kind in kinds})
    of_each = "; ".join(
        f"{name}, {len(ranks[name])} rank{'s' * (len(ranks[name]) > 1)}: "
        f"{amount(1e3 * seconds[name])} ms, "
        f"{amount(1e3 * network_seconds(spans) / len(ranks[name]))} ms of communication per rank, "
        f"{hidden[name]:.0%} of it hidden"
        for name, spans in steps.items()
    )
    look = (
        "A rank's upper lane shows what it computes, its lower lane its buckets' all-reduces. "
        "Communication is hidden while the same rank computes."
    )
    what = "Timeline of one training step, a panel per way to run it."
    return figure, _claim(names, seconds, hidden), look, what, f"{of_each}."


def _kind(lane, label):
    return "all-reduce" if lane == "network" else label


def hidden_share(spans):
    """The share of all ranks' network time, 0 to 1, during which the same rank computes; 0 if there
    is no network time."""
    total = network_seconds(spans)
    exposed = sum(exposed_seconds(*lanes_of(spans, rank)) for rank in {span[0] for span in spans})
    return 1 - exposed / total if total else 0.0


def lanes_of(spans, rank):
    """(compute, messages): the intervals (begin, end) in which this rank computes, and those in
    which it communicates."""
    mine = [(lane, label, (begin, end)) for who, lane, label, begin, end in spans if who == rank]
    compute = [interval for lane, label, interval in mine if lane == "compute" and label != "wait"]
    return compute, [interval for lane, _, interval in mine if lane == "network"]


def network_seconds(spans):
    """Seconds that all ranks together spend communicating."""
    return sum(end - begin for _, lane, _, begin, end in spans if lane == "network")


def _claim(names, seconds, hidden):
    first, last = names[0], names[-1]
    if len(names) == 1:
        return (
            f"{hidden[last]:.0%} of the communication is hidden; the step takes "
            f"{amount(1e3 * seconds[last])} ms"
        )
    if seconds[last] > seconds[first]:
        return "; ".join(
            f"{capital(name)}: {hidden[name]:.0%} of communication hidden, "
            f"{amount(1e3 * seconds[name])} ms a step"
            for name in (first, last)
        )
    return (
        f"{capital(last)}: {hidden[last]:.0%} of communication hidden, "
        f"{amount(1e3 * seconds[last])} ms a step instead of {amount(1e3 * seconds[first])} ms"
    )


def _refuse(steps):
    if not 1 <= len(steps) <= 3 or not all(steps.values()):
        raise ValueError(
            f"{ {name: len(spans) for name, spans in steps.items()} } spans: give 1 to 3 steps, "
            f"none empty"
        )
    for name, spans in steps.items():
        for span in spans:
            _, lane, _, begin, end = span
            if lane not in LANES or not begin <= end:
                raise ValueError(
                    f"{name}: span {span} is not (rank, lane, label, begin, end) with a lane of "
                    f"{', '.join(LANES)} and an end that is not before its begin"
                )
