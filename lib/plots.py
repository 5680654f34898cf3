"""Figures from plain data, all in one style. Nothing here needs torch or ranks.

    plots.traffic_matrix(results.ledger.matrix("bytes"))         the last line of a cell: the notebook shows it
    plots.timeline(entries).show()                               anywhere else in a cell
    plots.loss_curve(steps, losses, entropy).save("loss.png")    a script

Colours: one per rank, the same in every lab (`rank_color`); one per kind of work (`OP_COLOR`). They stay apart
for readers who see no red, no green or no blue. Predictions are dashed, measurements solid. The title says what the
figure shows, the caption what to look at, the alt text both to a reader who cannot see it. The background is a solid
light paper, so that the figure reads the same on a light and on a dark page.
The same data give the same bytes: a notebook executed again stores the same image.
"""

import base64
import functools
import io
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

PAPER, INK, FAINT = "#faf9f6", "#22262b", "#6b6f76"
ALARM = "#c2103a"  # what is wrong; always thicker as well, for who does not see the red

RANK_COLORS = ("#0072b2", "#e69f00", "#7b1e2b", "#45c4bb", "#6d2fd6", "#d03a1a", "#93bf6f", "#8a4a78")
OP_COLOR = {
    "F": "#5aa9e6",  # forward
    "B": "#f0a030",  # backward, of the input or of everything
    "W": "#2f7d4f",  # backward of the weights
    "send": "#5b2a86",
    "recv": "#d86a8a",
    "collective": "#3d4a5c",  # every op that is not named here
    "idle": "#dcdad3",
}
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 10,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 2.0,
    "hatch.linewidth": 0.7,
}
DPI = 150


def rank_color(rank):
    """The colour of a rank, in every figure. They repeat after 8 ranks, so label each line with its rank as well."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def on_color(color):
    """Ink or paper: which of the two reads better on `color`."""
    return INK if np.dot([0.299, 0.587, 0.114], to_rgb(color)) > 0.55 else PAPER


# --- the frame of every figure --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawing:
    """A finished figure: PNG bytes, alt text, size in inches. As the last value of a notebook cell it shows itself."""

    png: bytes
    alt: str
    width: float
    height: float

    def _repr_mimebundle_(self, include=None, exclude=None):
        """What Jupyter stores: the image, with its alt text and its size on the page (96 pixels per inch)."""
        size = {"width": round(96 * self.width), "height": round(96 * self.height)}
        data = {"image/png": base64.b64encode(self.png).decode(), "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt, **size}}

    def show(self):
        """Show it now, from the middle of a cell. In a terminal this prints the alt text."""
        from IPython.display import display

        display(self)

    def save(self, path):
        """Write the PNG; its folder must exist. Returns the path."""
        Path(path).write_bytes(self.png)
        return Path(path)


def styled(draw):
    """Run a drawing function in the course's style, whatever the reader has set in matplotlib."""

    @functools.wraps(draw)
    def in_style(*args, **kwargs):
        with matplotlib.style.context(["default", STYLE]):
            return draw(*args, **kwargs)

    return in_style


def finish(figure, title, caption, alt):
    """Put title and caption round what is drawn, render, and return the Drawing. Call it inside a `styled` function.

    title: the claim, one or two lines. caption: what to see. alt: the figure in words, for who cannot see it.
    """
    width, height = figure.get_size_inches()
    # Letters per inch at these sizes, on the safe side: the width of text is known only after drawing.
    title, caption = textwrap.wrap(title, int(9.3 * width)), textwrap.wrap(caption, int(13.5 * width))
    top, bottom = 0.16 + 0.23 * len(title), 0.12 + 0.18 * len(caption)  # inches
    figure.text(0.12 / width, 1 - 0.1 / height, "\n".join(title), va="top", size=12.5, weight="bold")
    figure.text(0.12 / width, 0.09 / height, "\n".join(caption), va="bottom", size=9.5, color=FAINT)
    figure.set_layout_engine(
        "constrained", rect=(0.01, bottom / height, 0.98, 1 - (top + bottom) / height), w_pad=0.05, h_pad=0.05
    )
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})  # no version in the file: the same bytes
    return Drawing(png.getvalue(), alt, width, height)


# --- loss ------------------------------------------------------------------------------------------------------------


