"""Words in a figure's place, where there is nothing to draw."""

import textwrap

from matplotlib.figure import Figure

from lib.plots.style import finish, styled


@styled
def told(title, words):
    """A figure of words alone: `title` in bold, below it `words`. For sliders that ask for what cannot be."""
    lines = len(textwrap.wrap(words, 108))  # as `finish` wraps a caption 8 inches wide
    figure = Figure(figsize=(8, 0.67 + 0.18 * lines))
    figure.add_subplot().set_axis_off()
    return finish(figure, title, words, f"{title}. {words}")
