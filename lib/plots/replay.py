"""A run replayed: its messages move from rank to rank, round by round.

    results = launch.run(ring_all_reduce, ...)
    plots.replay(results)

In a notebook a slider, the arrow keys and buttons step through the rounds. The notebook also stores
a picture of the first round, which is all that a page without scripts shows.
"""

import json
import math
import uuid
from dataclasses import dataclass
from html import escape

from matplotlib.figure import Figure

from lib import frontend
from lib.plots.messages import draw_arrow, draw_ranks, rounds
from lib.plots.style import FAINT, INK, PAPER, Drawing, drawing, on_color, rank_color

WIDTH, HEIGHT, DISK = 620, 330, 22  # pixels: size of the picture, radius of a rank
MOST = 200  # rounds
GLIDE = 8  # positions of the slider per round


@dataclass(frozen=True, repr=False)
class Replay(Drawing):
    """A Drawing of the first round, with the full run as HTML."""

    html: str = ""

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = super()._repr_mimebundle_(include, exclude)
        if frontend.attended():
            data["text/html"] = self.html
        return data, metadata


def replay(results, title: str = "") -> Replay:
    """Step through the messages of a run, round by round.

    results: what `launch.run` returned, its ledger, or a list of ledger entries, such as those of a
    section. title: a heading above the picture. A message belongs to the round after the highest
    round of the messages that its sender had finished; see `rounds`. Raises ValueError for a run
    without a ledger or without messages, and for more than 200 rounds.
    """
    entries = _entries(results)
    found = rounds(entries)
    if not 1 <= len(found) <= MOST:
        raise ValueError(
            f"{len(found)} rounds of messages: between 1 and {MOST} can be replayed. A collective "
            "of torch is no message; mark a section and replay that"
        )
    first = first_round(entries, **({"title": title} if title else {}))
    return Replay(first.png, first.alt, first.width, first.height, _html(found, title))


@drawing
def first_round(entries):
    """The messages of the first round as arrows between ranks on a circle."""
    found = rounds(entries)
    panel, n = found[0], _ranks(found)
    figure = Figure(figsize=(6.2, 3.6))
    axes = figure.add_subplot()
    disks = draw_ranks(axes, n, min(0.3, 1.4 / n), {e.rank for e in panel}, 11)
    pairs = [(e.rank, e.peer) for e in panel]
    for a, b in dict.fromkeys(pairs):
        bend = 0.22 * ((b, a) in pairs)
        draw_arrow(axes, disks[a], disks[b], rank_color(a), 1.6, bend=bend)
    axes.set(xlim=(-1.9, 1.9), ylim=(-1.45, 1.45))
    return (
        figure,
        _said(found, 0),
        "Run the cell to step through the rounds: an arrow is a message of the first round.",
        f"{n} ranks on a circle, an arrow for each message of the first round.",
        "",
    )


def _entries(results):
    ledger = getattr(results, "ledger", results)
    if ledger is None:
        raise ValueError("this run kept no ledger: run it without ledger=False, and replay that")
    return ledger.entries if hasattr(ledger, "entries") else list(ledger)


def _ranks(found):
    return 1 + max(max(e.rank, e.peer) for panel in found for e in panel)


def _said(found, k):
    """Round k, from 0, in words: "round 1 of 6: 0 to 1, 1 to 2; 8 elements each"."""
    pairs = [f"{e.rank} to {e.peer}" for e in found[k]]
    more = f" and {len(pairs) - 8} more" if len(pairs) > 8 else ""
    sizes = sorted({e.numel for e in found[k]})
    amount = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return (
        f"round {k + 1} of {len(found)}: {', '.join(pairs[:8])}{more}; {amount} "
        f"element{'s' * (sizes[-1] != 1)} each"
    )


def _places(n):
    """(radius of a rank, [(x, y) of each rank]) in pixels: rank 0 on top, the others clockwise."""
    radius = min(DISK, 180 / n)
    across, up = WIDTH / 2 - 2.4 * DISK, HEIGHT / 2 - 1.3 * radius
    angles = [2 * math.pi * r / n for r in range(n)]
    return radius, [
        (WIDTH / 2 + across * math.sin(a), HEIGHT / 2 - up * math.cos(a)) for a in angles
    ]


