"""The one style of all figures: colours, fonts, and the frame with title, caption and alt text.

+--------------------------------+
| The claim, in bold             |  A drawing function returns the figure, its claim, what to
|                                |  look at, and the rest in words. The decorator @drawing
|   what is drawn                |  makes it a function that returns a Drawing: PNG bytes
|                                |  with alt text. `finish` puts the frame around what is
| What to look at.               |  drawn.
+--------------------------------+
"""

import base64
import functools
import inspect
import io
import re
import textwrap
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from lib.plots.labels import capital

PAPER, INK, FAINT = "#faf9f6", "#22262b", "#6b6f76"
ALARM = "#c2103a"  # what is wrong; also drawn thicker, because not all readers see red

RANK_COLORS = (
    "#0072b2",
    "#e69f00",
    "#7b1e2b",
    "#45c4bb",
    "#6d2fd6",
    "#d03a1a",
    "#93bf6f",
    "#8a4a78",
)
AXIS_COLOR = {  # of the axes of a mesh, in every figure
    "tp": RANK_COLORS[4],
    "pp": RANK_COLORS[6],
    "dp": RANK_COLORS[1],
    "cp": RANK_COLORS[2],
    "ep": "#d86a8a",
}
# of the stages of ZeRO: data parallelism, stages 1 to 3, and stage 3 with prefetching
STAGE_COLORS = (RANK_COLORS[7], RANK_COLORS[0], RANK_COLORS[1], RANK_COLORS[2], RANK_COLORS[3])
OP_COLOR = {
    "F": "#5aa9e6",  # forward
    "B": "#f0a030",  # a full backward, or that of the input
    "W": "#2f7d4f",  # backward of the weights
    "send": "#5b2a86",
    "recv": "#d86a8a",
    "collective": "#3d4a5c",  # every op that is not named here
    "idle": "#dcdad3",
}
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is on every machine
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
_vectors = ContextVar("vectors", default=None)  # a list while `as_svg` draws


def rank_color(rank):
    """The colour of a rank, the same in every figure. Colours repeat after 8 ranks, so label each
    line with its rank as well."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def stage_color(name):
    """The colour of a stage of ZeRO, the same in every figure. name: "data parallel", "stage 2",
    "ZeRO-3", "ZeRO-3, prefetching"; any other name counts as data parallelism."""
    if "prefetch" in name:
        return STAGE_COLORS[4]
    digit = re.search(r"(?:stage |ZeRO-)([0-3])", name)
    return STAGE_COLORS[int(digit[1]) if digit else 0]


def on_color(color):
    """The colour of a text on `color`: INK if `color` is light, PAPER if it is dark."""
    return INK if np.dot([0.299, 0.587, 0.114], to_rgb(color)) > 0.55 else PAPER


@functools.cache
def readable(color):
    """A version of `color` for text on PAPER: the same hue, made dark enough to be read (WCAG 2.2
    AA asks for a contrast of 4.5)."""
    rgb = np.array(to_rgb(color))
    while (_luminance(to_rgb(PAPER)) + 0.05) / (_luminance(rgb) + 0.05) < 4.5:
        rgb *= 0.98
    return to_hex(rgb)


def _luminance(rgb):
    """WCAG's relative luminance of an sRGB colour, 0 to 1."""
    return np.dot(
        [0.2126, 0.7152, 0.0722],
        [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb],
    )


