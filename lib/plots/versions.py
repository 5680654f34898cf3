"""Which version of its weights does each forward and each backward of a PipeDream stage read?

    version 2                          [F5]                 a box lies on the row of the version that it reads
    version 1              [F4]
    version 0  [F0][F1] [ B0 ]   [ B1 ]                     with stashing: F and B of a mini-batch on one row
                                                            without: B on a higher one, the newest

Narayanan et al. 2019. Version k: the weights after k updates of this stage.
"""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.pipeline.actions import Action
from lib.pipeline.simulate import UNIT, simulate
from lib.pipeline.versions import pipedream
from lib.plots.boxes import BOX_COLOR
from lib.plots.style import ALARM, FAINT, INK, OP_COLOR, PAPER, finish, on_color, styled


@styled
def stage_versions(reads, stage=0, title=None, note=""):
    """A panel per way to run PipeDream; a row per version; boxes F and B over time, joined for each mini-batch.

    reads: {"with stashing": {Action: version}, "without": {Action: version}}, of all p stages and n mini-batches each,
        as `versions(p, n, stashing)` foretells them or `PipeDream.reads` of the ranks, put together; 1 or 2 of them.
    stage: whose weights. Boxes are placed as 1F1B places them if B takes as long as two F.
    Raises ValueError for another number of ways, for other actions than 1F1B's, or a stage that there is not.
    """
    if not 1 <= len(reads) <= 2:
        raise ValueError(f"{len(reads)} ways to run it: 1 or 2 fit beside each other")
    p, n = (1 + max(column) for column in zip(*((a.stage, a.microbatch) for a in next(iter(reads.values()))),
                                              strict=True))  # fmt: skip
    schedule = pipedream(p, n)
    for name, of in reads.items():
        missing = next((action for actions in schedule for action in actions if action not in of), None)
        if missing or len(of) != 2 * p * n or not 0 <= stage < p:
            raise ValueError(
                f"{name}: {len(of)} actions, {missing or 'none'} missing, stage {stage}: give every F and B of {n} "
                f"mini-batches on stages 0 to {p - 1}, and one of these stages"
            )
    bars = [bar for bar in simulate(schedule, UNIT).bars if bar.rank == stage]
    end = bars[-1].end
    held = {name: held_spans(bars, of) for name, of in reads.items()}
    copies = {name: most_at_once(spans) for name, spans in held.items()}
    late = {name: max(of[bar.action] - of[bar.action._replace(kind="F")] for bar in bars) for name, of in reads.items()}

    figure = Figure(figsize=(8, min(4.0, 1.75 + 0.25 * n)))
    panels = figure.subplots(1, len(reads), squeeze=False, sharey=True)[0]
    inches = 6.9 / len(reads) / end  # of one unit of time
    for axes, (name, of) in zip(panels, reads.items(), strict=True):
        for version, (since, until) in held[name].items():
            axes.add_patch(Rectangle((since, version - 0.42), until - since, 0.84, fc=OP_COLOR["idle"], ec="none"))
        for j in range(n):
            f, b = (next(bar for bar in bars if bar.action == Action(stage, kind, j)) for kind in "FB")
            middle, (before, after) = (b.start + b.end) / 2, (of[f.action], of[b.action])
            axes.plot([f.end, b.start if before == after else middle], [before, before], color=FAINT, lw=1.0, zorder=2)
            if before != after:  # how many updates lie between: from the row of its forward up to where backward is
                axes.plot([middle, middle], [before, after - 0.36], color=ALARM, lw=1.8, zorder=4)
        for bar in bars:
            (_, _, j), color = bar.action, BOX_COLOR[bar.action.kind]
            axes.add_patch(Rectangle((bar.start, of[bar.action] - 0.36), bar.end - bar.start, 0.72, fc=color, ec=PAPER,
                                     lw=0.6, zorder=3))  # fmt: skip
            if (bar.end - bar.start) * inches > 0.065 * len(str(j)):
                axes.text((bar.start + bar.end) / 2, of[bar.action], str(j), ha="center", va="center_baseline",
                          size=7.5, color=on_color(color), zorder=5)  # fmt: skip
        axes.set(xlim=(0, end), ylim=(-0.6, n - 0.4), xlabel="time (forwards)")
        axes.set_yticks(range(n))
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{name}: {copies[name]} version{'s' * (copies[name] > 1)} at once", loc="left", size=10,
                       weight="bold", color=INK)  # fmt: skip
    panels[0].set_ylabel("version of the weights")
    handles = [Rectangle((0, 0), 1, 1, fc=c, label=t) for c, t in ((BOX_COLOR["F"], "forward"),
               (BOX_COLOR["B"], "backward"), (OP_COLOR["idle"], "held"))]  # fmt: skip
    panels[0].legend(handles=handles, loc="upper left", frameon=False, borderpad=0, handlelength=1.2)
    claim = "; ".join(
        f"{name}: backward reads " + (f"weights up to {updates} updates newer" if updates else "what its forward read")
        for name, updates in late.items()
    )
    return finish(
        figure,
        title or f"{claim[0].upper()}{claim[1:]}",
        f"{note} Stage {stage} of {p}. A box lies on the version that it reads; in it, its mini-batch. A line goes "
        f"from forward to backward{', red through the updates in between' * any(late.values())}.".strip(),
        f"Versions of the weights that stage {stage} of {p} reads over {n} mini-batches. {claim}. {note} "
        + " ".join(
            f"{name}, at most {copies[name]} versions at once: "
            + ", ".join(
                f"{j} forward {of[Action(stage, 'F', j)]} backward {of[Action(stage, 'B', j)]}" for j in range(n)
            )
            + "."
            for name, of in reads.items()
        ),
    )


def held_spans(bars, reads):
    """{version: (since when, until when)} it is in memory: while it is the newest, or a backward will read it."""
    updates = [bar.end for bar in bars if bar.action.kind == "B"]  # version k+1 from the end of the k-th B on
    newest = dict(enumerate(zip([0, *updates], updates, strict=False)))  # without the one that the last B makes
    last_read = {}
    for bar in bars:
        last_read[reads[bar.action]] = max(bar.end, last_read.get(reads[bar.action], 0))
    return {k: (since, max(until, last_read.get(k, 0))) for k, (since, until) in newest.items()}


def most_at_once(spans):
    """The most of the spans (from, until) at one moment; one that begins where another ends is not beside it."""
    return max(sum(since <= at < until for since, until in spans.values()) for at, _ in spans.values())