@styled
def loss_curve(steps, losses, entropy, others=None, title=None):
    """Loss against step, beside the unigram entropy of the text, which no model without context can beat.

    steps, losses: (n,) of the training run, nats per character. entropy: nats per character.
    others: {"validation": (steps, losses), ...}, drawn as points on top, so that equal curves are both seen.
    """
    series = {"training": (steps, losses), **(others or {})}
    for name, (x, y) in series.items():
        if np.ndim(x) != 1 or np.shape(x) != np.shape(y) or len(x) == 0:
            raise ValueError(f"{name}: steps {np.shape(x)} and losses {np.shape(y)} must be two lists of one length")
        if not np.isfinite(y).all():
            raise ValueError(f"{name}: loss {np.asarray(y)[~np.isfinite(y)][0]} cannot be drawn: did the run diverge?")
    figure = Figure(figsize=(8, 3.6))
    axes = figure.add_subplot()
    last = max(x[-1] for x, _ in series.values())
    ends = []
    for i, (name, (x, y)) in enumerate(series.items()):
        color = RANK_COLORS[i]
        if i == 0:
            axes.plot(x, y, color=color, lw=1.6)
        else:
            axes.plot(x, y, color=color, lw=0, marker="o", ms=5.5, mfc=PAPER, mew=1.8, clip_on=False, zorder=3)
        ends.append((float(y[-1]), f"{name} {y[-1]:.2f}", color))
    axes.axhline(entropy, color=FAINT, ls=(0, (5, 3)), lw=1.4)
    ends.append((entropy, f"unigram entropy {entropy:.2f}", FAINT))
    lowest = min(min(y) for _, y in series.values())
    highest = max(max(y) for _, y in series.values())
    low, high = min(lowest, entropy), max(highest, entropy)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.set_xlim(min(x[0] for x, _ in series.values()), last)
    for y, (_, text, color) in zip(spread([e[0] for e in ends], 0.085 * (high - low)), ends, strict=True):
        axes.annotate(text, (1.015, y), xycoords=("axes fraction", "data"), color=color, va="center", weight="bold")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per character)")
    axes.grid(axis="y", color=OP_COLOR["idle"], lw=0.7)
    axes.set_axisbelow(True)
    final = float(series[list(series)[-1]][1][-1])
    under = "below" if final < entropy else "still above"
    return finish(
        figure,
        title or f"The loss ends {abs(entropy - final):.2f} nats {under} the entropy of single characters",
        "Below the dashed line the model must be using context: it knows more than how frequent each character is.",
        "Line chart of loss against step. "
        + "; ".join(
            f"{n} falls from {y[0]:.2f} at step {x[0]} to {y[-1]:.2f} at step {x[-1]}" for n, (x, y) in series.items()
        )
        + f". A dashed line marks the unigram entropy, {entropy:.2f} nats per character.",
    )


def spread(places, gap):
    """Move label places apart to at least `gap`, keeping their order and their mean."""
    order = np.argsort(places, kind="stable")
    out = np.array(places, dtype=float)[order]
    for _ in range(100):
        for i in range(len(out) - 1):
            short = gap - (out[i + 1] - out[i])
            if short > 1e-12:
                out[i], out[i + 1] = out[i] - short / 2, out[i + 1] + short / 2
    back = np.empty_like(out)
    back[order] = out
    return back


# --- traffic ---------------------------------------------------------------------------------------------------------


@styled
def traffic_matrix(matrix, unit="bytes", title=None):
    """Who sent how much to whom. matrix: (N, N), [src, dst], as from `Ledger.matrix(unit)`; unit: what it counts."""
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"a traffic matrix is N x N, [src, dst]; got shape {matrix.shape}")
    if (matrix < 0).any():
        raise ValueError(f"rank {np.argwhere(matrix < 0)[0][0]} cannot have sent {matrix.min()} {unit}")
    N = len(matrix)
    factor, scaled_unit = scale(matrix.sum(1).max(), unit)
    numbers = N <= 16
    figure = Figure(figsize=(min(8, 3.2 + 0.95 * N), 4) if numbers else (6, 4))
    axes = figure.add_subplot()
    shade = LinearSegmentedColormap.from_list("traffic", ["#e3edf4", "#7db4d8", "#0a659e"])
    size = 11 - 0.35 * N
    for src, dst in np.ndindex(N, N):
        value = matrix[src, dst]
        color, edge = (shade(value / matrix.max()), PAPER) if value else (PAPER, "#e9e7e1")
        axes.add_patch(Rectangle((dst - 0.5, src - 0.5), 1, 1, fc=color, ec=edge, lw=1.5 if numbers else 0.3))
        if numbers and (value or src != dst):
            ink = on_color(color) if value else "#b9b7b0"
            axes.text(dst, src, short(value / factor), ha="center", va="center_baseline", color=ink, size=size)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    if numbers:  # one more column and row: what each rank sent and received in all
        for r in range(N):
            for place, total in (((N, r), matrix[r].sum()), ((r, N), matrix[:, r].sum())):
                axes.text(*place, short(total / factor), ha="center", va="center_baseline", size=size)
        axes.set_xticks(range(N + 1), [*(f"to {r}" for r in range(N)), "sent"])
        axes.set_yticks(range(N + 1), [*(f"rank {r}" for r in range(N)), "received"])
        for label in (axes.get_xticklabels()[-1], axes.get_yticklabels()[-1]):
            label.set_color(FAINT)
    else:
        axes.set_xticks(range(0, N, math.ceil(N / 16)))
        axes.set_yticks(range(0, N, math.ceil(N / 16)))
        axes.xaxis.set_label_position("top")
        axes.set(xlabel="to rank", ylabel="from rank")
    axes.set(xlim=(-0.5, N - 0.5 + numbers), ylim=(N - 0.5 + numbers, -0.5))
    claim = traffic_claim(matrix, unit)
    pairs = [f"{s} to {d} {matrix[s, d]:,}" for s, d in np.argwhere(matrix)[:32]]
    return finish(
        figure,
        title or claim,
        f"In {scaled_unit}: the row's rank sends to the column's. All together {short(matrix.sum() / factor)}.",
        f"Matrix of the {unit} that each of {N} ranks sent to each other. {claim}. Rank to rank: {', '.join(pairs)}.",
    )


