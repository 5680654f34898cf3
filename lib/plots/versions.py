"""Which version of its weights does each forward and each backward of a PipeDream stage read?

    version 2                          [F5]       a box is drawn in the row of the version it reads
    version 1              [F4]
    version 0  [F0][F1] [ B0 ]   [ B1 ]           with stashing: F and B of a mini-batch in one row
                                                  without: B in a higher one, the newest

Source: Narayanan et al. 2019. Version k is what the weights are after k updates of this stage.
"""

from lib.pipeline.actions import Action
from lib.pipeline.simulate import UNIT, simulate
from lib.pipeline.stash import pipedream
from lib.plots.boxes import BOX_COLOR
from lib.plots.draw import box, heading, key, page
from lib.plots.labels import each
from lib.plots.style import ALARM, FAINT, OP_COLOR, drawing


@drawing
def stage_versions(reads):
    """A panel per way to run PipeDream, a row per version of the weights. Boxes F and B are drawn
    over time, and a line joins those of each mini-batch.

    reads: {"with stashing": {Action: version}, "without": {Action: version}}, of all p stages and n
        mini-batches each, as `versions(p, n, stashing)` predicts them, or merged from the
        `PipeDream.reads` of all ranks; 1 or 2 of them.
    Stage 0 is drawn, because it reads the oldest versions. The boxes are where 1F1B places them if
    B takes as long as two F.
    Raises ValueError for any other number of ways, or for other actions than 1F1B's.
    """
    if not 1 <= len(reads) <= 2:
        raise ValueError(f"{len(reads)} ways to run it: 1 or 2 fit beside each other")
    p, n = (1 + max(column) for column in zip(*((a.stage,
    a.microbatch) for a in next(iter(reads.values()))),
                                              strict=True))  # fmt: skip
    schedule = pipedream(p, n)
    for name, of in reads.items():
        missing = next(
            (action for actions in schedule for action in actions if action not in of), None
        )
        if missing or len(of) != 2 * p * n:
            raise ValueError(
                f"{name}: {len(of)} actions, {missing or 'none'} missing: give every F and B of "
                f"{n} mini-batches on stages 0 to {p - 1}"
            )
    bars = [bar for bar in simulate(schedule, UNIT).bars if bar.rank == 0]
    end = bars[-1].end
    held = {name: held_spans(bars, of) for name, of in reads.items()}
    copies = {name: most_at_once(spans) for name, spans in held.items()}
    late = {
        name: max(of[bar.action] - of[bar.action._replace(kind="F")] for bar in bars)
        for name, of in reads.items()
    }

    figure, panels = page(1.75 + 0.25 * n, columns=len(reads), sharey=True)
    for axes, (name, of) in zip(panels, reads.items(), strict=True):
        _panel(axes, bars, of, held[name], 6.9 / len(reads) / end)
        axes.set(xlim=(0, end), ylim=(-0.6, n - 0.4), xlabel="time (forwards)")
        axes.set_yticks(range(n))
        axes.tick_params(axis="y", length=0)
        heading(axes, f"{name}: {copies[name]} version{'s' * (copies[name] > 1)} at once")
    panels[0].set_ylabel("version of the weights")
    colors = {"forward": BOX_COLOR["F"], "backward": BOX_COLOR["B"], "held": OP_COLOR["idle"]}
    key(panels[0], colors, loc="upper left", bbox_to_anchor=(0, 1), borderaxespad=0.5, ncols=1)
    claim = "; ".join(
        f"{name}: backward reads "
        + (f"weights up to {updates} updates newer" if updates else "what its forward read")
        for name, updates in late.items()
    )
    said = {f"{name}, at most {copies[name]} versions at once": of for name, of in reads.items()}
    words = lambda _, of: ", ".join(
        f"{j} forward {of[Action(0, 'F', j)]} backward {of[Action(0, 'B', j)]}" for j in range(n)
    )
    return (
        figure, claim,
        f"This is stage 0 of {p}. A box is drawn on the version that it reads, with the number of "
        f"its mini-batch. A line leads from forward to "
        f"backward{', red through the updates in between' * any(late.values())}.",
        f"Versions of the weights that stage 0 of {p} reads over {n} mini-batches.",
        each(said, words),
    )  # fmt: skip


def _panel(axes, bars, reads, held, inches):
    """The versions in memory, boxes in the rows of the versions that they read, and lines from F to
    B. inches: width of a unit of time on the page."""
    for version, (since, until) in held.items():
        box(axes, since, version - 0.42, until - since, 0.84, OP_COLOR["idle"], ec="none", zorder=1)
    backward = {bar.action._replace(kind="F"): bar for bar in bars if bar.action.kind == "B"}
    for f, b in ((bar, backward[bar.action]) for bar in bars if bar.action.kind == "F"):
        middle, (before, after) = (b.start + b.end) / 2, (reads[f.action], reads[b.action])
        axes.plot([f.end, b.start if before == after else middle], [before, before], color=FAINT,
                  lw=1.0, zorder=2)  # fmt: skip
        # a line across the updates in between, from the row of the forward up to the backward
        if before != after:
            axes.plot([middle, middle], [before, after - 0.36], color=ALARM, lw=1.8, zorder=4)
    for bar in bars:
        color, wide = BOX_COLOR[bar.action.kind], (bar.end - bar.start) * inches
        box(axes, bar.start, reads[bar.action] - 0.36, bar.end - bar.start, 0.72, color,
            str(bar.action.microbatch),
            wide, 7.5, room=0.02, lw=0.6, zorder=3)  # fmt: skip


def held_spans(bars, reads):
    """{version: (begin, end)}: the time in which a version is in memory, that is, while it is the
    newest, or as long as a backward still has to read it."""
    # B number k, counted from 0, ends with the update that makes version k+1
    updates = [bar.end for bar in bars if bar.action.kind == "B"]
    # the version that the last B makes is left out
    newest = dict(enumerate(zip([0, *updates], updates, strict=False)))
    last_read = {}
    for bar in bars:
        last_read[reads[bar.action]] = max(bar.end, last_read.get(reads[bar.action], 0))
    return {k: (since, max(until, last_read.get(k, 0))) for k, (since, until) in newest.items()}


def most_at_once(spans):
    """The largest number of spans (begin, end) at one moment. A span that begins where another ends
    does not overlap it."""
    return max(
        sum(since <= at < until for since, until in spans.values()) for at, _ in spans.values()
    )
