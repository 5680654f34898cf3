"""The explorers of Lab 4: what a rank stores and sends at each stage of ZeRO.

Each element of the weights and gradients is communicated in 2 bytes.
"""

from lib import plots
from lib.cost.state import RECIPES
from lib.cost.zero import SHARDED, sent_elements
from lib.explore.lab0 import BANDWIDTHS
from lib.explore.show import explore
from lib.plots.labels import size_in_words

SENT_BYTES = 2  # per element on the wire
BILLIONS = (0.125, 0.35, 1.3, 2.7, 7.5, 13, 34, 70, 175, 405, 1000)
PARAMETERS = {f"{b:g} billion": int(b * 1e9) for b in BILLIONS}
RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def zero_memory():
    """Bytes of model state (weights, gradients, optimizer state) on each rank at stages 0 to 3, for
    a model, a number of ranks and a precision of your choice."""
    explore(draw_zero_memory, parameters=PARAMETERS, ranks=RANKS, precision=list(RECIPES))


def draw_zero_memory(parameters=7_500_000_000, ranks=64, precision="mixed"):
    """The figure of `zero_memory`. Its defaults are the example of Rajbhandari et al. 2020,
    figure 1."""
    return plots.state_by_stage(parameters, ranks, precision)


def zero_volume():
    """How much a rank sends in a step at each stage, and how long that takes on a link of your
    choice."""
    explore(
        draw_zero_volume,
        parameters=PARAMETERS,
        ranks=RANKS[1:],
        microbatches=[1, 2, 4, 8, 16],
        bandwidth=BANDWIDTHS,
    )


def draw_zero_volume(parameters=7_500_000_000, ranks=64, microbatches=4, bandwidth=2.5e10):
    """The figure of `zero_volume`: a step of one micro-batch next to one of `microbatches`.

    bandwidth: of a rank's link, in bytes per second. We leave out latency, and a root unit, whose
    weights would stay gathered from forward to backward.
    """
    unit = (ranks - 1) / ranks * parameters  # elements
    ks = sorted({1, microbatches})
    volume = {
        f"stage {s}": {k: sent_elements(parameters, s, ranks, k) / unit for k in ks}
        for s in SHARDED
    }
    note = (
        f"{parameters / 1e9:g} billion parameters, {ranks:,} ranks, {size_in_words(bandwidth)}/s."
    )
    return plots.volume_by_stage({}, volume, unit_seconds=SENT_BYTES * unit / bandwidth, note=note)