def traffic_claim(matrix, unit):
    """The pattern of a traffic matrix, in words."""
    N, sends = len(matrix), matrix.sum(1)
    factor, scaled_unit = scale(sends.max(), unit)
    amount = f"{short(sends.max() / factor)} {scaled_unit}"
    off = ~np.eye(N, dtype=bool)
    if not matrix.any():
        return "Nothing was sent"
    if N > 2 and all(matrix[r].sum() == matrix[r, (r + 1) % N] > 0 for r in range(N)):
        each = f"{amount} each" if len(set(sends)) == 1 else f"at most {amount}"
        return f"A ring: every rank sends only to the next one, {each}"
    if (matrix[off] == matrix[off][0]).all() and not matrix[~off].any():
        return f"Every rank sends every other the same: {amount} each in all"
    for hub in range(N):
        if N > 2 and matrix.sum() == matrix[hub].sum() + matrix[:, hub].sum():
            return f"A star: every message starts or ends at rank {hub}"
    if len(set(sends)) == 1:
        return f"Every rank sends the same amount, {amount}"
    return f"Rank {sends.argmax()} sends most: {amount}, {sends.max() / sends.sum():.0%} of all"


def scale(largest, unit):
    """A factor and a name that bring `largest` below 1,000: 4,200,000 bytes -> (1e6, "MB")."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 10 * factor or (largest >= factor and factor > 1e3):
            return factor, f"{prefix}B" if unit == "bytes" else f"{prefix} {unit}".replace("k ", "thousand ")
    return 1.0, unit


def short(value):
    """Three digits, no trailing zeros: 12.345 -> "12.3", 1500.0 -> "1,500"."""
    if value == round(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# --- time ------------------------------------------------------------------------------------------------------------


@styled
def timeline(entries, title=None):
    """What each rank's communication did and when: one lane per rank, a bar per entry from posted to done, in ms.

    entries: objects with the fields of `ledger.Entry`: rank, op, peer, tag, posted, wait_from, wait_to, done (s).
    Hatched: the rank stood still in wait(). Arrows join a send to its recv while there are at most 24 messages.
    A bar that reaches the right edge with no end had not finished when the book was read.
    """
    entries = sorted((e for e in entries if e.op != "mark"), key=lambda e: (e.rank, e.posted))
    if not entries:
        raise ValueError("no entries to draw: was the ledger on, and did the section send anything?")
    ranks = sorted({e.rank for e in entries})
    zero = min(e.posted for e in entries)
    last = max(t for e in entries for t in (e.posted, e.wait_to, e.done) if t is not None)
    span = 1e3 * (last - zero)  # ms
    last += 0.02 * (last - zero) or 1e-3  # room for what has not finished
    begin = {id(e): 1e3 * (e.posted - zero) for e in entries}
    end = {id(e): 1e3 * (next((t for t in (e.done, e.wait_to) if t is not None), last) - zero) for e in entries}
    width = 1e3 * (last - zero)

    rows, depth = {}, dict.fromkeys(ranks, 1)  # a send and a recv that overlap get a row each inside the lane
    for rank in ranks:
        free = []
        for e in (e for e in entries if e.rank == rank):
            row = next((i for i, until in enumerate(free) if until <= begin[id(e)]), len(free))
            free[row : row + 1] = [max(end[id(e)], begin[id(e)])]
            rows[id(e)] = row
        depth[rank] = len(free)

    figure = Figure(figsize=(8, min(4.0, 1.55 + 0.52 * len(ranks))))
    axes = figure.add_subplot()
    lane_height = (figure.get_figheight() - 1.45) / len(ranks)  # inches, near enough
    middle = {}
    for lane, rank in enumerate(ranks):
        axes.add_patch(Rectangle((0, lane - 0.4), width, 0.8, fc="#f1efe9", ec="none"))
        for e in (e for e in entries if e.rank == rank):
            tall = 0.76 / depth[rank]
            y, x0, x1 = lane - 0.38 + tall * rows[id(e)], begin[id(e)], end[id(e)]
            middle[id(e)] = y + tall / 2
            color = OP_COLOR.get(e.op, OP_COLOR["collective"])
            axes.add_patch(Rectangle((x0, y + 0.01), x1 - x0, tall - 0.02, fc=color, ec=color, lw=0.6, zorder=2))
            if e.wait_from is not None:
                w0 = 1e3 * (e.wait_from - zero)
                w1 = x1 if e.wait_to is None else min(x1, 1e3 * (e.wait_to - zero))
                if w1 > w0:
                    hatched = {"fc": PAPER, "ec": color, "hatch": "/////", "lw": 0.6, "zorder": 3}
                    axes.add_patch(Rectangle((w0, y + 0.01), w1 - w0, tall - 0.02, **hatched))
            name = {"send": f"to {e.peer}", "recv": f"from {e.peer}"}.get(e.op, e.op)
            fits = (x1 - x0) / width * 6.8 > 0.085 * len(name) + 0.05 and tall * lane_height > 0.17  # inches
            if fits:
                box = {"boxstyle": "round,pad=0.12", "fc": PAPER, "ec": "none"} if e.wait_from is not None else None
                ink = INK if box else on_color(color)
                axes.text(
                    (x0 + x1) / 2, y + tall / 2, name, ha="center", va="center", size=9, color=ink, bbox=box, zorder=5
                )
    pairs = matched(entries)
    arrows = pairs if len(pairs) <= 24 else []
    for send, recv in arrows:
        ends = (begin[id(send)], middle[id(send)]), (end[id(recv)], middle[id(recv)])
        style = {"arrowstyle": "-|>", "mutation_scale": 9, "color": INK, "lw": 0.9, "alpha": 0.75, "zorder": 4}
        axes.add_patch(FancyArrowPatch(*ends, shrinkA=0, shrinkB=0, **style))
    axes.set(xlim=(0, width), ylim=(len(ranks) - 0.5, -0.5))
    axes.set_yticks(range(len(ranks)), [f"rank {r}" for r in ranks])
    for label, rank in zip(axes.get_yticklabels(), ranks, strict=True):
        label.set(color=rank_color(rank), weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("time (ms)")
    kinds = list(dict.fromkeys(e.op if e.op in OP_COLOR else "collective" for e in entries))
    handles = [Rectangle((0, 0), 1, 1, fc=OP_COLOR[kind], label=kind) for kind in kinds]
    if any(e.wait_from is not None for e in entries):
        handles.append(Rectangle((0, 0), 1, 1, fc=PAPER, ec=FAINT, hatch="/////", label="the rank waits"))
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=8, frameon=False, borderpad=0, handlelength=1.2
    )
    waits = {r: sum(1e3 * (e.wait_to - e.wait_from) for e in entries if e.rank == r and e.wait_to) for r in ranks}
    most = max(ranks, key=lambda r: waits[r])
    stuck = sorted({e.rank for e in entries if e.done is None and e.wait_to is None})
    claim = (
        f"Rank{'s' * (len(stuck) > 1)} {', '.join(map(str, stuck))} never finished waiting"
        if stuck
        else f"Rank {most} waits longest: {waits[most]:.3g} of {span:.3g} ms"
    )
    return finish(
        figure,
        title or claim,
        "A bar is one op, from when the rank posted it to when it was done." + (" Arrows: messages." if arrows else ""),
        f"Timeline of {len(entries)} ops on ranks {', '.join(map(str, ranks))} over {span:.3g} ms. {claim}. Waiting: "
        + ", ".join(f"rank {r} {waits[r]:.3g} ms" for r in ranks)
        + ".",
    )


def matched(entries):
    """[(send, recv), ...]: the k-th send from src to dst with a tag meets the k-th recv of dst from src with it."""
    recvs = {}
    for e in entries:
        if e.op == "recv":
            recvs.setdefault((e.peer, e.rank, e.tag), []).append(e)
    sends = [e for e in entries if e.op == "send" and recvs.get((e.rank, e.peer, e.tag))]
    return [(e, queue.pop(0)) for e in sends if (queue := recvs[e.rank, e.peer, e.tag])]


# --- ranks on a circle -----------------------------------------------------------------------------------------------


def draw_ranks(axes, N, radius, filled, size):
    """N numbered disks on an ellipse, rank 0 on top, then clockwise. Those not in `filled` are drawn hollow."""
    disks = []
    for r in range(N):
        x, y = 1.35 * math.sin(2 * math.pi * r / N), math.cos(2 * math.pi * r / N)
        color = rank_color(r)
        disks.append(Circle((x, y), radius, fc=color if r in filled else PAPER, ec=color, lw=2, zorder=5))
        axes.add_patch(disks[-1])
        ink = on_color(color) if r in filled else INK
        axes.text(x, y, str(r), ha="center", va="center_baseline", size=size, weight="bold", color=ink, zorder=6)
    axes.set_aspect("equal")
    axes.axis("off")
    return disks


def draw_arrow(axes, start, end, color, width, bend=0.0):
    """An arrow from the edge of one disk to the edge of another."""
    axes.add_patch(
        FancyArrowPatch(
            *(start.center, end.center), patchA=start, patchB=end, shrinkA=2, shrinkB=2, zorder=3, color=color,
            lw=width, arrowstyle="-|>", mutation_scale=6 + 5 * width, connectionstyle=f"arc3,rad={bend}",
        )
    )  # fmt: skip


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


@styled
def waits_for(waits, labels=None, title=None):
    """Ranks on a circle and an arrow from each rank to the one it waits for; a cycle, in which nobody can move, in red.

    waits: {rank: [the ranks it waits for]}, as in `launch.RankError.waits`.
    labels: {rank: "recv, line 4"}, written beside the rank.
    """
    edges, labels = [(a, b) for a in sorted(waits) for b in waits[a]], labels or {}
    if not edges:
        raise ValueError(f"waits {waits}: nobody waits for anybody, so there is nothing to draw")
    if any(a == b for a, b in edges):
        raise ValueError(f"rank {next(a for a, b in edges if a == b)} cannot wait for itself")
    N = max(max(edge) for edge in edges + [(r, r) for r in labels]) + 1
    cycle = find_cycle(edges)
    in_cycle = set(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    waiting = {a for a, _ in edges}
    disks = draw_ranks(axes, N, radius=min(0.24, 1.6 / N), filled=waiting, size=13)
    for a, b in edges:
        both = (b, a) in edges  # two that wait for each other: two arrows, bent apart
        draw_arrow(axes, disks[a], disks[b], *((ALARM, 3.2) if (a, b) in in_cycle else (FAINT, 1.4)), bend=0.16 * both)
    for r, disk in enumerate(disks):
        (x, y), away = disk.center, disk.radius + 0.12
        text = labels.get(r, "" if r in waiting else "waits for nobody")
        if abs(x) < 0.05:
            axes.text(x, y + math.copysign(away + 0.06, y), text, ha="center", va="center")
        else:
            axes.text(x + math.copysign(away, x), y, text, ha="left" if x > 0 else "right", va="center")
    axes.set(xlim=(-3.1, 3.1), ylim=(-1.5, 1.5))
    free = sorted({b for _, b in edges} - waiting)
    if cycle:
        first, *rest = zip(cycle, cycle[1:] + cycle[:1], strict=True)
        claim = f"Deadlock: rank {first[0]} waits for {first[1]}" + "".join(f", {a} for {b}" for a, b in rest)
    else:
        claim = f"No cycle: all wait, in the end, for rank{'s' * (len(free) > 1)} {', '.join(map(str, free))}"
    return finish(
        figure,
        title or claim,
        "An arrow points to the rank that is waited for."
        + (" Red: each waits for the next, so nobody moves." * bool(cycle)),
        f"{N} ranks on a circle, an arrow from each waiting rank to the one it waits for. {claim}. All arrows: "
        + ", ".join(f"{a} to {b}" for a, b in edges)
        + ".",
    )


def find_cycle(edges):
    """The ranks of one cycle in the directed edges, smallest first, or [] if there is none."""
    after = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)

    def walk(path):
        for b in after.get(path[-1], []):
            if b == path[0]:
                return path
            if b not in path and b > path[0] and (found := walk([*path, b])):  # every cycle has a smallest rank
                return found
        return []

    return next((found for start in sorted(after) if (found := walk([start]))), [])
