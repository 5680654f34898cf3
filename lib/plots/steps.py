"""One training step, rank by rank: what computes, what travels beside it, and how much of that is hidden.

    rank 0   compute   [ forward ][ backward          ][/ wait /]
             network                   [= 0 =][= 1 =][= 2 =]

A span is (rank, lane, label, begin, end), in seconds, as `lib.paced.Spans` records it and `lib.cost` predicts it.
lane: "compute" or "network"; each holds one thing at a time. The label "wait" in the lane "compute" is no work.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.plots.labels import short
from lib.plots.style import FAINT, OP_COLOR, PAPER, finish, on_color, rank_color, styled

LANES = ("compute", "network")
KIND_COLOR = {
    "forward": OP_COLOR["F"],
    "backward": OP_COLOR["B"],
    "update": OP_COLOR["W"],
    "all-reduce": OP_COLOR["collective"],  # whatever is in the lane of the network
}


@styled
def step_timeline(steps, title=None, note=""):
    """A panel per way to run the step, one above the other on one time axis; two lanes per rank.

    steps: {"after backward": [span, ...], "overlapped": [span, ...]}; see the module for a span. 1 to 3 panels.
    note: a sentence to begin the caption with, such as what the link was.
    """
    _refuse(steps)
    names = list(steps)
    zero = {name: min(begin for *_, begin, _ in spans) for name, spans in steps.items()}
    seconds = {name: max(end for *_, end in spans) - zero[name] for name, spans in steps.items()}
    hidden = {name: hidden_share(spans) for name, spans in steps.items()}
    ranks = {name: sorted({span[0] for span in spans}) for name, spans in steps.items()}
    longest = max(seconds.values())
    rows = sum(2 * len(r) for r in ranks.values())

    figure = Figure(figsize=(8, min(4.0, 1.75 + 0.3 * len(names) + 0.18 * rows)))
    panels = figure.subplots(
        len(names), sharex=True, squeeze=False, gridspec_kw={"height_ratios": [len(r) for r in ranks.values()]}
    )[:, 0]
    lane_height = (figure.get_figheight() - 1.4 - 0.3 * len(names)) / rows  # inches, near enough
    for axes, (name, spans) in zip(panels, steps.items(), strict=True):
        for rank, lane, label, begin, end in spans:
            y = ranks[name].index(rank) + 0.4 * LANES.index(lane) - 0.4
            kind = "all-reduce" if lane == "network" else label
            color = KIND_COLOR.get(kind, OP_COLOR["idle"])
            wide = (end - begin) / longest * 6.9  # inches
            edge = PAPER if wide > 0.08 else color  # or a narrow bar would be all edge
            look = {"fc": PAPER, "ec": FAINT, "hatch": "/////"} if kind == "wait" else {"fc": color, "ec": edge}
            axes.add_patch(Rectangle((1e3 * (begin - zero[name]), y), 1e3 * (end - begin), 0.37, lw=0.6, **look))
            if kind != "wait" and wide > 0.075 * len(label) + 0.05 and lane_height > 0.115:
                axes.text(1e3 * ((begin + end) / 2 - zero[name]), y + 0.185, label, ha="center", va="center_baseline",
                          size=min(9, 60 * lane_height), color=on_color(color))  # fmt: skip
        axes.set(xlim=(0, 1.02e3 * longest), ylim=(len(ranks[name]) - 0.5, -0.5))
        axes.set_yticks([r - 0.02 for r in range(len(ranks[name]))], [f"rank {r}" for r in ranks[name]])
        for label, rank in zip(axes.get_yticklabels(), ranks[name], strict=True):
            label.set(color=rank_color(rank), weight="bold")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.axvline(1e3 * seconds[name], color=FAINT, lw=1.2, zorder=0)
        axes.set_title(
            f"{name}: {_milliseconds(seconds[name])}, {hidden[name]:.0%} of the communication hidden",
            loc="left", size=10, weight="bold", pad=3,
        )  # fmt: skip
    panels[-1].set_xlabel("time (ms)", loc="left")
    panels[-1].xaxis.set_major_formatter(lambda ms, _: short(ms))
    kinds = dict.fromkeys(
        "all-reduce" if lane == "network" else label for spans in steps.values() for _, lane, label, *_ in spans
    )
    handles = [
        Rectangle((0, 0), 1, 1, fc=PAPER, ec=FAINT, hatch="/////", label="waits")
        if kind == "wait"
        else Rectangle((0, 0), 1, 1, fc=KIND_COLOR.get(kind, OP_COLOR["idle"]), label=kind)
        for kind in kinds
    ]
    panels[-1].legend(handles=handles, loc="upper right", bbox_to_anchor=(1, 0), borderaxespad=1.75, ncols=8,
                      frameon=False, borderpad=0, handlelength=1.2)  # fmt: skip
    claim = _claim(names, seconds, hidden)
    of_each = "; ".join(
        f"{name}, {len(ranks[name])} rank{'s' * (len(ranks[name]) > 1)}: {_milliseconds(seconds[name])}, "
        f"{_milliseconds(network_seconds(spans) / len(ranks[name]))} of communication per rank, "
        f"{hidden[name]:.0%} of it hidden"
        for name, spans in steps.items()
    )
    return finish(
        figure,
        title or claim,
        f"{note} Upper lane: the rank computes. Lower lane: its buckets travel; hidden is what runs beside compute."
        .strip(),
        f"Timeline of one training step, a panel per way to run it. {claim}. {note} {of_each}.",
    )  # fmt: skip


def hidden_share(spans):
    """The share of all ranks' network time during which the same rank computes, 0 to 1; 0 for no network time."""
    beside = 0.0
    for rank, lane, _, begin, end in spans:
        if lane == "network":
            working = [s[3:] for s in spans if s[0] == rank and s[1] == "compute" and s[2] != "wait"]
            beside += sum(max(0.0, min(end, until) - max(begin, since)) for since, until in working)
    total = network_seconds(spans)
    return beside / total if total else 0.0


def network_seconds(spans):
    """Seconds that all ranks together spend communicating."""
    return sum(end - begin for _, lane, _, begin, end in spans if lane == "network")


def _milliseconds(seconds):
    """Three digits: 0.12345 -> "123 ms"."""
    return f"{short(float(f'{1e3 * seconds:.3g}'))} ms"


def _claim(names, seconds, hidden):
    first, last = names[0], names[-1]
    if len(names) == 1:
        return f"{hidden[last]:.0%} of the communication is hidden; the step takes {_milliseconds(seconds[last])}"
    return (
        f"{last[0].upper()}{last[1:]}: {hidden[last]:.0%} of communication hidden, "
        f"{_milliseconds(seconds[last])} a step instead of {_milliseconds(seconds[first])}"
    )


def _refuse(steps):
    if not 1 <= len(steps) <= 3 or not all(steps.values()):
        raise ValueError(
            f"{ {name: len(spans) for name, spans in steps.items()} } spans: give 1 to 3 steps, none empty"
        )
    for name, spans in steps.items():
        for span in spans:
            _, lane, _, begin, end = span
            if lane not in LANES or not begin <= end:
                raise ValueError(
                    f"{name}: span {span} is not (rank, lane, label, begin, end) with a lane of {', '.join(LANES)} "
                    "and an end that is not before its begin"
                )
