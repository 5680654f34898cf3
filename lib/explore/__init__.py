"""Figures with sliders, with which you explore a formula. Without a kernel, as in a stored
notebook, only the figure is shown.

    explore(draw, ranks=[2, 4, 8], size=[1e3, 1e6, 1e9])      # a slider for each name

    draw(ranks=2, size=1e6) -> a Drawing of lib.plots         # first shown with its defaults

The figure is an ordinary output of the cell, so it is stored in the notebook, and a slider redraws
it in place. With LAB_STATIC=1 in the environment, as when notebooks are executed to be stored,
there are no sliders, so that the same code always gives the same bytes.

    show.py    explore, settings, sliders
    lab0.py    all_reduce_cost, model_memory, ring_against_hierarchical
    lab1.py    data_parallel_step, scaling_explorer
    lab2.py    pipeline
    lab4.py    zero_memory, zero_volume
    lab5.py    capacity
    lab6.py    plans

Each explorer has a function that draws its figure: `model_memory()` shows what
`draw_model_memory(parameters=...)` returns.
"""

from lib.explore.lab0 import (
    all_reduce_cost,
    draw_all_reduce_cost,
    draw_model_memory,
    draw_ring_against_hierarchical,
    model_memory,
    ring_against_hierarchical,
)
from lib.explore.lab1 import (
    data_parallel_step,
    draw_data_parallel_step,
    draw_scaling,
    scaling_explorer,
)
from lib.explore.lab2 import draw_pipeline, pipeline
from lib.explore.lab4 import draw_zero_memory, draw_zero_volume, zero_memory, zero_volume
from lib.explore.lab5 import capacity, draw_capacity
from lib.explore.lab6 import draw_plans, plans
from lib.explore.show import explore, settings, sliders

__all__ = [
    "all_reduce_cost", "capacity", "data_parallel_step", "draw_all_reduce_cost", "draw_capacity",
    "draw_data_parallel_step", "draw_model_memory", "draw_pipeline", "draw_plans",
    "draw_ring_against_hierarchical", "draw_scaling", "draw_zero_memory", "draw_zero_volume",
    "explore", "model_memory", "pipeline", "plans", "ring_against_hierarchical", "scaling_explorer",
    "settings", "sliders", "zero_memory", "zero_volume",
]  # fmt: skip
