"""The explorers of Lab 0: how long an all-reduce takes, what fills the memory of a GPU, and when a
hierarchical all-reduce pays off."""

import numpy as np

from lib import plots
from lib.collectives.cost import COST, hierarchical_time
from lib.cost.published import table
from lib.cost.state import RECIPES
from lib.explore.show import explore
from lib.plots.labels import size_in_words, time_in_words

# {what a slider shows: the value that it stands for}
SIZES = {size_in_words(10.0**e): 10.0**e for e in range(3, 11)}  # bytes of a tensor
# seconds per message
LATENCIES = {time_in_words(s): s for s in (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2)}
BANDWIDTHS = {
    f"{size_in_words(b)}/s": b for b in (1e8, 3e8, 1e9, 3e9, 1e10, 2.5e10, 5e10, 1e11, 3e11)
}
CURVE = np.geomspace(1e3, 1e10, 57)  # bytes: the sizes at which curves are computed


def all_reduce_cost():
    """How long each all-reduce takes, against the size of the tensor, and which one is the fastest
    at one size, for a number of ranks and a link of your choice."""
    explore(
        draw_all_reduce_cost,
        ranks=[2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024],
        size=SIZES,
        latency=LATENCIES,
        bandwidth=BANDWIDTHS,
    )


def draw_all_reduce_cost(ranks=8, size=1e6, latency=1e-5, bandwidth=1e10):
    """The figure of `all_reduce_cost`. size: bytes of the tensor for which the all-reduces are
    compared. latency: seconds per message. bandwidth: of each rank's link, in bytes per second."""
    names = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
    curves = {
        name: (CURVE, [COST[name].time(n, ranks, latency, 1 / bandwidth) for n in CURVE])
        for name in names
    }
    note = f"{ranks} ranks, {time_in_words(latency)} per message, {size_in_words(bandwidth)}/s."
    return plots.cost_curves({}, curves, at=size, note=note)


def model_memory():
    """The memory for the model state of a model of your choice with Adam, in each precision, next
    to the memory of GPUs."""
    millions = (125, 350, 760, 1300, 2700, 7000, 13_000, 34_000, 70_000, 175_000)
    explore(
        draw_model_memory,
        parameters={f"{m / 1000:g} billion": m * 10**6 for m in millions},
        ranks_that_share_the_state=[1, 2, 4, 8, 16, 32, 64],
    )


def draw_model_memory(parameters=7_000_000_000, ranks_that_share_the_state=1):
    """The figure of `model_memory`, without activations, because they depend on the batch."""
    share = parameters / ranks_that_share_the_state
    bars = {precision: plots.memory_parts(share, precision) for precision in RECIPES}
    # The A100 is left out, because it has as much memory as the H100.
    gpus = {row["gpu"]: row["memory_GB"] * 1e9 for row in table("gpus") if row["gpu"] != "A100"}
    shared = (
        f", shared by {ranks_that_share_the_state} ranks" if ranks_that_share_the_state > 1 else ""
    )
    note = (
        f"{parameters / 1e9:g} billion parameters trained with Adam{shared}; activations come on "
        f"top."
    )
    return plots.walls(bars, gpus, note=note)


def ring_against_hierarchical():
    """How long a flat ring and a hierarchical all-reduce take on nodes and links of your choice."""
    explore(
        draw_ring_against_hierarchical,
        nodes=[2, 4, 8, 16, 32, 64, 128],
        ranks_per_node=[1, 2, 4, 8, 16],
        size=SIZES,
        link_inside=BANDWIDTHS,
        link_between=BANDWIDTHS,
    )


def draw_ring_against_hierarchical(
    nodes=4, ranks_per_node=8, size=1e8, link_inside=3e11, link_between=2.5e10
):
    """The figure of `ring_against_hierarchical`. The ranks of a node share one link to the other
    nodes. A message has a latency of 3 microseconds inside a node, and of 10 between nodes.

    size: of the tensor, in bytes. link_inside, link_between: bandwidths in bytes per second.
    """
    inside, between = (3e-6, 1 / link_inside), (1e-5, 1 / link_between)
    slower = max(inside[1], between[1])  # each round of a flat ring waits for its slowest link
    curves = {
        "flat ring": (
            CURVE,
            [COST["ring"].time(n, nodes * ranks_per_node, between[0], slower) for n in CURVE],
        ),
        "hierarchical": (
            CURVE,
            [hierarchical_time(n, nodes, ranks_per_node, inside, between) for n in CURVE],
        ),
    }
    note = (
        f"{nodes} nodes of {ranks_per_node} ranks, {size_in_words(link_inside)}/s inside, "
        f"{size_in_words(link_between)}/s between."
    )
    return plots.cost_curves({}, curves, at=size, note=note)
