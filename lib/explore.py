"""A figure with sliders: the static figure first, and sliders below it where a live kernel can serve them.

    explore(draw, ranks=[2, 4, 8], size=[1e3, 1e6, 1e9])     draw(ranks=2..., size=...) -> a Drawing of lib.plots

The figure is an ordinary output of the cell: it is stored in the notebook, and is all that a reader on a web page sees.
A slider redraws that same output in place. With LAB_STATIC=1 in the environment, as when notebooks are executed to be
stored, there are no sliders, and the same code gives the same bytes.

The explorers of Lab 0 are below: `all_reduce_cost`, `model_memory`, `ring_against_hierarchical`.
"""

import inspect
import os

import numpy as np
from IPython import get_ipython
from IPython.display import display

from lib import plots
from lib.collectives.cost import COST, hierarchical_time
from lib.cost.published import table
from lib.cost.state import RECIPES
from lib.plots.curves import size_in_words, time_in_words


def explore(draw, **choices):
    """Show draw() with its own defaults, then a slider for each of `choices`, which redraws it.

    draw: returns a Drawing; each of its parameters that has a slider has a default.
    choices: name -> the values its slider steps through, or {"how it reads": value, ...}; the default is one of them.
    Raises ValueError for a name that `draw` does not have, or choices without its default.
    """
    defaults = {name: p.default for name, p in inspect.signature(draw).parameters.items()}
    for name, values in choices.items():
        if name not in defaults or defaults[name] not in _values(values):
            known = ", ".join(f"{n}={d!r}" for n, d in defaults.items())
            raise ValueError(
                f"{name}: {list(_values(values))} must hold the default of that parameter of draw({known})"
            )
    shown = display(draw(), display_id=True)
    if os.environ.get("LAB_STATIC") == "1" or getattr(get_ipython(), "kernel", None) is None:
        return
    display(sliders(draw, shown.update, **choices))


def sliders(draw, update, **choices):
    """A box of ipywidgets sliders: when one moves, `update` gets draw's new Drawing."""
    import ipywidgets  # here, because without a kernel to serve them nobody needs widgets

    start = inspect.signature(draw).parameters
    controls = {
        name: ipywidgets.SelectionSlider(
            options=list(values.items()) if isinstance(values, dict) else values, value=start[name].default,
            description=name.replace("_", " "), continuous_update=False,  # a drawing per stop, not per pixel
            style={"description_width": "10em"}, layout={"width": "34em"},
        )
        for name, values in choices.items()
    }  # fmt: skip

    def redraw(_):
        update(draw(**{name: control.value for name, control in controls.items()}))

    for control in controls.values():
        control.observe(redraw, names="value")
    return ipywidgets.VBox(list(controls.values()))


def _values(choices):
    return choices.values() if isinstance(choices, dict) else choices


# --- the explorers of Lab 0 ------------------------------------------------------------------------------------------

SIZES = {size_in_words(10.0**e): 10.0**e for e in range(3, 11)}  # of a tensor, bytes
LATENCIES = {time_in_words(s): s for s in (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2)}  # seconds per message
BANDWIDTHS = {f"{size_in_words(b)}/s": b for b in (1e8, 3e8, 1e9, 3e9, 1e10, 2.5e10, 5e10, 1e11, 3e11)}
CURVE = np.geomspace(1e3, 1e10, 57)  # the sizes that curves are drawn through, bytes


def all_reduce_cost():
    """Time of each all-reduce against size, on N ranks and a link of your choice, and who wins at one size."""
    explore(
        draw_all_reduce_cost,
        ranks=[2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024],
        size=SIZES,
        latency=LATENCIES,
        bandwidth=BANDWIDTHS,
    )


def draw_all_reduce_cost(ranks=8, size=1e6, latency=1e-5, bandwidth=1e10):
    """The figure of `all_reduce_cost`. size: bytes; latency: seconds per message; bandwidth: bytes per second."""
    names = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
    curves = {name: (CURVE, [COST[name].time(n, ranks, latency, 1 / bandwidth) for n in CURVE]) for name in names}
    note = f"{ranks} ranks, {time_in_words(latency)} per message, {size_in_words(bandwidth)}/s."
    return plots.cost_curves({}, curves, at=size, note=note)


def model_memory():
    """What a model of your size takes to train with Adam, in each precision, against the memory of GPUs."""
    millions = (125, 350, 760, 1300, 2700, 7000, 13_000, 34_000, 70_000, 175_000)
    explore(
        draw_model_memory,
        parameters={f"{m / 1000:g} billion": m * 10**6 for m in millions},
        ranks_that_share_the_state=[1, 2, 4, 8, 16, 32, 64],
    )


def draw_model_memory(parameters=7_000_000_000, ranks_that_share_the_state=1):
    """The figure of `model_memory`. Activations are left out: they depend on the batch."""
    share = parameters / ranks_that_share_the_state
    bars = {precision: plots.memory_parts(share, precision) for precision in RECIPES}
    gpus = {row["gpu"]: row["memory_GB"] * 1e9 for row in table("gpus") if row["gpu"] != "A100"}  # H100 has as much
    shared = f", shared by {ranks_that_share_the_state} ranks" if ranks_that_share_the_state > 1 else ""
    note = f"{parameters / 1e9:g} billion parameters trained with Adam{shared}; activations come on top."
    return plots.walls(bars, gpus, note=note)


def ring_against_hierarchical():
    """Flat ring against hierarchical all-reduce, on nodes and links of your choice."""
    explore(
        draw_ring_against_hierarchical,
        nodes=[2, 4, 8, 16, 32, 64, 128],
        ranks_per_node=[1, 2, 4, 8, 16],
        size=SIZES,
        link_inside=BANDWIDTHS,
        link_between=BANDWIDTHS,
    )


def draw_ring_against_hierarchical(nodes=4, ranks_per_node=8, size=1e8, link_inside=3e11, link_between=2.5e10):
    """The figure of `ring_against_hierarchical`. A node's ranks share one link to the others, and a message takes
    3 microseconds inside a node and 10 between nodes, before its first byte. Bandwidths in bytes per second.
    """
    inside, between = (3e-6, 1 / link_inside), (1e-5, 1 / link_between)
    slower = max(inside[1], between[1])  # a flat ring's rounds all take as long as its slowest link
    curves = {
        "flat ring": (CURVE, [COST["ring"].time(n, nodes * ranks_per_node, between[0], slower) for n in CURVE]),
        "hierarchical": (CURVE, [hierarchical_time(n, nodes, ranks_per_node, inside, between) for n in CURVE]),
    }
    note = (
        f"{nodes} nodes of {ranks_per_node} ranks, {size_in_words(link_inside)}/s inside, "
        f"{size_in_words(link_between)}/s between."
    )
    return plots.cost_curves({}, curves, at=size, note=note)