def _html(found, title):
    n, name = _ranks(found), f"replay-{uuid.uuid4().hex[:12]}"
    radius, places = _places(n)
    shapes = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/><g class=under></g>']
    for r, (x, y) in enumerate(places):
        color = rank_color(r)
        shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{color}" '
            f'stroke="{INK}"/><text x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle" '
            f'font-size="{min(15, radius):.0f}" fill="{on_color(color)}">{r}</text>'
        )
    messages = sum(map(len, found))
    data = {
        "places": [[round(x, 1), round(y, 1)] for x, y in places],
        "colors": [rank_color(r) for r in range(n)],
        "rounds": [[[e.rank, e.peer] for e in panel] for panel in found],
        "said": [_said(found, k) for k in range(len(found))]
        + [f"done: {messages} message{'s' * (messages > 1)} in {len(found)} rounds"],
    }
    # a < in the data could end the script
    script = SCRIPT.replace("@ID", name).replace("@DATA", json.dumps(data).replace("<", "\\u003c"))
    head = f"<p><b>{escape(title)}</b></p>" if title else ""
    return (
        # without data-lm-suppress-shortcuts, JupyterLab uses the arrow keys for the notebook
        f'<div class=replay id="{name}" role=group data-lm-suppress-shortcuts=true '
        f'aria-label="Replay of a run on {n} ranks">'
        f"<style>{STYLE}</style>{head}"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{escape(data["said"][0])}" '
        f'font-family="DejaVu Sans, Verdana, sans-serif">{"".join(shapes)}<g class=over></g></svg>'
        f"<p class=said>{escape(data['said'][0])}</p><p>"
        "<button type=button class=back>Back</button>"
        f'<input type=range min=0 max={len(found)} step={1 / GLIDE:g} value=0 aria-label="Round">'
        "<button type=button class=on>Next</button>"
        f"<button type=button class=play>Play</button></p></div>{script}"
    )


STYLE = f"""
.replay{{max-width:{WIDTH}px}}.replay svg{{display:block;width:100%;height:auto;
border:1px solid {FAINT}}}
.replay p{{display:flex;gap:.6em;align-items:center;margin:.4em 0}}
.replay input{{flex:1;min-width:6em}}.replay button{{font:inherit;padding:.15em .8em}}
"""
SCRIPT = """<script>(() => {
const box = document.getElementById("@ID"), data = @DATA;
if (!box) return;
const find = name => box.querySelector(name), slider = find("input"), last = data.rounds.length;
const SVG = "http://www.w3.org/2000/svg";
const add = (where, kind, look) => {
  const made = document.createElementNS(SVG, kind);
  for (const [key, value] of Object.entries(look)) made.setAttribute(key, value);
  where.append(made);
};
const way = ([from, to]) => {           // a bent line, so that there and back are two
  const [x, y] = data.places[from], [u, v] = data.places[to], bend = 0.14;
  return [[x, y], [(x + u) / 2 + bend * (v - y), (y + v) / 2 - bend * (u - x)], [u, v]];
};
const at = (way, t) => [0, 1].map(i =>
  (1 - t) * (1 - t) * way[0][i] + 2 * t * (1 - t) * way[1][i] + t * t * way[2][i]);
const show = () => {
  const now = +slider.value, k = Math.min(Math.floor(now), last - 1), t = now - k;
  const under = find(".under"), over = find(".over"), said = data.said[now >= last ? last : k];
  under.replaceChildren(); over.replaceChildren();
  for (const pair of data.rounds[k]) {
    const [a, b, c] = way(pair), color = data.colors[pair[0]];
    const [x, y] = at([a, b, c], 0.12 + 0.76 * t);     // from the edge of a rank to that of another
    add(under, "path", {d: `M${a} Q${b} ${c}`, fill: "none", stroke: color, "stroke-width": 2,
                        opacity: 0.45});
    add(over, "circle", {cx: x, cy: y, r: 8, fill: color, stroke: "#22262b",
                         "stroke-width": 2});
  }
  find(".said").textContent = said;
  find("svg").setAttribute("aria-label", said);
  slider.setAttribute("aria-valuetext", said);
};
const go = to => { slider.value = Math.max(0, Math.min(last, to)); show(); };
let timer = 0;
const stop = () => { clearInterval(timer); timer = 0; find(".play").textContent = "Play"; };
slider.oninput = () => { stop(); show(); };
const keys = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 8, PageDown: -8,
              Home: -1e9, End: 1e9};       // in steps; JupyterLab keeps them from the slider
slider.onkeydown = event => {
  if (!(event.key in keys)) return;
  event.preventDefault(); event.stopPropagation();
  stop(); go(+slider.value + keys[event.key] * +slider.step);
};
find(".back").onclick = () => { stop(); go(Math.ceil(+slider.value) - 1); };
find(".on").onclick = () => { stop(); go(Math.floor(+slider.value) + 1); };
find(".play").onclick = () => {
  if (timer) return stop();
  if (+slider.value >= last) go(0);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  find(".play").textContent = "Pause";
  timer = setInterval(() => {
    if (!box.isConnected || +slider.value >= last) return stop();
    go(still ? Math.floor(+slider.value) + 1 : +slider.value + +slider.step);
  }, still ? 1200 : 120);
};
show();
})()</script>"""
