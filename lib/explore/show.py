"""Shows a figure and, if there is a kernel, sliders below it that redraw the figure."""

import inspect
import os
from contextvars import ContextVar

from IPython import get_ipython
from IPython.display import display

_asked = ContextVar("asked", default=None)  # a list while `settings` calls an explorer


def explore(draw, **choices):
    """Show draw() with its own defaults, and below it a slider, or a menu for texts, for each of
    `choices`. When one of them changes, the figure is redrawn in place. Without a kernel, and with
    LAB_STATIC=1, only the figure is shown.

    draw: returns a Drawing. Every parameter that gets a slider has a default.
    choices: for each such parameter the values of its slider, or {label: value, ...}. The default
    is one of the values.
    Raises ValueError for a parameter that `draw` does not have, and for values that do not contain
    the default.
    """
    defaults = {name: p.default for name, p in inspect.signature(draw).parameters.items()}
    for name, values in choices.items():
        if name not in defaults or defaults[name] not in _values(values):
            known = ", ".join(f"{n}={d!r}" for n, d in defaults.items())
            raise ValueError(
                f"{name}: {list(_values(values))} must hold the default of that parameter of "
                f"draw({known})"
            )
    if (asked := _asked.get()) is not None:
        asked.append((draw, choices))
        return
    shown = display(draw(), display_id=True)
    if os.environ.get("LAB_STATIC") == "1" or getattr(get_ipython(), "kernel", None) is None:
        return
    display(sliders(draw, shown.update, **choices))


def settings(explorer):
    """(draw, choices) with which `explorer`, such as lib.explore.pipeline, calls `explore`. Nothing
    is shown. Tests use this to compare the sliders with those of the book's web pages."""
    asked = []
    before = _asked.set(asked)
    try:
        explorer()
    finally:
        _asked.reset(before)
    return asked[0]


def sliders(draw, update, **choices):
    """A box with an ipywidgets slider for each choice, or a menu if its values are texts. When one
    of them changes, `update` is called with the new Drawing."""
    import ipywidgets  # here, because widgets are only needed if a kernel serves them

    start = inspect.signature(draw).parameters
    # em: room for the longest name, so that none is truncated
    controls, words = {}, 1 + 0.6 * max(map(len, choices), default=0)
    for name, values in choices.items():
        look = {
            "style": {"description_width": f"{words:.1f}em"},
            "layout": {"width": f"{words + 24:.1f}em"},
        }
        look |= {"description": name.replace("_", " "), "value": start[name].default}
        if isinstance(start[name].default, str):
            controls[name] = ipywidgets.Dropdown(options=values, **look)
        else:
            options = list(values.items()) if isinstance(values, dict) else values
            # without continuous_update, the figure is redrawn only when the slider is released
            controls[name] = ipywidgets.SelectionSlider(
                options=options, continuous_update=False, **look
            )

    def redraw(_):
        update(draw(**{name: control.value for name, control in controls.items()}))

    for control in controls.values():
        control.observe(redraw, names="value")
    return ipywidgets.VBox(list(controls.values()))


def _values(choices):
    return choices.values() if isinstance(choices, dict) else choices
