"""Words in a figure's place, where there is nothing to draw."""

from matplotlib.figure import Figure

from lib.plots.style import finish, styled


@styled
def told(title, words):
    """A figure of words alone: `title` in bold, below it `words`. For sliders that ask for what cannot be."""
    figure = Figure(figsize=(8, 0.85))
    figure.add_subplot().set_axis_off()
    return finish(figure, title, words, f"{title}. {words}")
