"""The explorers of Lab 1: one step of data parallelism, and how it scales to more ranks.

A device here achieves 400 TFLOP/s, as an H100 did while Llama 3 was trained (Grattafiori et al.
2024, table 4: 380 to 430). Gradients are communicated in 2 bytes each, and a message has a latency
of 10 microseconds.
"""

from lib import plots
from lib.cost.data_parallel import (
    break_even_rows,
    bucket_times,
    bucketed_step,
    overlapped_step,
    ring_time,
    seconds_per_token,
    strong_scaling,
    weak_scaling,
)
from lib.explore.lab0 import BANDWIDTHS
from lib.explore.show import explore
from lib.plots.labels import size_in_words

FLOPS, GRADIENT_BYTES, ALPHA = 400e12, 2, 1e-5
# numbers of parameters
MODELS = {f"{m / 1000:g} billion": m * 10**6 for m in (125, 350, 760, 1300, 2700, 7000, 13_000)}
TOKENS = {f"{2**k // 1024:,} thousand": 2**k for k in range(10, 18)}  # a thousand is 1,024 here
# tokens; a million is 1,024 x 1,024 here
BATCHES = {f"{2**k // 2**20} million": 2**k for k in range(20, 25)}
RANKS = [2**k for k in range(11)]


def data_parallel_step():
    """One step on a rank, with buckets that are sent after the backward pass, and with buckets that
    are sent during it: how much of the communication is hidden?"""
    explore(
        draw_data_parallel_step,
        ranks=[2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
        parameters=MODELS,
        tokens_per_rank=TOKENS,
        bandwidth=BANDWIDTHS,
        buckets=[1, 2, 4, 8, 16, 32, 64],
    )


def draw_data_parallel_step(
    ranks=8, parameters=1_300_000_000, tokens_per_rank=8192, bandwidth=2.5e10, buckets=4
):
    """The figure of `data_parallel_step`. bandwidth: of each rank's link, in bytes per second."""
    n_bytes, link, compute = (
        GRADIENT_BYTES * parameters,
        (ALPHA, 1 / bandwidth),
        seconds_per_token(parameters, FLOPS),
    )
    costs = (tokens_per_rank, ranks, n_bytes, compute, link, buckets)
    each = ring_time(n_bytes / buckets, ranks, link)
    steps = {}
    for name, step in (
        ("after backward", bucketed_step(*costs)),
        ("overlapped", overlapped_step(*costs)),
    ):
        done = step.forward + step.backward  # when the rank has computed everything
        overlaps = name == "overlapped"
        ready = [
            step.forward + step.backward * (k + 1) / buckets if overlaps else done
            for k in range(buckets)
        ]
        steps[name] = [
            (0, "compute", "forward", 0.0, step.forward),
            (0, "compute", "backward", step.forward, done),
            (0, "compute", "wait", done, step.seconds),
            *(
                (0, "network", str(k), *times)
                for k, times in enumerate(bucket_times(ready, [each] * buckets))
            ),
        ]
    enough = break_even_rows(ranks, n_bytes, compute, link, buckets)
    note = (
        f"{parameters / 1e9:g} billion parameters, {tokens_per_rank:,} tokens on each of {ranks} "
        f"ranks, {size_in_words(bandwidth)}/s. Communication is as long as backward at "
        f"{enough:,.0f} tokens."
    )
    return plots.step_timeline(steps, note=note)


def scaling_explorer():
    """Strong and weak scaling up to 1,024 ranks, for a model, batches and a link of your choice."""
    explore(
        draw_scaling,
        parameters=MODELS,
        batch_if_divided=BATCHES,
        tokens_per_rank=TOKENS,
        bandwidth=BANDWIDTHS,
        buckets=[1, 2, 4, 8, 16, 32, 64],
    )


def draw_scaling(
    parameters=1_300_000_000,
    batch_if_divided=2**20,
    tokens_per_rank=16_384,
    bandwidth=2.5e10,
    buckets=4,
):
    """The figure of `scaling_explorer`. batch_if_divided: tokens of the global batch that is
    divided among the ranks (strong scaling). tokens_per_rank: tokens on each rank (weak
    scaling)."""
    costs = (
        GRADIENT_BYTES * parameters,
        seconds_per_token(parameters, FLOPS),
        (ALPHA, 1 / bandwidth),
        buckets,
    )
    ways = {"after backward": bucketed_step, "overlapped": overlapped_step}
    curves = {
        "strong": {
            name: (RANKS, strong_scaling(step, batch_if_divided, RANKS, *costs))
            for name, step in ways.items()
        },
        "weak": {
            name: (RANKS, weak_scaling(step, tokens_per_rank, RANKS, *costs))
            for name, step in ways.items()
        },
    }
    note = (
        f"{parameters / 1e9:g} billion parameters, {size_in_words(bandwidth)}/s. Strong: "
        f"{batch_if_divided:,} tokens in all; weak: {tokens_per_rank:,} per rank."
    )
    return plots.scaling({}, curves, note=note)