@dataclass(frozen=True, repr=False)
class Drawing:
    """A finished figure: PNG bytes, alt text, and its size in inches. It is shown when it is the
    last value of a notebook cell."""

    png: bytes
    alt: str
    width: float
    height: float

    def __repr__(self):
        return self.alt

    def _repr_mimebundle_(self, include=None, exclude=None):
        """What Jupyter stores: the image, with its alt text and its size on the page (96
        pixels per inch)."""
        size = {"width": round(96 * self.width), "height": round(96 * self.height)}
        data = {"image/png": base64.b64encode(self.png).decode(), "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt, **size}}

    def show(self):
        """Show the figure now, from the middle of a cell. In a terminal this prints the alt
        text."""
        from IPython.display import display

        display(self)

    def save(self, path):
        """Write the PNG to `path`, whose folder must exist. Returns the path."""
        Path(path).write_bytes(self.png)
        return Path(path)


def styled(draw):
    """A decorator that runs a drawing function in the course's style, so that the reader's own
    matplotlib settings do not change the figure."""

    @functools.wraps(draw)
    def in_style(*args, **kwargs):
        with matplotlib.style.context(["default", STYLE]):
            return draw(*args, **kwargs)

    return in_style


def drawing(draw):
    """A decorator that adds the frame: the function draws, and the decorated one returns a Drawing.

    draw(...) must return (figure, claim, what to look at, what the figure is, its numbers in
    words). The claim becomes the title and is capitalized by `capital`. The alt text consists of
    what the figure is, the title, the note, and the numbers.
    The decorated function also takes `title` and `note` (see `_frame`, whose docstring is appended
    to its own). They are passed on to `draw` only if it has parameters of these names.
    """
    own, asked = inspect.signature(draw), list(inspect.signature(_frame).parameters.values())[-2:]
    more = [parameter for parameter in asked if parameter.name not in own.parameters]
    taken = own.replace(parameters=[*own.parameters.values(), *more])

    @functools.wraps(draw)
    @styled
    def drawn(*args, **kwargs):
        given = taken.bind(*args, **kwargs)
        given.apply_defaults()
        frame = {parameter.name: given.arguments[parameter.name] for parameter in asked}
        for parameter in more:
            del given.arguments[parameter.name]
        return _frame(*draw(*given.args, **given.kwargs), **frame)

    drawn.__signature__ = taken
    drawn.__doc__ = f"{draw.__doc__.rstrip()}\n    {_frame.__doc__}\n    "
    return drawn


def _frame(figure, claim, look, what, words, title=None, note=""):
    """title: replaces the claim. note: a sentence that begins the caption."""
    return finish(
        figure,
        title or capital(claim),
        f"{note} {look}",
        f"{what} {title or claim}. {note} {words}",
    )


def finish(figure, title, caption, alt):
    """Put title and caption around what is drawn, render it, and return the Drawing. Call it inside
    a `styled` function.

    title: the claim, one or two lines. caption: what to look at. alt: the figure in words, for
    readers who cannot see it; repeated spaces, such as those that an empty note leaves, are
    removed.
    """
    width, height = figure.get_size_inches()
    # Letters per inch at these sizes, a cautious estimate, because the width of text is known only
    # after drawing.
    title, caption = (
        textwrap.wrap(title, int(9.3 * width)),
        textwrap.wrap(caption.strip(), int(13.5 * width)),
    )
    top, bottom = 0.16 + 0.23 * len(title), 0.12 + 0.18 * len(caption)  # inches
    figure.text(
        0.12 / width, 1 - 0.1 / height, "\n".join(title), va="top", size=12.5, weight="bold"
    )
    figure.text(0.12 / width, 0.09 / height, "\n".join(caption), va="bottom", size=9.5, color=FAINT)
    figure.set_layout_engine(
        "constrained",
        rect=(0.01, bottom / height, 0.98, 1 - (top + bottom) / height),
        w_pad=0.05,
        h_pad=0.05,
    )
    return Drawing(rendered(figure), " ".join(alt.split()), width, height)


def rendered(figure):
    """The PNG of a figure. The same figure gives the same bytes. While `as_svg` draws, the figure
    is stored as SVG instead, and the result is empty."""
    freeze_layout(figure)
    if (vectors := _vectors.get()) is not None:
        vectors.append(_svg(figure))
        return b""
    png = io.BytesIO()
    # Not savefig, because that draws the figure once more beforehand. "Software" would write
    # matplotlib's version into the file, and the bytes would differ between versions.
    FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
    return png.getvalue()


def as_svg(draw, **settings):
    """(SVG, alt text) of the Drawing that draw(**settings) returns. Letters are outlines, so they
    look the same on every machine."""
    vectors = []
    before = _vectors.set(vectors)
    try:
        drawing = draw(**settings)
    finally:
        _vectors.reset(before)
    (svg,) = vectors
    return svg, drawing.alt


def _svg(figure):
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "book"}):
        FigureCanvasSVG(figure).print_svg(text, metadata=nothing)
    return text.getvalue()


@styled
def told(title, words):
    """A figure that consists of words: `title` in bold, and `words` below it. A widget shows it
    when its sliders ask for something impossible."""
    lines = len(textwrap.wrap(words, 108))  # as `finish` wraps a caption 8 inches wide
    figure = Figure(figsize=(8, 0.67 + 0.18 * lines))
    figure.add_subplot().set_axis_off()
    return finish(figure, title, words, f"{title}. {words}")


def freeze_layout(figure):
    """Lay out the axes once, and round their positions. The layout solver's last digits differ from
    call to call, and the bytes of the image must not."""
    figure.set_dpi(DPI)
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position(original=True).bounds, 9))
